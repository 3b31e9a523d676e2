//! The snapshot: what the registry held when it was last read, in a file that all processes of the host read. By it they go on
//! while the database is away, also when they start.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::record::Record;
use super::{Revision, Unusable};
use crate::job::TopicName;
use crate::token::Token;
use crate::topic::Topic;

/// What the file's layout is called. A release that changes it so that this one cannot read it calls it otherwise.
const FORMAT: u32 = 1;

/// Where the snapshot lies: in a folder of its own, so that who watches it is told of nothing else.
pub fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("registry")
}

/// The topics and tokens of a registry at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Which registry it is, as its settings show it.
    pub source: String,
    /// In which state.
    pub revision: Revision,
    /// The topics.
    pub topics: Vec<Topic>,
    /// The tokens; none: the release that has written it knows of none, which says nothing about those that there are.
    pub tokens: Option<Vec<Token>>,
}

/// Why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It holds something else.
    #[error("it is no snapshot: {0}")]
    Damaged(#[from] serde_json::Error),
    /// Another release has written it.
    #[error("its format is {0}; this release reads {FORMAT}")]
    Format(u32),
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    source: String,
    revision: Revision,
    topics: Vec<Box<RawValue>>,
    /// The release before knows nothing of this, and passes over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<Box<RawValue>>>,
}

#[derive(Serialize, Deserialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    record: Record,
}

impl Snapshot {
    /// The file.
    pub fn file(run_dir: &Path) -> PathBuf {
        folder(run_dir).join("topics.json")
    }

    /// Writes it in one step: whoever reads finds the old one or the new one. Secrets lie in it.
    pub fn write(&self, run_dir: &Path) -> Result<(), SnapshotError> {
        let text = |topic: &Topic| {
            serde_json::value::to_raw_value(&Named {
                name: topic.name.to_string(),
                record: Record::of(topic),
            })
        };
        let file = File {
            format: FORMAT,
            source: self.source.clone(),
            revision: self.revision,
            topics: self.topics.iter().map(text).collect::<Result<_, _>>()?,
            tokens: match &self.tokens {
                None => None,
                Some(tokens) => {
                    Some(tokens.iter().map(serde_json::value::to_raw_value).collect::<Result<_, _>>()?)
                }
            },
        };
        let path = Snapshot::file(run_dir);
        // During a restart two processes write.
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let mut out =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        out.write_all(&serde_json::to_vec(&file)?)?;
        out.sync_all()?;
        std::fs::rename(draft, path)?;
        Ok(())
    }

    /// Reads it; none: there is none yet. What is of another release, and this one cannot use, is left out and told of.
    pub fn read(run_dir: &Path) -> Result<Option<(Snapshot, Vec<Unusable>)>, SnapshotError> {
        let text = match std::fs::read(Snapshot::file(run_dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let Head { format } = serde_json::from_slice(&text)?;
        if format != FORMAT {
            return Err(SnapshotError::Format(format));
        }
        let file: File = serde_json::from_slice(&text)?;
        let (mut topics, mut unusable) = (Vec::new(), Vec::new());
        for (at, text) in file.topics.iter().enumerate() {
            match topic(text.get()) {
                Ok(topic) => topics.push(topic),
                Err(why) => unusable.push(Unusable { which: format!("topic {at} of the snapshot"), why }),
            }
        }
        let tokens = file.tokens.map(|texts| {
            let mut tokens = Vec::new();
            for (at, text) in texts.iter().enumerate() {
                match serde_json::from_str(text.get()) {
                    Ok(token) => tokens.push(token),
                    Err(e) => unusable
                        .push(Unusable { which: format!("token {at} of the snapshot"), why: e.to_string() }),
                }
            }
            tokens
        });
        let snapshot = Snapshot { source: file.source, revision: file.revision, topics, tokens };
        Ok(Some((snapshot, unusable)))
    }
}

fn topic(text: &str) -> Result<Topic, String> {
    let named: Named = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let name = TopicName::new(&named.name).map_err(|e| e.to_string())?;
    named.record.into_topic(name).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::token::{Proof, Secret, TokenName};
    use crate::topic::Method;

    #[test]
    fn a_topic_that_is_held_is_passed_on_so_and_the_release_before_does_not_call_by_its_method() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let topic = |name: &str| Topic::new(TopicName::new(name).unwrap(), "http://h/");
        let topics = vec![
            Topic { method: Method::Other("PUT".into()), ..topic("method") },
            Topic { re_notify_flag: "isset({res.a})".into(), ..topic("flag") },
        ];
        let snapshot =
            Snapshot { source: "mysql://h/dq".into(), revision: Revision(1), topics, tokens: None };
        snapshot.write(dir.path()).unwrap();
        let (read, unusable) = Snapshot::read(dir.path()).unwrap().unwrap();
        assert!(read == snapshot && unusable.is_empty(), "{unusable:?}");
        assert!(read.topics.iter().all(|topic| topic.held().is_some()));
        // It knows two methods, and leaves out a topic that it cannot read.
        #[derive(Deserialize)]
        enum MethodBefore {
            #[serde(rename = "GET")]
            Get,
            #[serde(rename = "POST")]
            Post,
        }
        #[derive(Deserialize)]
        struct Before {
            name: String,
            method: MethodBefore,
        }
        let file: File = serde_json::from_slice(&std::fs::read(Snapshot::file(dir.path())).unwrap()).unwrap();
        let read = |text: &RawValue| serde_json::from_str::<Before>(text.get());
        assert!(read(&file.topics[0]).is_err());
        let flag = read(&file.topics[1]).unwrap();
        assert!(flag.name == "flag" && !matches!(flag.method, MethodBefore::Get));
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written_by_nobody_else_and_one_of_another_layout_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path();
        assert!(Snapshot::read(run_dir).unwrap().is_none());
        std::fs::create_dir(folder(run_dir)).unwrap();
        let topic = Topic::new(TopicName::new("a").unwrap(), "http://h/");
        let source = "sqlite:/x".to_owned();
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: Proof::Secret(Secret::of([1; 32]).digest()),
            scopes: vec!["produce:a".parse().unwrap()],
            created_ms: 1,
            expires_ms: Some(2),
            creator: "root".into(),
        };
        let snapshot =
            Snapshot { source, revision: Revision(u64::MAX), topics: vec![topic], tokens: Some(vec![token]) };
        snapshot.write(run_dir).unwrap();
        assert_eq!(Snapshot::read(run_dir).unwrap(), Some((snapshot.clone(), Vec::new())));
        let path = Snapshot::file(run_dir);
        // The release before has no tokens, and says nothing of them; it reads what this one writes.
        #[derive(Deserialize)]
        struct Before {
            format: u32,
            topics: Vec<Box<RawValue>>,
        }
        let before: Before = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((before.format, before.topics.len()), (1, 1));
        let without = Snapshot { tokens: None, ..snapshot.clone() };
        without.write(run_dir).unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("tokens"));
        assert_eq!(Snapshot::read(run_dir).unwrap(), Some((without, Vec::new())));
        snapshot.write(run_dir).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("http://h/", "nowhere")).unwrap();
        let (read, unusable) = Snapshot::read(run_dir).unwrap().unwrap();
        assert!(read.topics.is_empty() && unusable[0].why.contains("callback"), "{unusable:?}");
        std::fs::write(&path, text.replace("\"format\":1", "\"format\":2")).unwrap();
        assert!(matches!(Snapshot::read(run_dir), Err(SnapshotError::Format(2))));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Snapshot::read(run_dir), Err(SnapshotError::Damaged(_))));
    }
}

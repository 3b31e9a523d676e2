//! The snapshot: a file with the contents of the registry when the registry was last read. All processes of the host
//! read this file. So they can run, and even start, while the database does not answer.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::record;
use super::{InvalidRow, Revision};
use host::{FileVersion, version_of};
use model::job::TopicName;
use model::token::Token;
use model::topic::Topic;

/// The number of the file's format. A later release changes this number if this release cannot read the new format.
const FORMAT: u32 = 1;

/// Returns the folder of the snapshot. The folder holds only the snapshot. So a change of another file does not wake
/// the processes that watch the folder.
pub fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("registry")
}

/// The topics and tokens of a registry at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The settings of the registry that was read, as text (`Display` of
    /// [`RegistrySettings`](model::settings::RegistrySettings)).
    pub source: String,
    /// The revision of the registry when it was read.
    pub revision: Revision,
    /// The topics.
    pub topics: Vec<Topic>,
    /// The tokens. None: the release that wrote the file knows no tokens, so the file says nothing about the registry's
    /// tokens.
    pub tokens: Option<Vec<Token>>,
}

/// Why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file holds something else.
    #[error("it is no snapshot: {0}")]
    Damaged(#[from] serde_json::Error),
    /// Another release wrote the file, in another format.
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
    /// Early releases do not know this field, and ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<Box<RawValue>>>,
}

#[derive(Serialize, Deserialize)]
struct StoredTopic {
    name: String,
    #[serde(flatten)]
    record: Map<String, Value>,
}

impl Snapshot {
    /// Returns the path of the file.
    pub fn file(run_dir: &Path) -> PathBuf {
        folder(run_dir).join("topics.json")
    }

    /// Writes the file in one step, so that a reader finds either the old contents or the new contents. Makes its folder
    /// if it is missing. The file contains secrets, so only its owner can read it.
    pub fn write(&self, run_dir: &Path) -> Result<(), SnapshotError> {
        let text = |topic: &Topic| {
            serde_json::value::to_raw_value(&StoredTopic {
                name: topic.name.to_string(),
                record: record::stored(topic),
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
        host::make_folder_in_run_dir(&folder(run_dir))?;
        let path = Snapshot::file(run_dir);
        let draft = host::draft_of(&path);
        let mut out =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        out.write_all(&serde_json::to_vec(&file)?)?;
        out.sync_all()?;
        std::fs::rename(draft, path)?;
        Ok(())
    }

    /// Notes that this version of the file has the contents of the registry now: sets the file's time of modification.
    /// Returns the new version. None: the file is another one, or was removed, so nothing was done.
    pub fn confirm(run_dir: &Path, version: FileVersion) -> io::Result<Option<FileVersion>> {
        let file = match std::fs::File::open(Snapshot::file(run_dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        if version_of(&file.metadata()?) != version {
            return Ok(None);
        }
        file.set_modified(std::time::SystemTime::now())?;
        file.metadata().map(|file| Some(version_of(&file)))
    }

    /// Reads the file. None: there is no file yet. Topics and tokens of another release that this release cannot use
    /// are left out, and returned as [`InvalidRow`].
    pub fn read(run_dir: &Path) -> Result<Option<(Snapshot, Vec<InvalidRow>)>, SnapshotError> {
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
                Err(why) => unusable.push(InvalidRow { which: format!("topic {at} of the snapshot"), why }),
            }
        }
        let tokens = file.tokens.map(|texts| {
            let mut tokens = Vec::new();
            for (at, text) in texts.iter().enumerate() {
                match serde_json::from_str(text.get()) {
                    Ok(token) => tokens.push(token),
                    Err(e) => unusable.push(InvalidRow {
                        which: format!("token {at} of the snapshot"),
                        why: e.to_string(),
                    }),
                }
            }
            tokens
        });
        let snapshot = Snapshot { source: file.source, revision: file.revision, topics, tokens };
        Ok(Some((snapshot, unusable)))
    }
}

fn topic(text: &str) -> Result<Topic, String> {
    let named: StoredTopic = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let name = TopicName::new(&named.name).map_err(|e| e.to_string())?;
    record::topic(name, &named.record).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use model::password::StoredPassword;
    use model::token::{TokenCredential, TokenName, TokenSecret};
    use model::topic::Method;

    #[test]
    fn held_topics_stay_held_and_old_releases_skip_unknown_methods() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let topic = |name: &str| Topic::new(TopicName::new(name).unwrap(), "http://h/");
        let topics = vec![
            Topic { method: Method::Other("PUT".into()), ..topic("method") },
            Topic { re_notify_flag: "system({res.a})".into(), ..topic("flag") },
        ];
        let snapshot =
            Snapshot { source: "mysql://h/dq".into(), revision: Revision(1), topics, tokens: None };
        snapshot.write(dir.path()).unwrap();
        let (read, unusable) = Snapshot::read(dir.path()).unwrap().unwrap();
        assert!(read == snapshot && unusable.is_empty(), "{unusable:?}");
        assert!(read.topics.iter().all(|topic| topic.held().is_some()));
        // An old release knows two methods, and leaves out a topic that it cannot read.
        #[derive(Deserialize)]
        enum LegacyMethod {
            #[serde(rename = "GET")]
            Get,
            #[serde(rename = "POST")]
            Post,
        }
        #[derive(Deserialize)]
        struct LegacyTopic {
            name: String,
            method: LegacyMethod,
        }
        let file: File = serde_json::from_slice(&std::fs::read(Snapshot::file(dir.path())).unwrap()).unwrap();
        let read = |text: &RawValue| serde_json::from_str::<LegacyTopic>(text.get());
        assert!(read(&file.topics[0]).is_err());
        let flag = read(&file.topics[1]).unwrap();
        assert!(flag.name == "flag" && !matches!(flag.method, LegacyMethod::Get));
    }

    #[test]
    fn a_lost_registry_says_what_it_held_and_counts_accounts_apart() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let settings = model::settings::RegistrySettings::Sqlite { path: dir.path().join("registry.db") };
        let secret = || TokenCredential::Secret(TokenSecret::new([1; 32]).digest());
        let password = || TokenCredential::Password(StoredPassword::new("a long password", [1; 16]).unwrap());
        let token = |name: TokenName, proof| Token {
            name,
            proof,
            scopes: Vec::new(),
            created_ms: 1,
            expires_ms: None,
            creator: "root".into(),
            add_rate: None,
        };
        let tokens = vec![
            token(TokenName::new("shop").unwrap(), secret()),
            token(TokenName::of_account("admin").unwrap(), password()),
            token(TokenName::of_account("ann").unwrap(), password()),
        ];
        let source = settings.to_string();
        let snapshot = Snapshot { source, revision: Revision(1), topics: Vec::new(), tokens: Some(tokens) };
        snapshot.write(dir.path()).unwrap();
        let message = crate::open_known(&settings, dir.path()).err().unwrap().to_string();
        assert!(message.contains("it held 0 topics, 1 tokens and 2 accounts of the console"), "{message}");
    }

    #[test]
    fn a_snapshot_is_private_and_exact_and_other_formats_fail() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path();
        assert!(Snapshot::read(run_dir).unwrap().is_none());
        std::fs::create_dir(folder(run_dir)).unwrap();
        let topic = Topic::new(TopicName::new("a").unwrap(), "http://h/");
        let source = "sqlite:/x".to_owned();
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: TokenCredential::Secret(TokenSecret::new([1; 32]).digest()),
            scopes: vec!["produce:a".parse().unwrap()],
            created_ms: 1,
            expires_ms: Some(2),
            creator: "root".into(),
            add_rate: None,
        };
        let snapshot =
            Snapshot { source, revision: Revision(u64::MAX), topics: vec![topic], tokens: Some(vec![token]) };
        snapshot.write(run_dir).unwrap();
        assert_eq!(Snapshot::read(run_dir).unwrap(), Some((snapshot.clone(), Vec::new())));
        let path = Snapshot::file(run_dir);
        // Early releases do not know tokens. `LegacySnapshot` has the fields that such a release reads. Such a release
        // can read what this release writes.
        #[derive(Deserialize)]
        struct LegacySnapshot {
            format: u32,
            topics: Vec<Box<RawValue>>,
        }
        let before: LegacySnapshot = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
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

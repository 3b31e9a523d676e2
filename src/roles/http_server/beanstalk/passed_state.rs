//! The state of a connection, as it is passed to the next dq-http-server with its socket. Pure.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::held::HeldJob;
use host::Owner;
use model::job::{JobId, JobKey, TopicName};
use protocol::beanstalk::{BeanstalkCommand, TubeName};
use store::Token;

/// The version of the format. It is increased with every change that the previous release would misread. A process
/// refuses a version that it does not know, and the connection stays with the old process.
const VERSION: u32 = 1;

/// The maximum number of bytes that have arrived from the client and are not carried out yet. A connection with more
/// such bytes is not passed on.
const INPUT_MAX: usize = 20 << 20;

/// The state of a connection between two commands, or in a reserve that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BeanstalkHandoffState {
    pub peer: IpAddr,
    pub used: TubeName,
    /// The watched tubes, in the order in which the client began to watch them.
    pub watched: Vec<TubeName>,
    /// The jobs that the client has reserved, by number.
    pub held: Vec<(u64, HeldJob)>,
    pub is_producer: bool,
    pub is_worker: bool,
    /// Whether the client has closed its side.
    pub is_half_closed: bool,
    /// How many reserve commands the client has sent on this connection.
    pub reserves: usize,
    pub waiting: Option<ReserveWait>,
    /// The bytes that have arrived and are not carried out yet.
    pub input: Vec<u8>,
}

/// How long a reserve waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReserveWait {
    Until(Instant),
    Unlimited,
}

impl ReserveWait {
    /// Returns the limit of a reserve that begins now.
    pub(super) fn new(command: &BeanstalkCommand, now: Instant) -> ReserveWait {
        match command {
            BeanstalkCommand::ReserveWithTimeout(Some(seconds)) => {
                ReserveWait::Until(now + Duration::from_secs((*seconds).into()))
            }
            _ => ReserveWait::Unlimited,
        }
    }

    pub(super) fn until(self) -> Option<Instant> {
        match self {
            ReserveWait::Until(until) => Some(until),
            ReserveWait::Unlimited => None,
        }
    }
}

/// The state without the input. In the passed bytes, this header is followed by a newline and the input. The input is
/// the bytes from the client that are not carried out yet.
#[derive(Debug, Serialize, Deserialize)]
struct StateHeader {
    version: u32,
    peer: IpAddr,
    used: String,
    watched: Vec<String>,
    held: Vec<PassedJob>,
    is_producer: bool,
    is_worker: bool,
    is_half_closed: bool,
    reserves: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<PassedReserveWait>,
    input: usize,
}

/// How long a reserve still waits.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PassedReserveWait {
    LeftMs(u64),
    Unlimited,
}

/// A job that the client has reserved.
#[derive(Debug, Serialize, Deserialize)]
struct PassedJob {
    number: u64,
    topic: TopicName,
    id: String,
    /// The lease token, in base64.
    token: String,
    attempt: u32,
    began_ms: i64,
    ttr_ms: u64,
    /// The time until the lease of this job ends. The field is a duration, because an `Instant` cannot be serialized.
    left_ms: u64,
    /// The tag of the owner of the lease.
    owner: String,
}

fn to_ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("its state {why}"))
}

impl BeanstalkHandoffState {
    /// Writes the state. An error of the kind `InvalidInput` means that the state has too many bytes of input.
    pub(super) fn to_bytes(&self, now: Instant) -> io::Result<Vec<u8>> {
        if self.input.len() > INPUT_MAX {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "its unread bytes are more than can be passed on",
            ));
        }
        let passed = |(number, job): &(u64, HeldJob)| {
            let owner = job.owner.as_ref()?;
            Some(PassedJob {
                number: *number,
                topic: job.key.topic.clone(),
                id: job.key.id.as_str().to_owned(),
                token: STANDARD.encode(&job.token.0),
                attempt: job.attempt,
                began_ms: job.began_ms,
                ttr_ms: to_ms(job.ttr),
                left_ms: to_ms(job.ends.saturating_duration_since(now)),
                owner: owner.tag().to_owned(),
            })
        };
        let head = StateHeader {
            version: VERSION,
            peer: self.peer,
            used: self.used.to_string(),
            watched: self.watched.iter().map(TubeName::to_string).collect(),
            held: self.held.iter().filter_map(passed).collect(),
            is_producer: self.is_producer,
            is_worker: self.is_worker,
            is_half_closed: self.is_half_closed,
            reserves: self.reserves,
            waiting: self.waiting.map(|limit| match limit {
                ReserveWait::Until(until) => {
                    PassedReserveWait::LeftMs(to_ms(until.saturating_duration_since(now)))
                }
                ReserveWait::Unlimited => PassedReserveWait::Unlimited,
            }),
            input: self.input.len(),
        };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.input);
        Ok(bytes)
    }

    /// Reads a state. An error of the kind `WouldBlock` means that bytes are still missing. `owners`: the owners whose
    /// locks have arrived.
    pub(super) fn from_bytes(
        bytes: &[u8],
        owners: &HashMap<String, Arc<Owner>>,
        now: Instant,
    ) -> io::Result<BeanstalkHandoffState> {
        // The header itself contains no newline, because JSON escapes newlines. So the first newline ends the header.
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let version: PassedVersion = serde_json::from_slice(&bytes[..end])?;
        if version.version != VERSION {
            return Err(wrong(&format!(
                "has version {}, and this release understands {VERSION}",
                version.version
            )));
        }
        let head: StateHeader = serde_json::from_slice(&bytes[..end])?;
        let input = &bytes[end + 1..];
        if input.len() < head.input {
            return Err(ErrorKind::WouldBlock.into());
        }
        let tube = |name: &String| TubeName::new(name.as_bytes()).ok_or_else(|| wrong("has a wrong tube"));
        let held = |job: PassedJob| {
            let owner =
                owners.get(&job.owner).ok_or_else(|| wrong("has jobs without the lock of their owner"))?;
            let token = STANDARD.decode(&job.token).map_err(|_| wrong("has a wrong token"))?;
            let id = JobId::new(job.id).map_err(|_| wrong("has a wrong id"))?;
            let held = HeldJob {
                key: JobKey { topic: job.topic, id },
                token: Token(token.into()),
                attempt: job.attempt,
                began_ms: job.began_ms,
                ttr: Duration::from_millis(job.ttr_ms),
                ends: now + Duration::from_millis(job.left_ms),
                owner: Some(Arc::clone(owner)),
            };
            Ok((job.number, held))
        };
        Ok(BeanstalkHandoffState {
            peer: head.peer,
            used: tube(&head.used)?,
            watched: head.watched.iter().map(tube).collect::<io::Result<_>>()?,
            held: head.held.into_iter().map(held).collect::<io::Result<_>>()?,
            is_producer: head.is_producer,
            is_worker: head.is_worker,
            is_half_closed: head.is_half_closed,
            reserves: head.reserves,
            waiting: head.waiting.map(|limit| match limit {
                PassedReserveWait::LeftMs(ms) => ReserveWait::Until(now + Duration::from_millis(ms)),
                PassedReserveWait::Unlimited => ReserveWait::Unlimited,
            }),
            input: input.to_vec(),
        })
    }
}

#[derive(Deserialize)]
struct PassedVersion {
    version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tube(name: &str) -> TubeName {
        TubeName::new(name.as_bytes()).unwrap()
    }

    #[test]
    fn a_state_is_read_as_it_is_written() {
        let run_dir = tempfile::tempdir().unwrap();
        let owner = Arc::new(Owner::claim(run_dir.path()).unwrap());
        let owners = HashMap::from([(owner.tag().to_owned(), Arc::clone(&owner))]);
        let now = Instant::now();
        let held = HeldJob {
            key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("\"1\n\u{e9}").unwrap() },
            token: Token((0..=255).collect()),
            attempt: 3,
            began_ms: 1_795_000_000_000,
            ttr: 90 * SECOND,
            ends: now + 7 * SECOND,
            owner: Some(owner),
        };
        for (waiting, input) in [
            (None, &b""[..]),
            (Some(ReserveWait::Unlimited), b"put 0 0 1 2\r\n\n"),
            (Some(ReserveWait::Until(now + 5 * SECOND)), b"\xff\0"),
        ] {
            let state = BeanstalkHandoffState {
                peer: "127.0.0.1".parse().unwrap(),
                used: tube("a;b"),
                watched: vec![tube("default"), tube("c")],
                held: vec![(1 << 60, held.clone())],
                is_producer: true,
                is_worker: false,
                is_half_closed: true,
                reserves: 9,
                waiting,
                input: input.to_vec(),
            };
            let bytes = state.to_bytes(now).unwrap();
            assert_eq!(BeanstalkHandoffState::from_bytes(&bytes, &owners, now).unwrap(), state);
            let kind = |bytes: &[u8], owners| {
                BeanstalkHandoffState::from_bytes(bytes, owners, now).unwrap_err().kind()
            };
            for cut in [0, 1, bytes.len() / 2, bytes.len() - input.len() - 1] {
                assert_eq!(kind(&bytes[..cut], &owners), ErrorKind::WouldBlock, "{cut} bytes");
            }
            assert_eq!(kind(&bytes, &HashMap::new()), ErrorKind::InvalidData, "no lock of the owner");
            let newer = String::from_utf8_lossy(&bytes).replace("\"version\":1", "\"version\":2,\"new\":[]");
            let e = BeanstalkHandoffState::from_bytes(newer.as_bytes(), &owners, now).unwrap_err();
            assert!(e.to_string().contains("has version 2, and this release understands 1"), "{e}");
            let too_much = BeanstalkHandoffState { input: vec![0; INPUT_MAX + 1], ..state };
            assert_eq!(too_much.to_bytes(now).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}

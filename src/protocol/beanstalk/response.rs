//! The responses, and how they are written.

use std::borrow::Cow;
use std::io::Write;

use super::tube::TubeName;
use super::yaml::YamlDocument;

/// The response of the server to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeanstalkResponse<'a> {
    /// The answer to `put`: the job is stored under this id.
    Inserted(u64),
    /// The answer to `put`: the job is stored, but buried, because the server has too little memory.
    PutBuried(u64),
    /// The answer to `use` and to `list-tube-used`: the tube that gets the jobs of the client's `put` commands.
    Using(TubeName),
    /// A leased job.
    Reserved {
        /// Its id.
        id: u64,
        /// Its body.
        body: Cow<'a, [u8]>,
    },
    /// A job that is only shown.
    Found {
        /// Its id.
        id: u64,
        /// Its body.
        body: Cow<'a, [u8]>,
    },
    /// The answer to `watch` and to `ignore`: the number of tubes that are watched.
    Watching(u64),
    /// The answer to `kick`: the number of jobs that were made ready.
    Kicked(u64),
    /// A list or a dictionary.
    Ok(YamlDocument),
    /// The answer to `kick-job`: the job was made ready.
    JobKicked,
    /// The job was removed.
    Deleted,
    /// The job was given back.
    Released,
    /// The job was put aside.
    Buried,
    /// The lease was extended.
    Touched,
    /// The tube is paused.
    Paused,
    /// There is no such job or tube, or the client has no lease of the job.
    NotFound,
    /// The answer to `ignore` for the last watched tube: at least one tube must be watched.
    NotIgnored,
    /// The answer to a reserve: a lease of this client ends within a second, and there is no other job.
    DeadlineSoon,
    /// The answer to `reserve-with-timeout`: no job came in time.
    TimedOut,
    /// The answer to `put`: the server takes no new jobs.
    Draining,
    /// The command is wrong. [`BeanstalkCommandError`](super::BeanstalkCommandError) explains this response and the
    /// next three.
    BadFormat,
    /// There is no such command.
    UnknownCommand,
    /// The body is too big.
    JobTooBig,
    /// No CRLF follows the body.
    ExpectedCrlf,
    /// The server has no memory left.
    OutOfMemory,
    /// The server has failed.
    InternalError,
}

/// The responses that consist of only one word.
pub(super) const WORDS: [(&str, BeanstalkResponse<'static>); 17] = [
    ("KICKED", BeanstalkResponse::JobKicked),
    ("DELETED", BeanstalkResponse::Deleted),
    ("RELEASED", BeanstalkResponse::Released),
    ("BURIED", BeanstalkResponse::Buried),
    ("TOUCHED", BeanstalkResponse::Touched),
    ("PAUSED", BeanstalkResponse::Paused),
    ("NOT_FOUND", BeanstalkResponse::NotFound),
    ("NOT_IGNORED", BeanstalkResponse::NotIgnored),
    ("DEADLINE_SOON", BeanstalkResponse::DeadlineSoon),
    ("TIMED_OUT", BeanstalkResponse::TimedOut),
    ("DRAINING", BeanstalkResponse::Draining),
    ("BAD_FORMAT", BeanstalkResponse::BadFormat),
    ("UNKNOWN_COMMAND", BeanstalkResponse::UnknownCommand),
    ("JOB_TOO_BIG", BeanstalkResponse::JobTooBig),
    ("EXPECTED_CRLF", BeanstalkResponse::ExpectedCrlf),
    ("OUT_OF_MEMORY", BeanstalkResponse::OutOfMemory),
    ("INTERNAL_ERROR", BeanstalkResponse::InternalError),
];

impl BeanstalkResponse<'_> {
    /// Appends the response to the bytes for a client.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            BeanstalkResponse::Inserted(id) => line(out, format_args!("INSERTED {id}")),
            BeanstalkResponse::PutBuried(id) => line(out, format_args!("BURIED {id}")),
            BeanstalkResponse::Using(tube) => line(out, format_args!("USING {tube}")),
            BeanstalkResponse::Watching(count) => line(out, format_args!("WATCHING {count}")),
            BeanstalkResponse::Kicked(count) => line(out, format_args!("KICKED {count}")),
            BeanstalkResponse::Reserved { id, body } => {
                line(out, format_args!("RESERVED {id} {}", body.len()));
                block(out, body);
            }
            BeanstalkResponse::Found { id, body } => {
                line(out, format_args!("FOUND {id} {}", body.len()));
                block(out, body);
            }
            BeanstalkResponse::Ok(document) => {
                let yaml = document.to_yaml();
                line(out, format_args!("OK {}", yaml.len()));
                block(out, yaml.as_bytes());
            }
            word => {
                let (text, _) = WORDS
                    .iter()
                    .find(|(_, response)| response == word)
                    .expect("WORDS has all other variants");
                line(out, format_args!("{text}"));
            }
        }
    }
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    write!(out, "{text}\r\n").expect("a Vec takes all bytes");
}

fn block(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

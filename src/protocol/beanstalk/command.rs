//! The commands, and how a line becomes a command. Names are compared as in beanstalkd: the command of a line is the
//! first name in the table with which the line begins. So `statsx` is a wrong `stats`, and `quitter` is a `quit`.

use super::number::{strtol, strtoul, unsigned, unsigned_32};
use super::response::BeanstalkResponse;
use super::tube::{TubeName, is_name_byte};

/// The longest line, in bytes, with its CRLF.
pub const LINE_MAX: usize = 224;

/// What a client asks for. All times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeanstalkCommand {
    /// Store a job in the used tube.
    Put(Put),
    /// Use this tube for later puts.
    Use(TubeName),
    /// Lease a job of the watched tubes, and wait for it without a limit.
    Reserve,
    /// Lease a job of the watched tubes. The number is the longest time to wait. None: there is no limit.
    ReserveWithTimeout(Option<u32>),
    /// Lease the job with this id.
    ReserveJob(u64),
    /// Remove the job with this id.
    Delete(u64),
    /// Give back a leased job.
    Release {
        /// The job.
        id: u64,
        /// The new priority of the job: 0 is the most urgent.
        priority: u32,
        /// How long the job is delayed from now on.
        delay_s: u32,
    },
    /// Put a leased job aside, until a client sends `kick` or `kick-job` for it.
    Bury {
        /// The job.
        id: u64,
        /// Its new priority.
        priority: u32,
    },
    /// Extend the lease of the job with this id.
    Touch(u64),
    /// Watch a tube.
    Watch(TubeName),
    /// Stop watching a tube.
    Ignore(TubeName),
    /// Show the job with this id.
    Peek(u64),
    /// Show the next ready job of the used tube.
    PeekReady,
    /// Show the delayed job of the used tube that is due first.
    PeekDelayed,
    /// Show the first buried job of the used tube.
    PeekBuried,
    /// Make jobs of the used tube ready, up to this number. These are buried jobs or, if there are none, delayed jobs.
    Kick(u32),
    /// Make the buried or delayed job with this id ready.
    KickJob(u64),
    /// Show statistics of the job with this id.
    StatsJob(u64),
    /// Show statistics of a tube.
    StatsTube(TubeName),
    /// Show statistics of the server.
    Stats,
    /// List all tubes.
    ListTubes,
    /// Show the tube that gets the jobs of the client's `put` commands.
    ListTubeUsed,
    /// List the tubes from which the client leases jobs.
    ListTubesWatched,
    /// Lease no new job of a tube for some time.
    PauseTube {
        /// The tube.
        tube: TubeName,
        /// How long the pause lasts. beanstalkd treats 0 as the shortest possible pause.
        delay_s: u32,
    },
    /// Close the connection, without a response.
    Quit,
}

/// A job as a client puts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The priority of the job: 0 is the most urgent.
    pub priority: u32,
    /// How long the job is delayed.
    pub delay_s: u32,
    /// How long a lease of the job lasts. The value is at least 1, because 0 counts as 1.
    pub ttr_s: u32,
    /// The body: any bytes.
    pub body: Vec<u8>,
}

/// Why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BeanstalkCommandError {
    /// The line is too long or contains a NUL byte, or its arguments are wrong.
    #[error("BAD_FORMAT")]
    BadFormat,
    /// There is no such command.
    #[error("UNKNOWN_COMMAND")]
    UnknownCommand,
    /// The body exceeds the limit. It was skipped.
    #[error("JOB_TOO_BIG")]
    JobTooBig,
    /// No CRLF follows the body. The body and the next two bytes were skipped.
    #[error("EXPECTED_CRLF")]
    ExpectedCrlf,
}

impl From<BeanstalkCommandError> for BeanstalkResponse<'_> {
    fn from(error: BeanstalkCommandError) -> Self {
        match error {
            BeanstalkCommandError::BadFormat => BeanstalkResponse::BadFormat,
            BeanstalkCommandError::UnknownCommand => BeanstalkResponse::UnknownCommand,
            BeanstalkCommandError::JobTooBig => BeanstalkResponse::JobTooBig,
            BeanstalkCommandError::ExpectedCrlf => BeanstalkResponse::ExpectedCrlf,
        }
    }
}

/// What a line means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BeanstalkLine {
    /// A whole command.
    Command(BeanstalkCommand),
    /// A put. Its body follows: `size` bytes and a CRLF. The body in `put` is still empty.
    Body { put: Put, size: u32 },
    /// A put that is too big. `skipped` is the number of bytes that follow and are skipped.
    TooBig { skipped: u64 },
}

type ArgumentReader = fn(&mut &[u8]) -> Option<BeanstalkCommand>;

/// Each name, and how its arguments are read. If one name begins with another name, the longer name comes first.
const COMMANDS: [(&str, ArgumentReader); 24] = [
    ("peek ", |rest| last_id(rest).map(BeanstalkCommand::Peek)),
    ("peek-ready", |rest| alone(rest, BeanstalkCommand::PeekReady)),
    ("peek-delayed", |rest| alone(rest, BeanstalkCommand::PeekDelayed)),
    ("peek-buried", |rest| alone(rest, BeanstalkCommand::PeekBuried)),
    ("reserve-with-timeout ", |rest| timeout(rest).map(BeanstalkCommand::ReserveWithTimeout)),
    ("reserve-job ", |rest| last_id(rest).map(BeanstalkCommand::ReserveJob)),
    ("reserve", |rest| alone(rest, BeanstalkCommand::Reserve)),
    ("delete ", |rest| last_id(rest).map(BeanstalkCommand::Delete)),
    ("release ", |rest| {
        let (id, priority, delay_s) = (unsigned(rest, u64::MAX)?, unsigned_32(rest)?, unsigned_32(rest)?);
        alone(rest, BeanstalkCommand::Release { id, priority, delay_s })
    }),
    ("bury ", |rest| {
        let (id, priority) = (unsigned(rest, u64::MAX)?, unsigned_32(rest)?);
        alone(rest, BeanstalkCommand::Bury { id, priority })
    }),
    // The number is cut to 32 bits, as in beanstalkd.
    ("kick ", |rest| strtoul(rest).map(|count| BeanstalkCommand::Kick(count as u32))),
    ("kick-job ", |rest| last_id(rest).map(BeanstalkCommand::KickJob)),
    ("touch ", |rest| last_id(rest).map(BeanstalkCommand::Touch)),
    ("stats-job ", |rest| last_id(rest).map(BeanstalkCommand::StatsJob)),
    ("stats-tube ", |rest| TubeName::new(rest).map(BeanstalkCommand::StatsTube)),
    ("stats", |rest| alone(rest, BeanstalkCommand::Stats)),
    ("use ", |rest| TubeName::new(rest).map(BeanstalkCommand::Use)),
    ("watch ", |rest| TubeName::new(rest).map(BeanstalkCommand::Watch)),
    ("ignore ", |rest| TubeName::new(rest).map(BeanstalkCommand::Ignore)),
    ("list-tubes-watched", |rest| alone(rest, BeanstalkCommand::ListTubesWatched)),
    ("list-tube-used", |rest| alone(rest, BeanstalkCommand::ListTubeUsed)),
    ("list-tubes", |rest| alone(rest, BeanstalkCommand::ListTubes)),
    ("quit", |_| Some(BeanstalkCommand::Quit)),
    ("pause-tube", pause_tube),
];

/// Parses a line without its CRLF.
pub(super) fn parse(line: &[u8], max_job_size: u32) -> Result<BeanstalkLine, BeanstalkCommandError> {
    if line.contains(&0) {
        return Err(BeanstalkCommandError::BadFormat);
    }
    if let Some(rest) = line.strip_prefix(b"put ") {
        return put(rest, max_job_size).ok_or(BeanstalkCommandError::BadFormat);
    }
    let of_line = |(name, arguments): &(&str, ArgumentReader)| {
        line.strip_prefix(name.as_bytes()).map(|rest| (*arguments, rest))
    };
    let (arguments, mut rest) =
        COMMANDS.iter().find_map(of_line).ok_or(BeanstalkCommandError::UnknownCommand)?;
    arguments(&mut rest).map(BeanstalkLine::Command).ok_or(BeanstalkCommandError::BadFormat)
}

fn put(mut rest: &[u8], max_job_size: u32) -> Option<BeanstalkLine> {
    let (priority, delay_s) = (unsigned_32(&mut rest)?, unsigned_32(&mut rest)?);
    let (ttr_s, size) = (unsigned_32(&mut rest)?.max(1), unsigned_32(&mut rest)?);
    // The size is checked before the rest of the line: even if the rest is wrong, the body must be skipped.
    if size > max_job_size {
        return Some(BeanstalkLine::TooBig { skipped: u64::from(size) + 2 });
    }
    let put = Put { priority, delay_s, ttr_s, body: Vec::new() };
    rest.is_empty().then_some(BeanstalkLine::Body { put, size })
}

fn alone(rest: &[u8], command: BeanstalkCommand) -> Option<BeanstalkCommand> {
    rest.is_empty().then_some(command)
}

/// Reads an id. Nothing may follow it.
fn last_id(rest: &mut &[u8]) -> Option<u64> {
    unsigned(rest, u64::MAX).filter(|_| rest.is_empty())
}

/// Reads a timeout. The number is cut to 32 bits, as in beanstalkd. A negative number means that there is no limit.
fn timeout(rest: &[u8]) -> Option<Option<u32>> {
    strtol(rest).map(|seconds| u32::try_from(seconds as i32).ok())
}

fn pause_tube(rest: &mut &[u8]) -> Option<BeanstalkCommand> {
    let begin = rest.iter().take_while(|byte| **byte == b' ').count();
    let length = rest[begin..].iter().take_while(|byte| is_name_byte(**byte)).count();
    let (name, mut delay) = rest[begin..].split_at(length);
    let delay_s = unsigned_32(&mut delay)?;
    alone(delay, BeanstalkCommand::PauseTube { tube: TubeName::new(name)?, delay_s })
}

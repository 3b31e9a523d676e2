//! The text protocol of beanstalkd, as its versions 1.12 and 1.13 speak it. A command is a line that ends in CRLF; the
//! line of a `put` is followed by the body. Each command except `quit` gets exactly one response. The responses come in
//! the order of the commands.
//!
//! | type | from | to |
//! |---|---|---|
//! | [`BeanstalkDecoder`] | the bytes of a client, cut anywhere | [`BeanstalkCommand`] or [`BeanstalkCommandError`] |
//! | [`BeanstalkResponse`] | a response | its bytes, and back |
//! | [`YamlDocument`] | a list or a dictionary of a response | its YAML, and back |
//! | [`JobStats`], [`TubeStats`], [`ServerStats`] | typed statistics | a [`YamlDocument`], and back |
//!
//! `tests/beanstalk/conversations.txt` is a table of conversations. A test runs these conversations against a real
//! beanstalkd. Another test reads and writes them with the types of this module. beanstalkd never finds the end of some
//! lines. It checks only the first CR, and misses a CRLF if the CR is byte 224 of the line. This decoder finds the end
//! of such lines, so that no client hangs.

mod command;
mod decoder;
mod number;
mod response;
mod response_reader;
mod stats;
mod tube;
mod yaml;

pub use self::command::{BeanstalkCommand, BeanstalkCommandError, LINE_MAX, Put};
pub use self::decoder::BeanstalkDecoder;
pub use self::response::BeanstalkResponse;
pub use self::response_reader::BeanstalkResponseError;
pub use self::stats::{JobState, JobStats, ProcessorTime, QuotedStat, ServerStats, TubeStats};
pub use self::tube::{TUBE_MAX, TubeName};
pub use self::yaml::YamlDocument;

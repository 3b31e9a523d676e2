//! The protocol of gmq-redis: JSON-RPC 1.0, as Go's `net/rpc/jsonrpc` speaks it. A connection is a row of JSON objects
//! without any framing. A response ends in a newline.
//!
//! | type | from | to |
//! |---|---|---|
//! | [`Decoder`] | the bytes of a client, cut anywhere | [`Request`] |
//! | [`Response`] | the result of a call | its bytes |
//!
//! A request that is no JSON object has no answer, as in Go: the connection is closed ([`DecodeError`]). Any other wrong
//! request has an answer with an error ([`CallError`]), in Go's words where Go finds it.
//!
//! Some requests that gmq-redis takes for something else are refused: it reads a delay that is no number as 0, and so
//! would deliver the job at once.

mod decoder;
mod fields;
mod request;
mod response;

pub use self::decoder::{DecodeError, Decoder};
pub use self::request::{Call, CallError, POP_TOPICS_MAX, Push, Request, RequestId};
pub use self::response::{PoppedJob, Response};

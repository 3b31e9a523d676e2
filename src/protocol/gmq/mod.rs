//! The protocol of gmq-redis: JSON-RPC 1.0, as Go's `net/rpc/jsonrpc` speaks it. A connection is a row of JSON objects
//! without any framing. A response ends in a newline.
//!
//! | type | from | to |
//! |---|---|---|
//! | [`GmqDecoder`] | the bytes of a client, cut anywhere | [`GmqRequest`] |
//! | [`GmqResponse`] | the result of a call | its bytes |
//!
//! A request that is not a JSON object gets no answer, as in Go: the connection is closed ([`DecodeError`]). Any other
//! wrong request has an answer with an error ([`CallError`]), with the words of Go's library if that library would find
//! the mistake.
//!
//! gmq-redis misreads some requests. dq refuses them. For example, gmq-redis reads a delay that is not a number as 0,
//! and would deliver the job at once.

mod decoder;
mod fields;
mod request;
mod response;

pub use self::decoder::{DecodeError, GmqDecoder};
pub use self::request::{Call, CallError, GmqRequest, POP_TOPICS_MAX, Push, RequestId};
pub use self::response::{GmqResponse, PoppedJob};

//! The protocol of gmq-redis: JSON-RPC 1.0, as Go's `net/rpc/jsonrpc` speaks it. A connection carries JSON objects, one
//! after the other, without any framing. A response ends in a newline.
//!
//! | type | from | to |
//! |---|---|---|
//! | [`GmqDecoder`] | the bytes of a client, cut anywhere | [`GmqRequest`] |
//! | [`GmqResponse`] | the result of a call | its bytes |
//!
//! A request that is not a JSON object gets no answer. As in Go, the connection is closed ([`GmqDecodeError`]). Any
//! other wrong request gets an answer with an error ([`RpcError`]). If Go's library would find the mistake too, the
//! error has the words of this library.
//!
//! gmq-redis misreads some requests. dq refuses them. For example, gmq-redis reads a delay that is not a number as 0,
//! and would deliver the job at once.

mod decoder;
mod fields;
mod request;
mod response;

pub use self::decoder::{GmqDecodeError, GmqDecoder};
pub use self::request::{Call, GmqRequest, POP_TOPICS_MAX, Push, RequestId, RpcError};
pub use self::response::{GmqResponse, PoppedJob};

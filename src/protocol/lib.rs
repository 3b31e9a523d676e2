//! The wire protocol of dq-server: bytes to commands, and answers to bytes.
//!
//! Everything here is pure: no I/O, no store, no clock. A parser reports what is wrong with a request; it never decides
//! what a connection does next.
//!
//! Begin with [`dq::parse`].

pub mod dq;
mod fix_time;

pub use fix_time::LocalClock;

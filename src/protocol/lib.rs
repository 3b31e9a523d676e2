//! The wire protocols of TCP clients. This crate turns bytes into commands, and answers into bytes.
//!
//! Everything here is pure: no I/O, no store, no clock. A parser reports what is wrong with a request; it never decides
//! what a connection does next.
//!
//! Begin with [`dq::parse`]. [`beanstalk`] and [`gmq`] are the protocols of other servers, for the clients of these
//! servers.

pub mod beanstalk;
mod bounded;
pub mod dq;
mod fix_time;
pub mod gmq;

pub use fix_time::LocalClock;

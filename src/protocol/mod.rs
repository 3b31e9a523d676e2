//! Pure codecs: bytes ↔ commands. No I/O, no store.

pub mod dq;
mod fix_time;

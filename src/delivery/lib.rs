//! What dq sends: the callbacks of jobs, and alerts to people.
//!
//! This crate owns the HTTP request of a delivery, its signature, its connection and the judgement of the answer. It
//! never touches the store: it gets a job and returns the outcome. Begin with [`callback::Caller`].

pub mod alert;
pub mod callback;

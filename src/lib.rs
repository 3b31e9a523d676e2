//! dq, a delay-queue daemon: a business system hands it a job with a due time, and dq calls the business's webhook
//! when the time has come, retries until it is accepted, and loses nothing, whatever dies.
//!
//! The map, from the bottom up; a module uses only what stands above its own group in this list:
//!
//! - pure: [`job`], [`json_time`], [`topic`], [`retry`], [`fair`], [`flow`], [`fields`], [`headers`], [`letters`], [`ticket`], [`rendezvous`],
//!   [`slot`], [`settings`], [`status`], [`php_node`], [`scope`], [`password`], [`token`], [`session`], [`audit`], [`strikes`], [`metrics`], [`expression`], [`guard`],
//!   [`notice`], [`excerpt`], [`refusals`]
//! - one concern each: [`config`], [`process`], [`store`], [`registry`], [`callback`], [`protocol`], [`counters`], [`history`], [`alert`]
//! - what every child shares: [`role`]; what both servers do: [`submit`]
//! - on top: [`roles`], [`supervisor`], [`cli`]

pub mod alert;
pub mod audit;
pub mod callback;
pub mod cli;
pub mod config;
pub mod counters;
pub mod excerpt;
pub mod expression;
pub mod fair;
pub mod fields;
pub mod flow;
pub mod guard;
pub mod headers;
pub mod history;
pub mod job;
pub mod json_time;
pub mod letters;
pub mod metrics;
pub mod notice;
pub mod password;
pub mod php_node;
pub mod process;
pub mod protocol;
pub mod refusals;
pub mod registry;
pub mod rendezvous;
pub mod retry;
pub mod role;
pub mod roles;
pub mod scope;
pub mod session;
pub mod settings;
pub mod slot;
pub mod status;
pub mod store;
pub mod strikes;
pub mod submit;
pub mod supervisor;
pub mod ticket;
pub mod token;
pub mod topic;

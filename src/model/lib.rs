//! The domain of dq: ids, states, due times, policies, the settings of a topic, and permissions. Everything here is
//! pure: no I/O, no clock, no thread. A function that depends on the current time gets it as an argument.
//!
//! Begin with [`job`] and [`topic`]. [`retry`], [`fair`] and [`flow`] decide which jobs are delivered when.

pub mod audit;
pub mod bulk;
pub mod destination;
pub mod disk_room;
pub mod excerpt;
pub mod expression;
pub mod failure_limiter;
pub mod fair;
pub mod fields;
pub mod flow;
pub mod follow;
pub mod guard;
pub mod headers;
pub mod job;
pub mod job_filter;
mod job_parts;
pub mod job_priority;
pub mod json_time;
pub mod late_start;
pub mod letters;
mod links;
pub mod metrics;
pub mod notice;
pub mod open_connections;
pub mod password;
pub mod php_node;
pub mod quota;
pub mod record;
pub mod refusals;
pub mod rendezvous;
pub mod retry;
pub mod scope;
pub mod session;
pub mod settings;
pub mod slot;
pub mod status;
pub mod strict_json;
pub mod tags;
pub mod ticket;
pub mod token;
pub mod topic;
pub mod waiting;

//! The tests of the whole daemon, in one executable. Each executable links all of dq, so many of them would take longer
//! to build than to run.

#![allow(missing_docs)]

mod alerts;
mod as_php;
mod auth;
mod backup;
mod bells;
mod bench;
mod bulk;
mod callback;
mod cli;
mod clocks;
mod codecs;
mod console;
mod console_browser;
mod console_bulk;
mod console_forms;
mod counts;
mod daemon;
mod dead;
mod destinations;
mod durability;
mod export;
mod failover;
mod free_pages;
mod half_taken;
mod hostile;
mod hostile_minute;
mod http;
mod http_topics;
mod import;
mod import_checks;
mod import_crashes;
mod later;

mod letters;
mod levels;
mod live_topics;
mod losses;
mod metrics;
mod nodes;
mod openapi;
mod pull;
mod quotas;
mod receiver;
mod record_crashes;
mod records;
mod redis;
mod refusals;
mod registry_contract;
mod restart;
mod rotation;
mod servers;
mod sinks;
mod snippets;
mod sources;
mod spool;
mod spool_shown;
mod store_contract;
mod stranded;
mod supervision;
mod support;
mod tags;
mod topic_settings;
mod unanswered;

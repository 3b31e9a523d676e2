//! `dq listen`: shows the callbacks that arrive.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;

use super::receiver::{Answer, Receiver};
use super::show::short_span;

/// Listen for callbacks, print each with its lateness, and accept it
///
/// Register a topic with the printed URL as its callback to see what dq sends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  dq listen\n  dq listen --listen 127.0.0.1:9001 --status 503")]
pub struct Arguments {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS")]
    listen: SocketAddr,

    /// The status to answer with
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
}

/// Runs until it is interrupted.
pub fn run(arguments: &Arguments) -> Result<()> {
    let status = arguments.status;
    let show = move |call: super::Call| {
        let late = call.late_ms().map_or(String::new(), |ms| format!(" {} late", short_span(ms as f64)));
        let query = if call.query.is_empty() { String::new() } else { format!("?{}", call.query) };
        let job = format!(
            "{}:{} attempt {}",
            call.header("dq-topic"),
            call.header("dq-job-id"),
            call.header("dq-attempt")
        );
        println!("{} {}{query} {job}{late}: {}", call.method, call.path, call.body);
        Answer::new(status, "ok\n")
    };
    let receiver = Receiver::start(arguments.listen, Arc::new(show))
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("listening: http://{}/", receiver.address);
    loop {
        std::thread::park();
    }
}

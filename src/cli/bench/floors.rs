//! What the same work costs without dq: a program that only inserts into SQLite, an HTTP handler that does nothing, a
//! thread that only sleeps. [`super::workloads::RedisFloorWorkload`] and [`super::workloads::DirectCallWorkload`] are
//! floors as well.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use hdrhistogram::Histogram;
use rusqlite::{Connection, TransactionBehavior, params};

use super::super::own_daemon::local;
use super::load::histogram;
use super::workloads::JobTemplate;

/// Inserts jobs into SQLite during `time`. Each transaction inserts `commit` jobs. Each commit is written to the disk.
/// A row has the topic, the id, the due time and the body. Indexes find rows by topic and id, and by due time. Returns
/// how many jobs were inserted a second.
pub(super) fn sqlite(folder: &Path, jobs: &JobTemplate, commit: u64, time: Duration) -> Result<f64> {
    let mut db = Connection::open(folder.join("bare.db")).context("cannot open the file to compare with")?;
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS job (topic TEXT NOT NULL, id TEXT NOT NULL, due_ms INTEGER NOT NULL, body TEXT NOT NULL,
                           PRIMARY KEY (topic, id));
         CREATE INDEX IF NOT EXISTS job_by_due ON job (due_ms);",
    )?;
    let (mut number, began) = (0, Instant::now());
    while began.elapsed() < time {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)")?;
            for _ in 0..commit {
                let (id, due_ms) = (jobs.id(number), host::now_ms() + jobs.delay(number) as i64);
                insert.execute(params![jobs.topic(number), id, due_ms, jobs.body])?;
                number += 1;
            }
        }
        transaction.commit()?;
    }
    Ok(number as f64 / began.elapsed().as_secs_f64())
}

/// Returns a handler that answers an add at once.
pub(super) fn handler() -> Router {
    // The handler reads the body, because every server must read a request before it answers.
    let nothing = |_body: axum::body::Bytes| async { (StatusCode::CREATED, "{}") };
    Router::new().route("/v1/topics/{topic}/jobs", post(nothing))
}

/// Starts a server on a thread with this name. It ends with the process.
pub(super) fn serve(name: &'static str, router: Router) -> Result<SocketAddr> {
    let listener = TcpListener::bind(local(0)).with_context(|| format!("cannot start the {name}"))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = async move { axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await };
    std::thread::Builder::new().name(name.into()).spawn(move || {
        if let Err(e) = runtime.block_on(serve) {
            eprintln!("the {name} has ended: {e}");
        }
    })?;
    Ok(address)
}

/// A thread that only sleeps, a millisecond at a time.
#[derive(Debug)]
pub(super) struct SleepFloor {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Histogram<u64>>,
}

impl SleepFloor {
    pub(super) fn start() -> Result<SleepFloor> {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("sleeper".into()).spawn(move || {
            let (mut late_us, step) = (histogram(), Duration::from_millis(1));
            while !is_over.load(Ordering::Relaxed) {
                let due = Instant::now() + step;
                std::thread::sleep(step);
                late_us.saturating_record(due.elapsed().as_micros().max(1) as u64);
            }
            late_us
        })?;
        Ok(SleepFloor { over, thread })
    }

    /// Ends the thread. Returns how much later than planned the thread woke up, in microseconds. No program on this
    /// machine can be more punctual.
    pub(super) fn end(self) -> Result<Histogram<u64>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that sleeps has panicked"))
    }
}

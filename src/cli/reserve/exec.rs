//! `dq reserve --exec`: runs a command for each job. Each worker is a thread with one job at a time.
//!
//! At SIGTERM or SIGINT the waiting requests are ended. If dq-http-server still leases a job for such a request, it
//! hands the job back. Workers finish the jobs that they have, and report them. If a worker is killed, its job is not
//! lost. The job can be reserved again when its lease has ended.

use std::io::{Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::super::api::Api;
use super::super::failure::Failure;
use super::super::show::plain;
use super::super::target::TargetOptions;
use super::{MARGIN, ReserveOptions, ReservedJob, WAIT_MAX, reserve, span};
use host::{Signals, now_ms, wait_readable};

/// How long a request for a job waits.
const WAIT: Duration = Duration::from_secs(10);

/// How long a worker waits after a failure before it sends the next request.
const AGAIN: Duration = Duration::from_secs(1);

/// The shortest and the longest pause between two extensions of a lease, if the client does not set the length of the
/// lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// The output of a command is read for this long after the command has ended. A process that the command started may
/// keep the pipe open.
const OUTPUT_AFTER: Duration = Duration::from_secs(1);

/// How many bytes of a command's output are kept as its answer.
const OUTPUT_KEPT: usize = 4096;

/// Runs commands until a signal comes. Returns true after a signal. Returns an error if a worker has failed.
pub(super) fn run(at: &TargetOptions, wanted: ReserveOptions, command: &str, workers: u32) -> Result<bool> {
    let consumer = wanted.consumer.clone().or_else(own_name);
    let wanted = ReserveOptions { consumer, ..wanted };
    let mut signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGINT]).context("cannot catch signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (failed, failures) = channel::<anyhow::Error>();
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    // The requests that wait for jobs use a separate client, because this client is shut down before the last reports
    // are sent.
    let reserves = Arc::new(Api::patient(at, WAIT_MAX + MARGIN)?);
    let (ended, wakes) = std::os::unix::net::UnixStream::pair().context("cannot make a pipe")?;
    for _ in 0..workers {
        let worker = ExecWorker {
            api: Api::patient(at, WAIT_MAX + MARGIN)?,
            reserves: Arc::clone(&reserves),
            wanted: wanted.clone(),
            command: command.to_owned(),
            stop: Arc::clone(&stop),
        };
        let (failed, wakes) = (failed.clone(), wakes.try_clone().context("cannot make a pipe")?);
        threads.push(std::thread::spawn(move || {
            if let Err(e) = worker.work() {
                let _ = failed.send(e);
                let _ = (&wakes).write(&[1]);
            }
        }));
    }
    drop(failed);
    loop {
        wait_readable(&[std::os::fd::AsFd::as_fd(&signals), std::os::fd::AsFd::as_fd(&ended)], None)?;
        let has_failed = failures.try_recv();
        if has_failed.is_ok() || !signals.take()?.is_empty() {
            stop.store(true, Ordering::SeqCst);
            reserves.shut_down();
            eprintln!("the commands that run are finished first");
            threads.into_iter().for_each(|thread| drop(thread.join()));
            return match has_failed {
                Ok(e) => Err(e),
                Err(_) => Ok(true),
            };
        }
    }
}

/// The name of this client: its host and its process.
fn own_name() -> Option<String> {
    let host = nix::unistd::gethostname().ok()?.into_string().ok()?;
    Some(format!("{host}:{}", std::process::id()))
}

struct ExecWorker {
    api: Api,
    reserves: Arc<Api>,
    wanted: ReserveOptions,
    command: String,
    stop: Arc<AtomicBool>,
}

impl ExecWorker {
    /// Works until it must stop. Fails if the daemon refuses its requests.
    fn work(&self) -> Result<()> {
        let must_stop = || self.stop.load(Ordering::SeqCst);
        while !must_stop() {
            let jobs = match reserve(&self.reserves, &self.wanted, 1, WAIT) {
                Ok(jobs) => jobs,
                // The request was ended, and has taken no job.
                Err(_) if must_stop() => break,
                Err(e) if is_final(&e) => return Err(e),
                Err(e) => {
                    eprintln!("cannot reserve: {e:#}");
                    std::thread::sleep(AGAIN);
                    continue;
                }
            };
            for job in jobs {
                self.handle(&serde_json::from_str(job.get())?);
            }
        }
        Ok(())
    }

    /// Runs the command for a job, and reports how it ended.
    fn handle(&self, job: &ReservedJob) {
        let name = format!("{}:{}", job.topic, plain(&job.id));
        let (verb, more): (&str, Vec<(&str, Value)>) = match self.run_command(job) {
            Ok((status, output)) if status.success() => ("ack", vec![("answer", json!(output))]),
            Ok((status, output)) => {
                let reason = match output.is_empty() {
                    true => status.to_string(),
                    false => format!("{status}: {output}"),
                };
                eprintln!("{name}: {}", plain(&reason));
                ("nack", vec![("reason", json!(reason))])
            }
            Err(e) => {
                eprintln!("{name}: {e:#}");
                ("nack", vec![("reason", json!(format!("{e:#}")))])
            }
        };
        let Some(token) = &job.token else { return println!("{verb}: {name} (it was removed before)") };
        for _ in 0..5 {
            match job.report(&self.api, token, verb, &more) {
                Ok(answer) => return println!("{}: {name}", answer["outcome"].as_str().unwrap_or_default()),
                Err(e) if is_final(&e) => return eprintln!("{name}: cannot report {verb}: {e:#}"),
                // The report is sent again. A report that was already recorded gets the same answer.
                Err(e) => eprintln!("{name}: cannot report {verb} yet: {e:#}"),
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn run_command(&self, job: &ReservedJob) -> Result<(ExitStatus, String)> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command);
        command.env("DQ_TOPIC", &job.topic).env("DQ_ID", &job.id);
        command.env("DQ_ATTEMPT", job.attempt.to_string()).env("DQ_DUE_MS", job.due_ms.to_string());
        command.env("DQ_TAGS", job.tags.join(",")).env("DQ_HEADERS", json!(job.headers).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // The command has its own process group. So a signal from the terminal reaches only dq, which lets the command
        // finish.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().context("cannot run the command")?;
        std::thread::scope(|scope| {
            let (done, ends) = channel::<()>();
            scope.spawn(move || self.keep_lease(job, &ends));
            let stdin = child.stdin.take();
            scope.spawn(move || {
                // The command need not read its stdin. If the command has ended, the write fails. This failure is
                // ignored.
                let _ = stdin.map(|mut stdin| stdin.write_all(job.body.get().as_bytes()));
            });
            let ended = outcome(&mut child);
            drop::<Sender<()>>(done);
            ended
        })
    }

    /// Extends the lease again and again while the command runs. The pause between two extensions is half of the lease.
    /// If the client does not set the length of the lease, the pause also stays within [`PAUSES`].
    fn keep_lease(&self, job: &ReservedJob, ends: &std::sync::mpsc::Receiver<()>) {
        let (Some(token), Some(until_ms)) = (&job.token, job.lease_until_ms) else { return };
        let left = |until_ms: i64| Duration::from_millis((until_ms - now_ms()).max(100) as u64);
        let lease = self.wanted.lease;
        // The clock of this host may differ from the clock of the store, so `lease_until_ms` is only a hint.
        let pause = lease.map_or_else(|| (left(until_ms) / 2).clamp(PAUSES.0, PAUSES.1), |lease| lease / 2);
        let fields: Vec<(&str, Value)> =
            lease.map(|lease| ("lease", json!(span(lease)))).into_iter().collect();
        while ends.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            if let Err(e) = job.report(&self.api, token, "extend", &fields) {
                eprintln!("{}:{}: cannot extend the lease: {e:#}", job.topic, plain(&job.id));
            }
        }
    }
}

/// Waits for the end of a command. Returns the first bytes of its output. Further output is read and dropped.
fn outcome(child: &mut Child) -> Result<(ExitStatus, String)> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (done, ends) = channel::<()>();
    if let Some(mut stdout) = child.stdout.take() {
        let kept = Arc::clone(&kept);
        std::thread::spawn(move || {
            let mut part = [0; OUTPUT_KEPT];
            while let Ok(count @ 1..) = stdout.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = OUTPUT_KEPT - kept.len();
                kept.extend_from_slice(&part[..count.min(room)]);
            }
            drop(done);
        });
    }
    let status = child.wait().context("cannot wait for the command")?;
    let _ = ends.recv_timeout(OUTPUT_AFTER);
    let output = kept.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((status, String::from_utf8_lossy(&output).trim().to_owned()))
}

/// Whether the same request would be refused again.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Failure>() {
        Some(Failure::Refused(problem)) => problem.status < 500 && problem.status != 429,
        Some(Failure::Usage(_)) => true,
        _ => false,
    }
}

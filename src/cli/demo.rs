//! `dq demo`: starts the daemon in a new folder with its own webhook receiver, adds a few jobs, and prints each
//! delivery with its lateness.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver as Events, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::sys::signal::Signal;
use serde_json::json;

use super::TcpClient;
use super::api::Api;
use super::own_daemon::{DaemonProcess, TemporaryFolder, free_port, local};
use super::receiver::{CallbackReceiver, HandlerAnswer, ReceivedRequest};
use super::show::short_span;
use super::target::TargetOptions;
use host::{Signals, random_name, wait_readable};
use protocol::dq::Framing;

/// Start dq with the embedded store in a new folder, and watch how jobs are delivered
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq demo --once")]
pub struct DemoArguments {
    /// End when all jobs have arrived (exit code 0), or when the time is up and some are missing (exit code 1)
    #[arg(long)]
    once: bool,
}

/// How long all deliveries together may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// The job that the receiver refuses at first, and the number of refusals.
const STUBBORN: (&str, u32) = ("order-3", 2);

/// How many jobs are added. They are due after 1, 2, 3 … seconds.
const JOBS: u32 = 5;

/// What the receiver did with a callback.
enum DemoReceiverAnswer {
    Accepted(String),
    Refused,
}

/// Runs the demo.
pub fn run(arguments: &DemoArguments) -> Result<()> {
    let mut signals =
        Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]).context("cannot catch signals")?;
    let folder = TemporaryFolder::fresh("demo", None)?;
    let (tell, answers) = channel();
    let receiver =
        CallbackReceiver::start(local(0), Arc::new(receive(tell))).context("cannot start the receiver")?;
    let port = free_port()?;
    // Without --once, a person watches. This person may also want to open the console.
    let console = if arguments.once { None } else { Some(free_port()?) };
    std::fs::write(folder.0.join("dq.toml"), configuration(port, console, receiver.address))?;
    println!("a fresh folder: {}", folder.0.display());
    let mut daemon = DaemonProcess::start(&folder)?;
    println!("dq-master runs as process {}", daemon.pid().unwrap_or_default());
    hand_in(port, &mut daemon)?;
    if let Some(port) = console {
        let password = open_console(&folder, &mut daemon)?;
        println!("the console is at http://127.0.0.1:{port}/: sign in as admin with the password {password}");
    }
    let arrived = watch(&answers, &mut signals, &mut daemon, arguments.once, port)?;
    daemon.stop()?;
    match arrived {
        Some(missing) if !missing.is_empty() => bail!("not all jobs arrived: {missing:?} are missing"),
        _ => Ok(()),
    }
}

fn configuration(port: u16, console: Option<u16>, receiver: SocketAddr) -> String {
    let console = console.map(|port| local(port).to_string()).unwrap_or_default();
    format!(
        "# Made by `dq demo`.\n\
         [server]\nlisten = \"127.0.0.1:{port}\"\n\
         [http]\nlisten = \"{console}\"\n\
         [[topic]]\nname = \"orders\"\ncallback = \"http://{receiver}/hook\"\nretry = [\"500ms\", \"1s\"]\n"
    )
}

/// Returns the receiver's handler. It accepts every job except the stubborn one, which it refuses at first.
fn receive(tell: Sender<DemoReceiverAnswer>) -> impl Fn(ReceivedRequest) -> HandlerAnswer {
    let refused: Mutex<HashMap<String, u32>> = Mutex::default();
    move |call| {
        let id = call.header("dq-job-id").to_owned();
        let late = short_span(call.late_ms().unwrap_or_default() as f64);
        let line = format!("{id}  attempt {}  {late:>6} late  {}", call.header("dq-attempt"), call.body);
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        let times = refused.entry(id.clone()).or_default();
        if id == STUBBORN.0 && *times < STUBBORN.1 {
            *times += 1;
            println!("refused    {line}");
            let _ = tell.send(DemoReceiverAnswer::Refused);
            return HandlerAnswer::new(503, "not yet\n");
        }
        println!("delivered  {line}");
        let _ = tell.send(DemoReceiverAnswer::Accepted(id));
        HandlerAnswer::new(200, "ok\n")
    }
}

/// Gives the console's account `admin` a random password, and returns it.
fn open_console(folder: &TemporaryFolder, daemon: &mut DaemonProcess) -> Result<String> {
    let at = TargetOptions { run_dir: Some(folder.0.join("var/run")), ..TargetOptions::default() };
    let password = random_name()?;
    let account = json!({ "role": "admin", "password": password });
    let until = Instant::now() + PATIENCE;
    loop {
        match Api::from_options(&at).and_then(|api| api.ask("PUT", "/v1/accounts/admin", &account)) {
            Ok(_) => return Ok(password),
            Err(e) if Instant::now() > until => return Err(e).context("dq-http-server does not answer"),
            Err(_) if daemon.has_ended()? => bail!("dq-master has ended; RUST_LOG=info tells more"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Adds the jobs over TCP, as a business system would.
fn hand_in(port: u16, daemon: &mut DaemonProcess) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut client = loop {
        match TcpClient::connect(local(port), Framing::Digits) {
            Ok(client) => break client,
            Err(e) if Instant::now() > until => return Err(e).context("dq-server does not answer"),
            Err(_) if daemon.has_ended()? => bail!("dq-master has ended; RUST_LOG=info tells more"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    for n in 1..=JOBS {
        let id = format!("order-{n}");
        let body = json!({ "order": n, "do": "close if unpaid" });
        let add = json!({ "cmd": "add", "topic": "orders", "id": id, "delay_ms": n * 1000, "body": body });
        let answer = client.ask(&add)?;
        if answer["code"] != 1 {
            bail!("{id} was not taken: {answer}");
        }
        println!("handed in  {id}  due in {n} s");
    }
    Ok(())
}

/// Watches deliveries. With `once`, ends when all jobs have arrived or the time is up, and returns the jobs that are
/// missing. Without `once`, ends at a signal, and returns `None`.
fn watch(
    answers: &Events<DemoReceiverAnswer>,
    signals: &mut Signals,
    daemon: &mut DaemonProcess,
    once: bool,
    port: u16,
) -> Result<Option<Vec<String>>> {
    use std::os::fd::AsFd;
    let mut missing: BTreeMap<String, ()> = (1..=JOBS).map(|n| (format!("order-{n}"), ())).collect();
    let (mut refusals, mut told_all) = (0, false);
    let until = Instant::now() + PATIENCE;
    loop {
        for event in answers.try_iter() {
            match event {
                DemoReceiverAnswer::Accepted(id) => drop(missing.remove(&id)),
                DemoReceiverAnswer::Refused => refusals += 1,
            }
        }
        let all = missing.is_empty() && refusals == STUBBORN.1;
        if once && (all || Instant::now() > until) {
            if all {
                println!("all {JOBS} jobs have arrived, one of them after {refusals} refusals");
            }
            return Ok(Some(missing.into_keys().collect()));
        }
        if all && !told_all {
            told_all = true;
            println!(
                "all have arrived; hand in more on 127.0.0.1:{port} with topic \"orders\", or end with Ctrl-C"
            );
        }
        wait_readable(&[signals.as_fd()], Some(Instant::now() + Duration::from_millis(50)))?;
        if daemon.has_ended()? {
            bail!("dq-master has ended; RUST_LOG=info tells more");
        }
        if !signals.take()?.is_empty() {
            return Ok(None);
        }
    }
}

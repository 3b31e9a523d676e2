//! One delivery: the request, the addresses that may be called, and how the answer is judged. docs/CALLBACKS.md
//! describes the callbacks for receivers.
//!
//! All calls of a process run on one thread, as tasks. So a call that waits for its receiver needs no thread, and no
//! switch between threads.

mod call;
mod connect;
mod connection;
mod failure;
mod guarded;
mod judge;
mod request;
mod resolve;
mod sign;
mod tls;
mod verify;

use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hyper::http::Uri;
use jiff::tz::TimeZone;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{self, timeout_at};

pub use guarded::guarded_agent;
pub use judge::{RETRY_AFTER_MAX, Verdict};
pub use sign::signatures;

pub use model::guard::GuardRules;

use self::call::{CallContext, now_us};
use self::connection::IDLE;
use self::resolve::{CachedResolver, NoAddress};
use model::destination::Destination;
use model::guard::refusal;
use model::job::{Attempt, Body, JobKey};
use model::settings::CallbackSettings;
use model::topic::{Failure, Topic};

/// How long to wait for the end of a call after its timeout has passed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job to deliver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The topic and the id of the job.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// When this attempt was due, in Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, in Unix microseconds. With topic and id, it identifies the job over all its attempts.
    pub stamp_us: i64,
    /// The job's own headers, for example `traceparent`. They do not replace headers of the topic with the same name.
    pub headers: Vec<(String, String)>,
    /// Where the job is sent. None: to the callback of its topic.
    pub destination: Option<Destination>,
    /// The URL where the receiver may report the outcome later. None: the receiver cannot report later.
    pub ack_url: Option<String>,
}

/// A call that has ended.
#[derive(Debug)]
pub struct CompletedCall {
    /// How the answer was judged.
    pub verdict: Verdict,
    /// The attempt, as it is kept with the job.
    pub attempt: Attempt,
    /// When the call began, in Unix microseconds.
    pub began_us: i64,
    /// How long the call took.
    pub took: Duration,
    /// What was sent and received, if the call was a test. None: it was not a test.
    pub seen: Option<Box<CallTranscript>>,
}

/// What a test sent and received, for people. Credentials are left out.
#[derive(Debug, Default)]
pub struct CallTranscript {
    /// Method and target, such as `POST /hook?shop=7`. Empty: the request was not sent.
    pub request: String,
    /// The headers of the request, in no particular order.
    pub headers: Vec<(String, String)>,
    /// The body of the request.
    pub body: String,
    /// The headers of the answer.
    pub answer_headers: Vec<(String, String)>,
}

/// Called when a call has ended, on the thread of the calls.
type OnCompletion = Box<dyn FnOnce(CompletedCall) + Send>;

/// A call to make.
pub struct Call {
    /// The topic as it is now.
    pub topic: Arc<Topic>,
    /// The job to deliver.
    pub delivery: Delivery,
    /// Whether the call is a test. The request of a test has the header `dq-test: 1`.
    pub is_test: bool,
    /// The moment from which the timeout of the topic counts. If the timeout has passed before the request can be sent
    /// (because the process was stopped), the request is not sent.
    pub began: Instant,
    /// Called when the call has ended.
    pub on_completion: OnCompletion,
}

/// Makes deliveries. There is one per process.
#[derive(Debug)]
pub struct Caller {
    calls: UnboundedSender<Vec<Call>>,
    resolver: CachedResolver,
}

impl Caller {
    /// Makes a caller that keeps up to `idle` idle connections to a receiver, and writes times in `zone`.
    pub fn new(idle: u32, settings: &CallbackSettings, zone: TimeZone) -> io::Result<Caller> {
        Caller::with_notifier(idle, settings, zone, || {})
    }

    /// Makes a caller that also calls `some_ended` on the thread of the calls when calls have ended. If several calls
    /// end at the same moment, `some_ended` is called once for all of them.
    pub fn with_notifier(
        idle: u32,
        settings: &CallbackSettings,
        zone: TimeZone,
        some_ended: impl Fn() + Send + 'static,
    ) -> io::Result<Caller> {
        let resolver = CachedResolver::new(GuardRules::new(settings));
        let calls = Arc::new(CallContext::new(idle as usize, settings, zone, resolver.clone()));
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (sender, receiver) = unbounded_channel();
        let work = move || {
            let _vital = ExitOnPanic;
            runtime.spawn(report_ended(Arc::clone(&calls), some_ended));
            runtime.block_on(make_all(&calls, receiver));
        };
        std::thread::Builder::new().name("calls".to_owned()).spawn(work)?;
        Ok(Caller { calls: sender, resolver })
    }

    /// Starts some calls.
    pub fn begin(&self, calls: Vec<Call>) {
        // The thread ends only when the last sender is dropped, or with the whole process. So it still runs here.
        let handed = self.calls.send(calls);
        debug_assert!(handed.is_ok(), "the thread of the calls has ended");
    }

    /// Makes one delivery, and waits for its end. The wait ends at the latest half a minute after the topic's timeout.
    pub fn call(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        let ended = self.make(topic, delivery, false);
        (ended.verdict, ended.attempt)
    }

    /// Makes a call like a delivery. The header `dq-test: 1` tells the receiver that the call is a test.
    pub fn test(&self, topic: &Topic, delivery: &Delivery) -> CompletedCall {
        self.make(topic, delivery, true)
    }

    fn make(&self, topic: &Topic, delivery: &Delivery, is_test: bool) -> CompletedCall {
        let (sender, ended) = mpsc::channel();
        let on_completion = Box::new(move |ended| {
            // This fails only if the caller of `make` no longer waits for the result.
            let _ = sender.send(ended);
        });
        let (topic, delivery) = (Arc::new(topic.clone()), delivery.clone());
        let (number, patience) = (delivery.attempt, topic.timeout + PATIENCE);
        self.begin(vec![Call { topic, delivery, is_test, began: Instant::now(), on_completion }]);
        ended.recv_timeout(patience).unwrap_or_else(|_| aborted_call(number, "the call did not end"))
    }

    /// Returns why a URL would not be called: its host has addresses, and the guard denies all of them. If the
    /// addresses are not known after the time `within`, the URL is not refused. The host is looked up again when the
    /// URL is called.
    pub fn denies(&self, url: &str, within: Duration) -> Option<String> {
        let uri: Uri = url.parse().ok()?;
        match self.resolver.allowed(uri.host()?, Some(within)) {
            Err(NoAddress::Denied { address, why }) => Some(refusal(url, address, why)),
            _ => None,
        }
    }
}

/// Ends the process on a panic, because a process that can make no calls is useless. The master then starts a new
/// process.
struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Makes calls until the last sender of calls is dropped.
async fn make_all(calls: &Arc<CallContext>, mut asked: UnboundedReceiver<Vec<Call>>) {
    // The next time to close connections that have been idle for too long. None: there are no idle connections.
    let mut tidy_at: Option<time::Instant> = None;
    loop {
        let next = match tidy_at {
            Some(at) => timeout_at(at, asked.recv()).await,
            None => Ok(asked.recv().await),
        };
        match next {
            Ok(None) => return,
            Ok(Some(some)) => {
                for call in some {
                    tokio::spawn(make_one(Arc::clone(calls), call));
                }
                tidy_at = tidy_at.or_else(|| Some(time::Instant::now() + IDLE));
            }
            Err(_) => tidy_at = calls.close_idle().then(|| time::Instant::now() + IDLE),
        }
    }
}

async fn make_one(calls: Arc<CallContext>, call: Call) {
    let Call { topic, delivery, is_test, began, on_completion } = call;
    let _flying = calls.begin();
    let mut guard = CompletionGuard { on_completion: Some(on_completion), number: delivery.attempt };
    let ended = calls.make(&topic, &delivery, is_test, began).await;
    if let Some(on_completion) = guard.on_completion.take() {
        on_completion(ended);
    }
}

/// Reports that calls have ended. When a call ends, this task runs only after all other tasks that are ready to run. So
/// calls that end at the same moment are reported together.
async fn report_ended(calls: Arc<CallContext>, some_ended: impl Fn()) {
    loop {
        calls.wait_for_ended().await;
        some_ended();
    }
}

/// Turns a panic in a call into a failed attempt of its job, so that other calls continue.
struct CompletionGuard {
    on_completion: Option<OnCompletion>,
    number: u32,
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(on_completion) = self.on_completion.take()
        {
            on_completion(aborted_call(self.number, "the delivery panicked; see the log"));
        }
    }
}

fn aborted_call(number: u32, why: &str) -> CompletedCall {
    let (began_us, answer, error) = (now_us(), String::new(), why.to_owned());
    let attempt =
        Attempt { number, at_ms: began_us / 1000, took_ms: 0, status: None, answer, error, late: None };
    let verdict = Verdict::Failed { kind: Failure::Broken, reason: why.to_owned(), retry_after: None };
    CompletedCall { verdict, attempt, began_us, took: Duration::ZERO, seen: None }
}

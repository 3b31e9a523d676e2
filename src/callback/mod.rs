//! One delivery: the request, who may be called, and how the answer is judged. docs/CALLBACKS.md tells it to those who receive.
//!
//! All calls of a process run on one thread, as tasks: what waits for a receiver costs neither a thread nor a switch between them.

mod call;
mod connect;
mod failure;
mod guarded;
mod judge;
mod line;
mod request;
mod resolve;
mod sign;
mod tls;

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hyper::http::Uri;
use jiff::tz::TimeZone;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

pub use guarded::guarded_agent;
pub use judge::{RETRY_AFTER_MAX, Verdict};
pub use sign::signatures;

pub use crate::guard::Rules;

use self::call::{Calls, now_us};
use self::line::IDLE;
use self::resolve::{Cached, NoAddress};
use crate::guard::refusal;
use crate::job::{Attempt, Body, JobKey};
use crate::settings::Callback;
use crate::topic::{Failure, Topic};

/// How much longer than a call may take its end is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job to deliver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Topic and id.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When it was due, Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, Unix microseconds: with topic and id it names the job over all its attempts.
    pub stamp_us: i64,
    /// The job's own headers, which win over the topic's; `traceparent` is one of them.
    pub headers: Vec<(String, String)>,
    /// Where the receiver may tell later what came of it; none: it may not.
    pub ack_url: Option<String>,
}

/// A call that ended.
#[derive(Debug)]
pub struct Ended {
    /// How the answer was judged.
    pub verdict: Verdict,
    /// What is kept of it.
    pub attempt: Attempt,
    /// When it began, Unix microseconds.
    pub began_us: i64,
    /// How long it took.
    pub took: Duration,
    /// What went over the line, if it was a test.
    pub seen: Option<Box<Seen>>,
}

/// What a test sent and got, for people. What would let others in is left out.
#[derive(Debug, Default)]
pub struct Seen {
    /// Method and target, such as `POST /hook?shop=7`; empty: it was not sent.
    pub request: String,
    /// The request's headers, in no order.
    pub headers: Vec<(String, String)>,
    /// The request's body.
    pub body: String,
    /// The answer's headers.
    pub answer_headers: Vec<(String, String)>,
}

/// Who is told of a call's end, on the thread of the calls.
type Tell = Box<dyn FnOnce(Ended) + Send>;

/// A call to be made.
pub struct Call {
    /// As it is now.
    pub topic: Arc<Topic>,
    /// What is delivered.
    pub delivery: Delivery,
    /// The receiver learns that it is a test: `dq-test: 1`.
    pub is_test: bool,
    /// Who is told of its end.
    pub tell: Tell,
}

/// Makes deliveries. One per process.
#[derive(Debug)]
pub struct Caller {
    calls: UnboundedSender<Vec<Call>>,
    resolver: Cached,
}

impl Caller {
    /// A caller that keeps up to `idle` idle connections to a receiver, and writes times in `zone`.
    pub fn new(idle: u32, settings: &Callback, zone: TimeZone) -> io::Result<Caller> {
        Caller::telling(idle, settings, zone, || {})
    }

    /// One that says, on its thread, when calls have ended: once for all that end at the same moment.
    pub fn telling(
        idle: u32,
        settings: &Callback,
        zone: TimeZone,
        some_ended: impl Fn() + Send + 'static,
    ) -> io::Result<Caller> {
        let resolver = Cached::new(Rules::new(settings));
        let calls = Arc::new(Calls::new(idle as usize, settings, zone, resolver.clone()));
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (sender, receiver) = unbounded_channel();
        let work = move || {
            let _vital = Vital;
            runtime.spawn(tell_all(Arc::clone(&calls), some_ended));
            runtime.block_on(make_all(&calls, receiver));
        };
        std::thread::Builder::new().name("calls".to_owned()).spawn(work)?;
        Ok(Caller { calls: sender, resolver })
    }

    /// Begins some calls.
    pub fn begin(&self, calls: Vec<Call>) {
        // The thread ends with the last sender, and so not before this; or with the whole process.
        let handed = self.calls.send(calls);
        debug_assert!(handed.is_ok(), "the thread of the calls has ended");
    }

    /// Makes one delivery, and waits for its end. Takes no longer than the topic's timeout, by and large.
    pub fn call(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        let ended = self.make(topic, delivery, false);
        (ended.verdict, ended.attempt)
    }

    /// Calls as if for a delivery, and lets the receiver know that it is a test: `dq-test: 1`.
    pub fn test(&self, topic: &Topic, delivery: &Delivery) -> Ended {
        self.make(topic, delivery, true)
    }

    fn make(&self, topic: &Topic, delivery: &Delivery, is_test: bool) -> Ended {
        let (told, ended) = mpsc::channel();
        let tell = Box::new(move |ended| {
            // Who asked waits.
            let _ = told.send(ended);
        });
        let (topic, delivery) = (Arc::new(topic.clone()), delivery.clone());
        let (number, patience) = (delivery.attempt, topic.timeout + PATIENCE);
        self.begin(vec![Call { topic, delivery, is_test, tell }]);
        ended.recv_timeout(patience).unwrap_or_else(|_| broke_off(number, "the call did not end"))
    }

    /// Why a URL would not be called: its host has addresses, and the guard denies all of them. A host of which nothing can be
    /// found out within that time is no reason; it is looked up again when it is called.
    pub fn denies(&self, url: &str, within: Duration) -> Option<String> {
        let uri: Uri = url.parse().ok()?;
        match self.resolver.allowed(uri.host()?, Some(within)) {
            Err(NoAddress::Denied { address, why }) => Some(refusal(url, address, why)),
            _ => None,
        }
    }
}

/// A process whose calls cannot be made any more is of no use: it is started anew.
struct Vital;

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Makes calls until nobody can ask for more.
async fn make_all(calls: &Arc<Calls>, mut asked: UnboundedReceiver<Vec<Call>>) {
    // When connections are let go that have been idle for long; none: there are none.
    let mut tidy_at: Option<Instant> = None;
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
                tidy_at = tidy_at.or_else(|| Some(Instant::now() + IDLE));
            }
            Err(_) => tidy_at = calls.let_go().then(|| Instant::now() + IDLE),
        }
    }
}

async fn make_one(calls: Arc<Calls>, call: Call) {
    let Call { topic, delivery, is_test, tell } = call;
    let _flying = calls.begin();
    let mut untold = Untold { tell: Some(tell), number: delivery.attempt };
    let ended = calls.make(&topic, &delivery, is_test).await;
    if let Some(tell) = untold.tell.take() {
        tell(ended);
    }
}

/// Tells that calls have ended. Its turn comes after those of all that can go on when the first has ended, so that what ends
/// at the same moment is told together.
async fn tell_all(calls: Arc<Calls>, some_ended: impl Fn()) {
    loop {
        calls.some_ended().await;
        some_ended();
    }
}

/// A bug in a call is a failed attempt of its job, and no end of the others.
struct Untold {
    tell: Option<Tell>,
    number: u32,
}

impl Drop for Untold {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(tell) = self.tell.take()
        {
            tell(broke_off(self.number, "the delivery panicked; see the log"));
        }
    }
}

fn broke_off(number: u32, why: &str) -> Ended {
    let (began_us, answer, error) = (now_us(), String::new(), why.to_owned());
    let attempt = Attempt { number, at_ms: began_us / 1000, took_ms: 0, status: None, answer, error };
    let verdict = Verdict::Failed { kind: Failure::Broken, reason: why.to_owned(), retry_after: None };
    Ended { verdict, attempt, began_us, took: Duration::ZERO, seen: None }
}

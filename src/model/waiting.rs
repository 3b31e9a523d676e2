//! Why a job waits. Pure: the arguments are what is known about the job and its topic, and the result is the reasons.
//! Each reason has a code for programs and a sentence for people.

use std::fmt;

use serde::Serialize;

use crate::flow::POSTPONED_MAX;
use crate::job::{Attempt, State};
use crate::json_time::rfc3339;
use crate::topic::{Rate, TopicNonDeliveryReason};

/// If at least this part of a rate is used, the rate counts as a reason why jobs wait. A measurement over several
/// seconds never reaches a rate exactly.
const RATE_REACHED: f64 = 0.8;

/// What is known about a job.
#[derive(Debug, Clone, Copy)]
pub struct WaitingJob<'a> {
    /// Its state.
    pub state: State,
    /// When it is due, Unix milliseconds.
    pub due_ms: i64,
    /// How many attempts were begun.
    pub attempts: u32,
    /// The last attempt that is known.
    pub last: Option<&'a Attempt>,
    /// Whether the job is in the spool of this host.
    pub is_spooled: bool,
}

/// What is known about the topic of a job, and about the consumers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitingTopic {
    /// Why no jobs of the topic are delivered.
    pub undelivered: Option<TopicNonDeliveryReason>,
    /// The pause of the topic, if it is paused.
    pub pause: Option<Pause>,
    /// The circuit of the topic, if it is not closed.
    pub circuit: Option<UnclosedCircuit>,
    /// `max_in_flight`, if the topic has it.
    pub max_in_flight: Option<u32>,
    /// `rate`, if the topic has it.
    pub rate: Option<RateUse>,
    /// The host of the job's receiver, if this host has limits.
    pub host: Option<HostUse>,
    /// How many jobs of the topic are ready.
    pub ready: u64,
    /// How many jobs of the topic are leased.
    pub leased: u64,
    /// How many jobs of all topics are leased.
    pub leased_of_all: u64,
    /// How many callbacks the consumers of this host run at once.
    pub workers: u64,
}

/// How far the rate of a topic is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateUse {
    /// The rate.
    pub limit: Rate,
    /// How many callbacks began in one period of the rate, on this host. None: this is not known.
    pub used: Option<u64>,
    /// When the rate lets the next callback begin, Unix milliseconds. None: a callback may begin now, or this is not
    /// known.
    pub next_ms: Option<i64>,
}

impl RateUse {
    /// Whether jobs wait because of the rate. With a high rate, a callback may begin at some moments even while jobs
    /// wait. At such a moment, `next_ms` is None. So `used` is also checked.
    fn is_reached(&self) -> bool {
        let is_near = |used: u64| used as f64 >= f64::from(self.limit.jobs) * RATE_REACHED;
        self.next_ms.is_some() || self.used.is_some_and(is_near)
    }
}

/// How far the limits of a receiver's host are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUse {
    /// The name of the host in the configuration.
    pub name: String,
    /// How many callbacks may run at once.
    pub max_in_flight: Option<u32>,
    /// How many callbacks run, or have a permit to begin.
    pub in_flight: u32,
    /// How many callbacks may begin in a given time.
    pub rate: Option<Rate>,
    /// When the rate lets the next callback begin, Unix milliseconds. None: a callback may begin now.
    pub next_ms: Option<i64>,
}

impl HostUse {
    /// Returns the limit that makes jobs wait, if there is one.
    fn reached(&self) -> Option<WaitingReason> {
        let in_flight = self.max_in_flight.filter(|limit| self.in_flight >= *limit);
        let rate = self.rate.filter(|_| self.next_ms.is_some());
        let limit = match (in_flight, rate) {
            (Some(limit), _) => format!("max_in_flight = {limit}"),
            (None, Some(rate)) => format!("rate = {rate}"),
            (None, None) => return None,
        };
        Some(WaitingReason::HostLimit { host: self.name.clone(), limit })
    }
}

/// The pause of a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Who paused the topic, as in the audit log. None: this is not known, or the reader may not see it.
    pub by: Option<String>,
    /// When the topic was paused, Unix milliseconds. None: this is not known.
    pub since_ms: Option<i64>,
}

/// A circuit that is not closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnclosedCircuit {
    /// Since when the circuit is not closed, Unix milliseconds.
    pub since_ms: i64,
    /// When the pause of the circuit ends or ended, Unix milliseconds.
    pub until_ms: i64,
    /// Whether the circuit is half open: it lets one job through at a time.
    #[serde(skip)]
    pub is_half_open: bool,
    /// The failure that opened the circuit.
    pub reason: String,
}

/// A reason why a job waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum WaitingReason {
    /// The job is in the spool.
    Spooled,
    /// The job is not due yet.
    NotDue {
        /// When it is due, Unix milliseconds.
        due_ms: i64,
    },
    /// An attempt failed, and the next attempt is not due yet.
    Retry {
        /// The number of the attempt that failed.
        attempt: u32,
        /// Why the attempt failed.
        error: String,
        /// When the next attempt is due, Unix milliseconds.
        due_ms: i64,
    },
    /// The job is due, but no timer has made it ready yet.
    NotPromoted {
        /// When the job was due, Unix milliseconds.
        due_ms: i64,
    },
    /// The topic of the job is not registered.
    Unregistered,
    /// The topic of the job is held.
    Held {
        /// Why the topic is held.
        why: String,
    },
    /// The topic of the job has the mode `pull`.
    Pull,
    /// The topic of the job is paused.
    Paused(Pause),
    /// The circuit of the job's topic is open.
    CircuitOpen(UnclosedCircuit),
    /// The circuit of the job's topic is half open.
    CircuitHalfOpen(UnclosedCircuit),
    /// The topic of the job has as many jobs in flight as `max_in_flight` allows.
    MaxInFlight {
        /// The limit.
        limit: u32,
        /// How many jobs of the topic are leased.
        used: u64,
    },
    /// Callbacks of the job's topic begin as fast as the `rate` of the topic allows.
    Rate {
        /// The limit.
        limit: String,
        /// How many callbacks begin in one period of the rate, on this host. None: this is not known.
        used: Option<String>,
        /// When the rate lets the next callback begin, Unix milliseconds. None: callbacks begin nearly as fast as the
        /// rate allows.
        next_ms: Option<i64>,
    },
    /// The host of the job's receiver is at a limit. If the job is not due yet, it may have been postponed because of
    /// this limit.
    HostLimit {
        /// The host.
        host: String,
        /// The limit.
        limit: String,
    },
    /// This host has no consumer.
    NoConsumer,
    /// All workers are busy.
    WorkersBusy {
        /// How many callbacks the consumers of this host run at once.
        workers: u64,
        /// How many jobs of all topics are leased.
        leased: u64,
    },
    /// Nothing prevents the delivery of the job. A consumer leases this job next, or leases other jobs first.
    Ready {
        /// How many jobs of the topic are ready.
        ready: u64,
    },
}

impl WaitingReason {
    /// Returns the reasons why a job waits now. The most decisive reason comes first. The list is empty if the job does
    /// not wait, because the job is leased or is a dead letter.
    pub fn all(job: WaitingJob<'_>, topic: &WaitingTopic, now_ms: i64) -> Vec<WaitingReason> {
        let mut reasons = Vec::new();
        if job.is_spooled {
            reasons.push(WaitingReason::Spooled);
        }
        match job.state {
            State::Leased | State::Dead => return Vec::new(),
            State::Delayed if job.due_ms > now_ms => reasons.push(WaitingReason::until_due(job)),
            State::Delayed if !job.is_spooled => {
                reasons.push(WaitingReason::NotPromoted { due_ms: job.due_ms });
            }
            State::Delayed | State::Ready => {}
        }
        reasons.extend(WaitingReason::of_topic(topic));
        let longest_ms = POSTPONED_MAX.as_millis() as i64;
        if job.state == State::Delayed && (1..=longest_ms).contains(&(job.due_ms - now_ms)) {
            reasons.extend(topic.host.as_ref().and_then(HostUse::reached));
        }
        if job.state == State::Ready {
            reasons.extend(WaitingReason::of_limits(topic));
            if reasons.is_empty() {
                reasons.push(WaitingReason::Ready { ready: topic.ready });
            }
        }
        reasons
    }

    fn until_due(job: WaitingJob<'_>) -> WaitingReason {
        let due_ms = job.due_ms;
        match job.last.filter(|_| job.attempts > 0) {
            None => WaitingReason::NotDue { due_ms },
            Some(last) => {
                let status = last.status.map(|status| format!("status {status}"));
                let error =
                    if last.error.is_empty() { status.unwrap_or_default() } else { last.error.clone() };
                WaitingReason::Retry { attempt: last.number, error, due_ms }
            }
        }
    }

    /// Returns the reasons why all jobs of a topic wait.
    fn of_topic(topic: &WaitingTopic) -> Vec<WaitingReason> {
        let undelivered = topic.undelivered.clone().map(|why| match why {
            TopicNonDeliveryReason::Unregistered => WaitingReason::Unregistered,
            TopicNonDeliveryReason::Held(why) => WaitingReason::Held { why },
            TopicNonDeliveryReason::Pull => WaitingReason::Pull,
        });
        let paused = topic.pause.clone().map(WaitingReason::Paused);
        let circuit = topic.circuit.clone().map(|circuit| match circuit.is_half_open {
            true => WaitingReason::CircuitHalfOpen(circuit),
            false => WaitingReason::CircuitOpen(circuit),
        });
        [undelivered, paused, circuit].into_iter().flatten().collect()
    }

    /// Returns the reasons why ready jobs of a topic wait.
    fn of_limits(topic: &WaitingTopic) -> Vec<WaitingReason> {
        let in_flight = topic.max_in_flight.filter(|limit| topic.leased >= u64::from(*limit));
        let rate = topic.rate.filter(RateUse::is_reached).map(|RateUse { limit, used, next_ms }| {
            let used = used.map(|used| Rate { jobs: u32::try_from(used).unwrap_or(u32::MAX), ..limit });
            WaitingReason::Rate { limit: limit.to_string(), used: used.map(|used| used.to_string()), next_ms }
        });
        let host = topic.host.as_ref().and_then(HostUse::reached);
        let busy = match topic.workers {
            // The jobs of a pull topic need no worker.
            _ if topic.undelivered == Some(TopicNonDeliveryReason::Pull) => None,
            0 => Some(WaitingReason::NoConsumer),
            workers if topic.leased_of_all >= workers => {
                Some(WaitingReason::WorkersBusy { workers, leased: topic.leased_of_all })
            }
            _ => None,
        };
        let in_flight = in_flight.map(|limit| WaitingReason::MaxInFlight { limit, used: topic.leased });
        [in_flight, rate, host, busy].into_iter().flatten().collect()
    }
}

impl fmt::Display for WaitingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitingReason::Spooled => f.write_str(
                "the job waits on the disk of this host: its node does not answer or cannot be used, or jobs are being moved \
                 (`dq nodes list` says why)",
            ),
            WaitingReason::NotDue { due_ms } => write!(f, "the job is due at {}", rfc3339(*due_ms)),
            WaitingReason::Retry { attempt, error, due_ms } => {
                write!(f, "attempt {attempt} failed: {error}; the next one is due at {}", rfc3339(*due_ms))
            }
            WaitingReason::NotPromoted { due_ms } => {
                write!(f, "the job was due at {}, and no timer has made it ready yet", rfc3339(*due_ms))
            }
            WaitingReason::Unregistered => TopicNonDeliveryReason::Unregistered.fmt(f),
            WaitingReason::Held { why } => TopicNonDeliveryReason::Held(why.clone()).fmt(f),
            WaitingReason::Pull => {
                f.write_str("the mode of the topic is \"pull\": the job waits until a client reserves it")
            }
            WaitingReason::Paused(Pause { by, since_ms }) => {
                f.write_str("the topic is paused")?;
                since_ms.map_or(Ok(()), |ms| write!(f, " since {}", rfc3339(ms)))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, " by {by}"))
            }
            WaitingReason::CircuitOpen(UnclosedCircuit { since_ms, until_ms, reason, .. }) => {
                let (since, until) = (rfc3339(*since_ms), rfc3339(*until_ms));
                write!(f, "the circuit of the topic is open since {since}, at least until {until}: {reason}")
            }
            WaitingReason::CircuitHalfOpen(UnclosedCircuit { since_ms, reason, .. }) => {
                write!(
                    f,
                    "the circuit of the topic lets one job at a time through, since {}: {reason}",
                    rfc3339(*since_ms)
                )
            }
            WaitingReason::MaxInFlight { limit, used } => {
                write!(f, "{used} jobs of the topic are in flight, and its max_in_flight is {limit}")
            }
            WaitingReason::Rate { limit, next_ms: Some(next_ms), .. } => {
                let next = rfc3339(*next_ms);
                write!(f, "the rate of the topic, {limit}, lets the next callback begin at {next}")
            }
            WaitingReason::Rate { limit, used, next_ms: None } => {
                let used = used.as_deref().unwrap_or(limit);
                write!(f, "callbacks of the topic begin at a rate of {used}, and its limit is {limit}")
            }
            WaitingReason::HostLimit { host, limit } => {
                write!(f, "callbacks to {host} are at a limit for all topics together: {limit}")
            }
            WaitingReason::NoConsumer => f.write_str("this host has no consumer: consume.processes is 0"),
            WaitingReason::WorkersBusy { workers, leased } => {
                write!(
                    f,
                    "all workers may be busy: {leased} jobs are leased, and this host has {workers} workers"
                )
            }
            WaitingReason::Ready { ready: 0 | 1 } => f.write_str("a consumer leases the job next"),
            WaitingReason::Ready { ready } => {
                write!(f, "{ready} jobs of the topic are ready, and each waits for its turn")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_800_000_000_000;

    fn job(state: State, due_ms: i64) -> WaitingJob<'static> {
        WaitingJob { state, due_ms, attempts: 0, last: None, is_spooled: false }
    }

    fn texts(job: WaitingJob<'_>, topic: &WaitingTopic) -> Vec<String> {
        WaitingReason::all(job, topic, NOW_MS).iter().map(ToString::to_string).collect()
    }

    fn ready(topic: WaitingTopic) -> Vec<String> {
        texts(job(State::Ready, NOW_MS), &WaitingTopic { workers: 100, ..topic })
    }

    fn host() -> HostUse {
        let rate = Some(Rate::per_second(10));
        HostUse { name: "h:80".into(), max_in_flight: Some(5), in_flight: 4, rate, next_ms: None }
    }

    #[test]
    fn a_postponed_job_names_the_limit_of_its_host() {
        let full = WaitingTopic { host: Some(HostUse { in_flight: 5, ..host() }), ..WaitingTopic::default() };
        let reasons = |due_ms, topic| texts(job(State::Delayed, due_ms), topic);
        let soon = reasons(NOW_MS + 300_000, &full);
        assert!(soon[0].starts_with("the job is due at"), "{soon:?}");
        assert_eq!(
            soon[1..],
            ["callbacks to h:80 are at a limit for all topics together: max_in_flight = 5"]
        );
        // A job that is due in more than 300 seconds was not postponed because of a limit.
        assert_eq!(reasons(NOW_MS + 300_001, &full).len(), 1);
        let free = WaitingTopic { host: Some(host()), ..WaitingTopic::default() };
        assert_eq!(reasons(NOW_MS + 1000, &free).len(), 1);
    }

    #[test]
    fn a_delayed_job_waits_for_its_due_time_or_its_retry() {
        let topic = WaitingTopic::default();
        let due = NOW_MS + 60_000;
        assert_eq!(texts(job(State::Delayed, due), &topic), ["the job is due at 2027-01-15T08:01:00.000Z"]);
        let last = Attempt {
            number: 2,
            at_ms: 0,
            took_ms: 1,
            status: Some(503),
            answer: String::new(),
            error: "status 503".into(),
            late: None,
        };
        let failed = WaitingJob { attempts: 2, last: Some(&last), ..job(State::Delayed, due) };
        assert_eq!(
            texts(failed, &topic),
            ["attempt 2 failed: status 503; the next one is due at 2027-01-15T08:01:00.000Z"]
        );
        let late = texts(job(State::Delayed, NOW_MS), &topic);
        assert!(late[0].contains("no timer has made it ready"), "{late:?}");
        let paused = WaitingTopic { pause: Some(Pause::default()), ..topic.clone() };
        assert_eq!(texts(job(State::Delayed, due), &paused)[1], "the topic is paused");
        let spooled = WaitingJob { is_spooled: true, ..job(State::Delayed, NOW_MS) };
        assert!(matches!(texts(spooled, &topic).as_slice(), [one] if one.contains("disk of this host")));
        for state in [State::Leased, State::Dead] {
            assert_eq!(texts(job(state, NOW_MS), &paused), Vec::<String>::new(), "it does not wait");
        }
    }

    #[test]
    fn a_ready_job_waits_for_its_topic_or_a_worker() {
        let none = WaitingTopic::default;
        let circuit = |is_half_open| {
            Some(UnclosedCircuit { since_ms: 0, until_ms: 1000, is_half_open, reason: "timeout".into() })
        };
        let pause = Pause { by: Some("account ann".into()), since_ms: Some(NOW_MS) };
        let rate =
            |used, next_ms| Some(RateUse { limit: "100/m".parse().unwrap(), used: Some(used), next_ms });
        for (topic, text) in [
            (none(), "a consumer leases the job next"),
            (WaitingTopic { ready: 7, ..none() }, "7 jobs of the topic are ready"),
            (
                WaitingTopic { undelivered: Some(TopicNonDeliveryReason::Unregistered), ..none() },
                "the topic is not registered",
            ),
            (
                WaitingTopic { undelivered: Some(TopicNonDeliveryReason::Held("PUT".into())), ..none() },
                "the topic is held: PUT",
            ),
            (
                WaitingTopic { pause: Some(pause), ..none() },
                "the topic is paused since 2027-01-15T08:00:00.000Z by account ann",
            ),
            (
                WaitingTopic { circuit: circuit(false), ..none() },
                "the circuit of the topic is open since 1970",
            ),
            (WaitingTopic { circuit: circuit(true), ..none() }, "the circuit of the topic lets one job"),
            (
                WaitingTopic { max_in_flight: Some(5), leased: 5, ..none() },
                "5 jobs of the topic are in flight, and its max_in_flight is 5",
            ),
            (WaitingTopic { max_in_flight: Some(5), leased: 4, ..none() }, "a consumer leases"),
            (
                WaitingTopic { rate: rate(80, None), ..none() },
                "callbacks of the topic begin at a rate of 80/m, and its limit is 100/m",
            ),
            (WaitingTopic { rate: rate(79, None), ..none() }, "a consumer leases"),
            // The topic reached its rate limit a moment ago. The measured number of callbacks per second does not show
            // this yet.
            (
                WaitingTopic { rate: rate(1, Some(NOW_MS + 600)), ..none() },
                "the rate of the topic, 100/m, lets the next callback begin at 2027-01-15T08:00:00.600Z",
            ),
            (
                WaitingTopic { host: Some(HostUse { in_flight: 5, ..host() }), ..none() },
                "callbacks to h:80 are at a limit for all topics together: max_in_flight = 5",
            ),
            (
                WaitingTopic { host: Some(HostUse { next_ms: Some(NOW_MS), ..host() }), ..none() },
                "callbacks to h:80 are at a limit for all topics together: rate = 10/s",
            ),
            (WaitingTopic { host: Some(host()), ..none() }, "a consumer leases"),
            (WaitingTopic { leased_of_all: 100, ..none() }, "all workers may be busy: 100 jobs"),
        ] {
            let texts = ready(topic);
            assert!(texts.len() == 1 && texts[0].starts_with(text), "{text:?}: {texts:?}");
        }
        assert!(texts(job(State::Ready, 0), &none())[0].starts_with("this host has no consumer"));
    }

    #[test]
    fn a_reason_has_a_code_and_its_data() {
        let paused = WaitingReason::Paused(Pause { by: None, since_ms: Some(7) });
        let json = serde_json::to_value(paused).unwrap();
        assert_eq!(json, serde_json::json!({"code": "paused", "by": null, "since_ms": 7}));
        assert_eq!(serde_json::to_value(WaitingReason::Pull).unwrap()["code"], "pull");
    }
}

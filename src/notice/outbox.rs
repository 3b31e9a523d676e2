//! What is to be sent to whom, and when: what comes within a moment goes into one message, nobody gets them too often, and what
//! cannot be sent is tried again, ever later, for a day. Kept over restarts. Moments are Unix milliseconds of the host's clock,
//! which may be set: one that lies ahead keeps nobody waiting.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Notice, Recipient};

/// So much waits for one recipient at most; what comes then pushes out the oldest.
const WAITING_MAX: usize = 1000;

/// For so long it is tried.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The first and the longest pause after a failure.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(600)];

/// After so many failures on end it is told that alerts are not sent.
const FAILURES_TOLD: u32 = 3;

/// How often messages go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// What comes within so long goes into one message.
    pub gather: Duration,
    /// Nobody gets more than one in so long.
    pub interval: Duration,
}

/// What waits to be sent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outbox {
    waiting: Vec<Waiting>,
}

/// What waits for one recipient.
#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    to: Recipient,
    notices: Vec<Notice>,
    /// So many of them, from the first, are being sent by this process.
    #[serde(skip)]
    sending: usize,
    /// Since when the first that is not being sent waits.
    first_ms: i64,
    /// When the last message went out.
    last_ms: Option<i64>,
    failures: u32,
    /// Since when nothing can be sent, when that was tried last, and why it failed.
    failing_ms: i64,
    tried_ms: i64,
    reason: String,
    /// How many were dropped since the last one that went out.
    dropped: u64,
}

/// A message that is to go out now.
#[derive(Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// To whom.
    pub to: Recipient,
    /// What to tell.
    pub notices: Vec<Notice>,
}

/// Whether so much time has passed; a clock that was set back has let it pass.
fn passed(since_ms: i64, span: Duration, now_ms: i64) -> bool {
    now_ms < since_ms || now_ms - since_ms >= span.as_millis() as i64
}

impl Waiting {
    fn new(to: Recipient) -> Waiting {
        Waiting {
            to,
            notices: Vec::new(),
            sending: 0,
            first_ms: 0,
            last_ms: None,
            failures: 0,
            failing_ms: 0,
            tried_ms: 0,
            reason: String::new(),
            dropped: 0,
        }
    }

    fn pause(&self) -> Duration {
        PAUSES[0].saturating_mul(1 << self.failures.saturating_sub(1).min(10)).min(PAUSES[1])
    }

    fn is_due(&self, pace: Pace, now_ms: i64) -> bool {
        self.sending == 0
            && !self.notices.is_empty()
            && passed(self.first_ms, pace.gather, now_ms)
            && self.last_ms.is_none_or(|last| passed(last, pace.interval, now_ms))
            && (self.failures == 0 || passed(self.tried_ms, self.pause(), now_ms))
    }
}

impl Outbox {
    /// Puts something there for somebody.
    pub fn put(&mut self, to: &Recipient, notice: &Notice, now_ms: i64) {
        let at = self.waiting.iter().position(|w| w.to == *to).unwrap_or_else(|| {
            self.waiting.push(Waiting::new(to.clone()));
            self.waiting.len() - 1
        });
        let waiting = &mut self.waiting[at];
        if waiting.notices.len() == waiting.sending {
            waiting.first_ms = now_ms;
        }
        // What is being sent is no longer changed.
        if waiting.notices[waiting.sending..].iter_mut().any(|known| known.take_in(notice)) {
            return;
        }
        waiting.notices.push(notice.clone());
        if waiting.notices.len() > waiting.sending + WAITING_MAX {
            waiting.notices.remove(waiting.sending);
            waiting.dropped += 1;
        }
    }

    /// What is to go out now to those who can be reached. Each is answered by [`Outbox::sent`] or [`Outbox::failed`].
    pub fn take_due(
        &mut self,
        pace: Pace,
        now_ms: i64,
        reachable: impl Fn(&Recipient) -> bool,
    ) -> Vec<Dispatch> {
        let due = self.waiting.iter_mut().filter(|w| w.is_due(pace, now_ms) && reachable(&w.to));
        let take = |waiting: &mut Waiting| {
            waiting.sending = waiting.notices.len();
            Dispatch { to: waiting.to.clone(), notices: waiting.notices.clone() }
        };
        due.map(take).collect()
    }

    /// Notes that a message has gone out.
    pub fn sent(&mut self, to: &Recipient, now_ms: i64) {
        if let Some(waiting) = self.of(to) {
            waiting.notices.drain(..std::mem::take(&mut waiting.sending));
            waiting.last_ms = Some(now_ms);
            (waiting.failures, waiting.dropped) = (0, 0);
            waiting.reason.clear();
        }
    }

    /// Notes that a message could not be sent. Tells how many notices are given up now.
    pub fn failed(&mut self, to: &Recipient, reason: &str, now_ms: i64) -> usize {
        let Some(waiting) = self.of(to) else { return 0 };
        let tried = std::mem::take(&mut waiting.sending);
        if waiting.failures == 0 {
            waiting.failing_ms = now_ms;
        }
        waiting.failures += 1;
        waiting.tried_ms = now_ms;
        reason.clone_into(&mut waiting.reason);
        if now_ms - waiting.failing_ms < PATIENCE.as_millis() as i64 {
            return 0;
        }
        // What came meanwhile has its own day.
        waiting.notices.drain(..tried);
        waiting.failing_ms = now_ms;
        waiting.dropped += tried as u64;
        tried
    }

    /// Notes that whatever was on its way to somebody is not any more, and has not failed.
    pub fn put_off(&mut self, to: &Recipient) {
        if let Some(waiting) = self.of(to) {
            waiting.sending = 0;
        }
    }

    /// Forgets those who are no longer told of anything.
    pub fn keep(&mut self, is_known: impl Fn(&Recipient) -> bool) {
        self.waiting.retain(|w| w.sending > 0 || is_known(&w.to));
    }

    /// Forgets those for whom nothing waits, when it no longer matters when they were told last.
    pub fn tidy(&mut self, pace: Pace, now_ms: i64) {
        let is_idle = |w: &Waiting| {
            w.notices.is_empty()
                && (w.dropped == 0 || passed(w.tried_ms, PATIENCE, now_ms))
                && w.last_ms.is_none_or(|at| passed(at, pace.interval, now_ms))
        };
        self.waiting.retain(|w| !is_idle(w));
    }

    /// Whether something is on its way.
    pub fn is_sending(&self) -> bool {
        self.waiting.iter().any(|w| w.sending > 0)
    }

    /// Whom alerts do not reach, and why; none: all are reached.
    pub fn trouble(&self) -> Option<String> {
        let tell = |w: &Waiting| {
            let dropped = if w.dropped > 0 { format!(", {} given up", w.dropped) } else { String::new() };
            format!("{}: {} wait{dropped}: {}", w.to, w.notices.len(), w.reason)
        };
        let is_failing = |w: &&Waiting| w.failures >= FAILURES_TOLD || w.dropped > 0;
        let told: Vec<String> = self.waiting.iter().filter(is_failing).map(tell).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Whether the last message to somebody could not be sent.
    pub fn is_failing(&self, to: &Recipient) -> bool {
        self.waiting.iter().any(|w| w.to == *to && w.failures > 0)
    }

    fn of(&mut self, to: &Recipient) -> Option<&mut Waiting> {
        self.waiting.iter_mut().find(|w| w.to == *to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeadJob, State};
    use super::*;

    const PACE: Pace = Pace { gather: Duration::from_secs(10), interval: Duration::from_secs(60) };
    const HOUR: i64 = 3_600_000;

    fn mail() -> Recipient {
        Recipient::Mail("a@example.com".into())
    }

    fn open(title: &str) -> Notice {
        Notice { state: State::Open, title: title.into(), ..Notice::test(0) }
    }

    fn due(outbox: &mut Outbox, now_ms: i64) -> Vec<Vec<String>> {
        let titles = |d: Dispatch| d.notices.into_iter().map(|n| n.title).collect();
        outbox.take_due(PACE, now_ms, |_| true).into_iter().map(titles).collect()
    }

    #[test]
    fn what_comes_within_a_moment_goes_into_one_message_and_nobody_gets_them_too_often() {
        let mut outbox = Outbox::default();
        outbox.put(&mail(), &open("a"), 0);
        outbox.put(&mail(), &open("b"), 9_000);
        assert_eq!(due(&mut outbox, 9_999), Vec::<Vec<String>>::new());
        assert_eq!(due(&mut outbox, 10_000), [["a", "b"]]);
        assert!(outbox.is_sending() && due(&mut outbox, 11_000).is_empty());
        // Meanwhile.
        outbox.put(&mail(), &open("c"), 11_000);
        outbox.sent(&mail(), 12_000);
        assert!(due(&mut outbox, 71_999).is_empty());
        assert_eq!(due(&mut outbox, 72_000), [["c"]]);
        outbox.sent(&mail(), 72_000);
        outbox.tidy(PACE, 131_000);
        assert_eq!(outbox.waiting.len(), 1);
        outbox.tidy(PACE, 132_000);
        assert!(outbox.waiting.is_empty());
    }

    #[test]
    fn dead_letters_of_a_topic_are_counted_together_and_none_is_lost_to_a_message_on_its_way() {
        let mut outbox = Outbox::default();
        let job = |n: u64| DeadJob { id: n.to_string(), attempts: 1, reason: String::new(), died_ms: 5 };
        (0..100).for_each(|n| outbox.put(&mail(), &Notice::dead("t", 1, vec![job(n)], 10), 0));
        outbox.put(&mail(), &Notice::dead("u", 1, vec![], 10), 0);
        let sent = outbox.take_due(PACE, 10_000, |_| true).remove(0).notices;
        let told: Vec<_> = sent.iter().map(|n| (n.title.as_str(), n.count, n.jobs.len())).collect();
        assert_eq!(told, [("100 dead letters of topic t", 100, 10), ("a dead letter of topic u", 1, 0)]);
        outbox.put(&mail(), &Notice::dead("t", 3, vec![], 20), 10_500);
        outbox.sent(&mail(), 11_000);
        assert_eq!(due(&mut outbox, 71_000), [["3 dead letters of topic t"]]);
    }

    #[test]
    fn what_cannot_be_sent_is_tried_ever_later_for_a_day_and_told() {
        let mut outbox = Outbox::default();
        outbox.put(&mail(), &open("a"), 0);
        let mut now = 10_000;
        let mut tries = 0;
        let given_up = loop {
            assert_eq!(due(&mut outbox, now).len(), 1, "{now}");
            tries += 1;
            let given_up = outbox.failed(&mail(), "refused", now);
            assert_eq!(outbox.trouble().is_some(), tries >= 3);
            if given_up > 0 {
                break given_up;
            }
            let pause = [5, 10, 20, 40, 80, 160, 320].get(tries - 1).copied().unwrap_or(600) * 1000;
            assert!(due(&mut outbox, now + pause - 1).is_empty(), "{tries}");
            now += pause;
        };
        assert_eq!(given_up, 1);
        assert!((24 * HOUR..25 * HOUR).contains(&now) && tries > 100, "{now} {tries}");
        assert_eq!(outbox.trouble().unwrap(), "a@example.com: 0 wait, 1 given up: refused");
        outbox.put(&mail(), &open("b"), now);
        assert_eq!(due(&mut outbox, now + 600_000), [["b"]]);
        outbox.sent(&mail(), now + 600_000);
        assert_eq!(outbox.trouble(), None);
    }

    #[test]
    fn what_waits_is_bounded_outlives_its_process_and_a_clock_that_is_set_back() {
        let mut outbox = Outbox::default();
        (0..1005).for_each(|n| outbox.put(&mail(), &open(&n.to_string()), 100 * HOUR));
        assert!(outbox.trouble().unwrap().contains("5 given up"));
        assert_eq!(due(&mut outbox, 101 * HOUR)[0][0], "5");
        let kept = serde_json::to_string(&outbox).unwrap();
        let mut next: Outbox = serde_json::from_str(&kept).unwrap();
        assert_eq!(
            due(&mut next, 50 * HOUR)[0].len(),
            1000,
            "what was on its way when a process died is sent again"
        );
        next.put_off(&mail());
        next.keep(|to| matches!(to, Recipient::Webhook(_)));
        assert!(due(&mut next, 50 * HOUR).is_empty());
    }
}

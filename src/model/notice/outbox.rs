//! The outbox of alerts: what to send to whom, and when. Alerts that come shortly after each other go into one message,
//! and a recipient does not get messages too often. dq tries for a day to send a message, with growing pauses. The
//! outbox survives restarts. Times are Unix milliseconds of the host's clock, which may be set back. So a stored time
//! may be in the future. dq does not wait until such a time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AlertPhase, Notice, Recipient};

/// How many alerts may wait for one recipient. If one more alert comes, the oldest of the waiting alerts is dropped.
const WAITING_MAX: usize = 1000;

/// How long dq tries to send an alert. For an alert about a problem that still exists, there is no such limit.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The first and the longest pause after a failure.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(600)];

/// After this number of failures in a row, the other recipients get an alert which says that a recipient is not
/// reached.
const FAILURES_TOLD: u32 = 3;

/// How often messages go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageTiming {
    /// Alerts that come within this time go into one message.
    pub gather: Duration,
    /// A recipient gets at most one message in this time.
    pub interval: Duration,
}

/// The alerts that wait to be sent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct AlertQueue {
    waiting: Vec<RecipientQueue>,
}

/// The alerts that wait for one recipient.
#[derive(Debug, Serialize, Deserialize)]
struct RecipientQueue {
    to: Recipient,
    notices: Vec<Notice>,
    /// The number of alerts at the beginning of `notices` that this process is sending now.
    #[serde(skip)]
    sending: usize,
    /// How many alerts the next message may have. 0: all alerts that wait. The number becomes smaller when the
    /// recipient refuses a message: the message may be too long, or one of its alerts may be the reason.
    #[serde(skip)]
    message_max: usize,
    /// When the first alert that is not being sent began to wait.
    first_ms: i64,
    /// When the last message was sent.
    last_ms: Option<i64>,
    failures: u32,
    /// When the failures began. `tried_ms` and `reason` say when the last try failed, and why.
    failing_ms: i64,
    tried_ms: i64,
    reason: String,
    /// How many alerts were dropped since the last message that was sent.
    dropped: u64,
}

/// A message to send now.
#[derive(Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The recipient.
    pub to: Recipient,
    /// The alerts in the message.
    pub notices: Vec<Notice>,
}

/// Returns whether `span` has passed since `since_ms`. If the clock was set back to a time before `since_ms`, the
/// result is also true.
fn passed(since_ms: i64, span: Duration, now_ms: i64) -> bool {
    now_ms < since_ms || now_ms - since_ms >= span.as_millis() as i64
}

impl RecipientQueue {
    fn new(to: Recipient) -> RecipientQueue {
        RecipientQueue {
            to,
            notices: Vec::new(),
            sending: 0,
            message_max: 0,
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

    /// Drops alerts that are older than a day, but only among the first `count` alerts. An alert about a problem that
    /// still exists stays.
    fn drop_old(&mut self, count: usize, now_ms: i64) {
        let is_old = |at: &usize| {
            let (notice, later) = (&self.notices[*at], &self.notices[at + 1..]);
            let is_over = later.iter().any(|later| later.state == AlertPhase::Over && later.is_of(notice));
            (notice.state != AlertPhase::Open || is_over) && passed(notice.at_ms, PATIENCE, now_ms)
        };
        let old: Vec<usize> = (0..count).filter(is_old).collect();
        old.into_iter().rev().for_each(|at| drop(self.notices.remove(at)));
    }

    fn is_due(&self, pace: MessageTiming, now_ms: i64) -> bool {
        self.sending == 0
            && !self.notices.is_empty()
            && passed(self.first_ms, pace.gather, now_ms)
            && self.last_ms.is_none_or(|last| passed(last, pace.interval, now_ms))
            && (self.failures == 0 || passed(self.tried_ms, self.pause(), now_ms))
    }
}

impl AlertQueue {
    /// Adds an alert for a recipient.
    pub fn put(&mut self, to: &Recipient, notice: &Notice, now_ms: i64) {
        let at = self.waiting.iter().position(|w| w.to == *to).unwrap_or_else(|| {
            self.waiting.push(RecipientQueue::new(to.clone()));
            self.waiting.len() - 1
        });
        let waiting = &mut self.waiting[at];
        if waiting.notices.len() == waiting.sending {
            waiting.first_ms = now_ms;
        }
        // Alerts that are being sent are no longer changed.
        if waiting.notices[waiting.sending..].iter_mut().any(|known| known.take_in(notice)) {
            return;
        }
        waiting.notices.push(notice.clone());
        if waiting.notices.len() > waiting.sending + WAITING_MAX {
            waiting.notices.remove(waiting.sending);
            waiting.dropped += 1;
        }
    }

    /// Returns the messages to send now, to the recipients that are reachable. The caller must report the result of
    /// each message with [`AlertQueue::sent`], [`AlertQueue::failed`] or [`AlertQueue::put_off`].
    pub fn take_due(
        &mut self,
        pace: MessageTiming,
        now_ms: i64,
        reachable: impl Fn(&Recipient) -> bool,
    ) -> Vec<OutgoingMessage> {
        let due = self.waiting.iter_mut().filter(|w| w.is_due(pace, now_ms) && reachable(&w.to));
        let take = |waiting: &mut RecipientQueue| {
            waiting.sending = match waiting.message_max {
                0 => waiting.notices.len(),
                most => waiting.notices.len().min(most),
            };
            OutgoingMessage { to: waiting.to.clone(), notices: waiting.notices[..waiting.sending].to_vec() }
        };
        due.map(take).collect()
    }

    /// Records that a message was sent.
    pub fn sent(&mut self, to: &Recipient, now_ms: i64) {
        if let Some(waiting) = self.pending_for(to) {
            waiting.notices.drain(..std::mem::take(&mut waiting.sending));
            waiting.last_ms = Some(now_ms);
            waiting.message_max = waiting.message_max.saturating_mul(2);
            (waiting.failures, waiting.dropped) = (0, 0);
            waiting.reason.clear();
        }
    }

    /// Records that a message could not be sent. `is_refused`: the recipient can be reached, and refused this message.
    /// The next message then has half as many alerts. If the message had only one alert, and this alert is not dropped,
    /// all alerts about the same problem go to the end of the queue. Returns how many alerts are dropped because of
    /// this failure.
    pub fn failed(&mut self, to: &Recipient, reason: &str, is_refused: bool, now_ms: i64) -> usize {
        let Some(waiting) = self.pending_for(to) else { return 0 };
        let tried = std::mem::take(&mut waiting.sending);
        if waiting.failures == 0 {
            waiting.failing_ms = now_ms;
        }
        waiting.failures += 1;
        waiting.tried_ms = now_ms;
        reason.clone_into(&mut waiting.reason);
        let before = waiting.notices.len();
        let is_alone = is_refused && tried == 1;
        let fails_long = now_ms - waiting.failing_ms >= PATIENCE.as_millis() as i64;
        if is_alone || fails_long {
            waiting.drop_old(if fails_long { before } else { 1 }, now_ms);
        }
        let dropped = before - waiting.notices.len();
        waiting.dropped += dropped as u64;
        if is_refused {
            waiting.message_max = (tried / 2).max(1);
            if is_alone && dropped == 0 {
                // The sort keeps the order of all alerts about this problem.
                let first = waiting.notices[0].clone();
                waiting.notices.sort_by_key(|one| one.is_of(&first));
            }
        }
        dropped
    }

    /// Records that a message was not sent, for a reason that is not a failure. The message can be sent again.
    pub fn put_off(&mut self, to: &Recipient) {
        if let Some(waiting) = self.pending_for(to) {
            waiting.sending = 0;
        }
    }

    /// Forgets the recipients that no longer get any alerts.
    pub fn keep(&mut self, is_known: impl Fn(&Recipient) -> bool) {
        self.waiting.retain(|w| w.sending > 0 || is_known(&w.to));
    }

    /// Forgets recipients for whom nothing waits, if the interval since their last message is over. A recipient with
    /// dropped alerts is kept until a day after its last failure.
    pub fn tidy(&mut self, pace: MessageTiming, now_ms: i64) {
        let is_idle = |w: &RecipientQueue| {
            w.notices.is_empty()
                && (w.dropped == 0 || passed(w.tried_ms, PATIENCE, now_ms))
                && w.last_ms.is_none_or(|at| passed(at, pace.interval, now_ms))
        };
        self.waiting.retain(|w| !is_idle(w));
    }

    /// Returns whether a message is being sent.
    pub fn is_sending(&self) -> bool {
        self.waiting.iter().any(|w| w.sending > 0)
    }

    /// Returns the recipients that alerts do not reach, and why. A recipient is in this list after [`FAILURES_TOLD`]
    /// failures in a row, or if alerts for this recipient were dropped. None: there is no such recipient.
    pub fn trouble(&self) -> Option<String> {
        let tell = |w: &RecipientQueue| {
            let dropped = if w.dropped > 0 { format!(", {} given up", w.dropped) } else { String::new() };
            format!("{}: {} waiting{dropped}: {}", w.to, w.notices.len(), w.reason)
        };
        let is_failing = |w: &&RecipientQueue| w.failures >= FAILURES_TOLD || w.dropped > 0;
        let failing: Vec<String> = self.waiting.iter().filter(is_failing).map(tell).collect();
        (!failing.is_empty()).then(|| failing.join("; "))
    }

    /// Returns whether the last message to a recipient could not be sent.
    pub fn is_failing(&self, to: &Recipient) -> bool {
        self.waiting.iter().any(|w| w.to == *to && w.failures > 0)
    }

    fn pending_for(&mut self, to: &Recipient) -> Option<&mut RecipientQueue> {
        self.waiting.iter_mut().find(|w| w.to == *to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DeadJob;
    use super::*;

    const PACE: MessageTiming =
        MessageTiming { gather: Duration::from_secs(10), interval: Duration::from_secs(60) };
    const HOUR: i64 = 3_600_000;

    fn mail() -> Recipient {
        Recipient::Mail("a@example.com".into())
    }

    fn open(title: &str) -> Notice {
        Notice { state: AlertPhase::Open, title: title.into(), ..Notice::test(0) }
    }

    fn due(outbox: &mut AlertQueue, now_ms: i64) -> Vec<Vec<String>> {
        let titles = |d: OutgoingMessage| d.notices.into_iter().map(|n| n.title).collect();
        outbox.take_due(PACE, now_ms, |_| true).into_iter().map(titles).collect()
    }

    #[test]
    fn notices_close_in_time_share_one_message_at_a_limited_rate() {
        let mut outbox = AlertQueue::default();
        outbox.put(&mail(), &open("a"), 0);
        outbox.put(&mail(), &open("b"), 9_000);
        assert_eq!(due(&mut outbox, 9_999), Vec::<Vec<String>>::new());
        assert_eq!(due(&mut outbox, 10_000), [["a", "b"]]);
        assert!(outbox.is_sending() && due(&mut outbox, 11_000).is_empty());
        // The alert `c` comes while a message is being sent.
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
    fn dead_letters_of_a_topic_share_a_message_and_none_is_lost() {
        let mut outbox = AlertQueue::default();
        let job = |n: u64| DeadJob { id: n.to_string(), attempts: 1, reason: String::new(), died_ms: 5 };
        (0..100).for_each(|n| outbox.put(&mail(), &Notice::dead("t", 1, vec![job(n)], 10), 0));
        outbox.put(&mail(), &Notice::dead("u", 1, vec![], 10), 0);
        let sent = outbox.take_due(PACE, 10_000, |_| true).remove(0).notices;
        let failing: Vec<_> = sent.iter().map(|n| (n.title.as_str(), n.count, n.jobs.len())).collect();
        assert_eq!(failing, [("100 dead letters of topic t", 100, 10), ("a dead letter of topic u", 1, 0)]);
        outbox.put(&mail(), &Notice::dead("t", 3, vec![], 20), 10_500);
        outbox.sent(&mail(), 11_000);
        assert_eq!(due(&mut outbox, 71_000), [["3 dead letters of topic t"]]);
    }

    #[test]
    fn what_cannot_be_sent_is_tried_ever_later_for_a_day_and_told() {
        let mut outbox = AlertQueue::default();
        outbox.put(&mail(), &Notice::dead("t", 1, vec![], 0), 0);
        let mut now = 10_000;
        let mut tries = 0;
        let given_up = loop {
            assert_eq!(due(&mut outbox, now).len(), 1, "{now}");
            tries += 1;
            let given_up = outbox.failed(&mail(), "refused", false, now);
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
        assert_eq!(outbox.trouble().unwrap(), "a@example.com: 0 waiting, 1 given up: refused");
        outbox.put(&mail(), &open("b"), now);
        assert_eq!(due(&mut outbox, now + 600_000), [["b"]]);
        outbox.sent(&mail(), now + 600_000);
        assert_eq!(outbox.trouble(), None);
    }

    #[test]
    fn only_old_alerts_are_dropped_and_open_ones_stay() {
        let mut outbox = AlertQueue::default();
        let alert = |node: &str, state, at_ms| Notice {
            state,
            node: Some(node.into()),
            title: node.into(),
            at_ms,
            ..Notice::test(0)
        };
        let fail = |outbox: &mut AlertQueue, now: i64| {
            assert_eq!(due(outbox, now).len(), 1);
            outbox.failed(&mail(), "no", false, now)
        };
        outbox.put(&mail(), &alert("down", AlertPhase::Open, 0), 0);
        outbox.put(&mail(), &alert("was down", AlertPhase::Open, 0), 0);
        outbox.put(&mail(), &alert("was down", AlertPhase::Over, 1_000), 1_000);
        outbox.put(&mail(), &Notice::dead("t", 1, vec![], 0), 1_000);
        assert_eq!(fail(&mut outbox, HOUR), 0);
        outbox.put(&mail(), &Notice::dead("u", 1, vec![], 24 * HOUR), 24 * HOUR);
        assert_eq!(fail(&mut outbox, 25 * HOUR), 3);
        assert_eq!(due(&mut outbox, 26 * HOUR), [["down", "a dead letter of topic u"]]);
    }

    #[test]
    fn an_alert_that_is_refused_does_not_hold_back_the_others() {
        let mut outbox = AlertQueue::default();
        for n in 0..100 {
            outbox.put(&mail(), &Notice { node: Some(n.to_string()), ..open(&n.to_string()) }, 0);
        }
        let (mut now, mut sent, mut longest) = (0, std::collections::BTreeSet::new(), 0);
        // The recipient accepts at most eight alerts in a message. The recipient refuses each message that contains
        // alert 37.
        while sent.len() < 99 {
            now += HOUR / 6;
            assert!(now < 20 * HOUR, "{} are sent", sent.len());
            for titles in due(&mut outbox, now) {
                match titles.len() > 8 || titles.contains(&"37".to_owned()) {
                    true => assert_eq!(outbox.failed(&mail(), "too long", true, now), 0),
                    false => {
                        outbox.sent(&mail(), now);
                        longest = longest.max(titles.len());
                        sent.extend(titles);
                    }
                }
            }
        }
        assert!(!sent.contains("37") && longest > 4, "{longest}");
    }

    #[test]
    fn the_queue_is_limited_and_survives_restart_and_clock_change() {
        let mut outbox = AlertQueue::default();
        (0..1005).for_each(|n| outbox.put(&mail(), &open(&n.to_string()), 100 * HOUR));
        assert!(outbox.trouble().unwrap().contains("5 given up"));
        assert_eq!(due(&mut outbox, 101 * HOUR)[0][0], "5");
        let kept = serde_json::to_string(&outbox).unwrap();
        let mut next: AlertQueue = serde_json::from_str(&kept).unwrap();
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

//! What must not be in a history. A version "comes" when the receiver gets its callback, or when a client reserves it.
//! A rule reports a fault only if no order of the overlapping requests, and no outcome of the unknown requests, can
//! explain what was seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::ledger::{
    Delivery, Found, History, Id, MILLISECOND, Micros, Operation, OperationKind, Outcome, Rule, SECOND,
    Version,
};

/// When a job is deleted or replaced, an attempt may be in flight. It reaches the receiver within this time.
const IN_FLIGHT: Micros = 3 * SECOND / 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A version was acknowledged, but it does not come, and no answer shows it.
    Lost,
    /// A version was acknowledged and is shown, but is not delivered.
    Stuck,
    /// A version came before it was due.
    Early,
    /// A version came after its deletion or replacement had been acknowledged.
    Revived,
    /// A version came after its ack had been answered.
    Repeated,
    /// A version came although its add had been refused.
    Refused,
    /// An answer said that a job does not exist, but it does.
    Hidden,
    /// An answer said that a job exists, but at this moment no job with the id can exist.
    Phantom,
    /// An answer showed a version that had ended, or that no request had stored.
    Stale,
    /// An add with `keep` or `reject` was stored although a job with the id existed.
    StoredTwice,
    /// The test asked for an id until the deadline, and got no answer.
    Unreachable,
    /// The store's counts differ from the jobs that the test found.
    Count,
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: Kind,
    pub id: Option<Id>,
    /// The time of the fault.
    pub at: Micros,
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let id = self.id.map_or(String::new(), |id| format!(" {id}"));
        write!(f, "{:?}{id}: {}", self.kind, self.text)
    }
}

/// Returns all faults in a history.
pub fn judge(history: &History) -> Vec<Finding> {
    let mut ids: BTreeMap<Id, Of> = BTreeMap::new();
    let of = |id| Of { history, id, operations: Vec::new(), deliveries: HashMap::new() };
    for operation in &history.operations {
        ids.entry(operation.id).or_insert_with(|| of(operation.id)).operations.push(operation);
    }
    for delivery in &history.deliveries {
        let of = ids.entry(delivery.id).or_insert_with(|| of(delivery.id));
        of.deliveries.entry(delivery.version).or_default().push(delivery);
    }
    let mut findings = Vec::new();
    for of in ids.values_mut() {
        of.operations.sort_by_key(|o| (o.sent, o.line, o.number));
        of.judge(&mut findings);
    }
    // One cause has many effects on an id. The first effect of each kind is enough.
    let mut seen = BTreeSet::new();
    findings.sort_by_key(|finding| finding.at);
    findings.retain(|finding| seen.insert((finding.id, finding.kind)));
    for census in history.censuses.iter().filter(|census| census.reported != census.found) {
        let text = format!(
            "{}, the store counts {:?}, and {:?} were found",
            census.when, census.reported, census.found
        );
        findings.push(Finding { kind: Kind::Count, id: None, at: Micros::MAX, text });
    }
    findings
}

/// Returns how many versions were delivered more than once.
pub fn repeated(history: &History) -> usize {
    let (mut once, mut more) = (BTreeSet::new(), BTreeSet::new());
    for delivery in history.deliveries.iter().filter(|d| d.is_accepted) {
        if !once.insert(delivery.version) {
            more.insert(delivery.version);
        }
    }
    more.len()
}

/// Returns how many versions were delivered after the acknowledged replacement or deletion had been put in a spool.
/// Such deliveries are allowed. They are only counted.
pub fn behind_spools(history: &History) -> usize {
    let is_spooled = |o: &&Operation| o.ends_others() && o.outcome == Outcome::Spooled;
    let spooled: Vec<&Operation> = history.operations.iter().filter(is_spooled).collect();
    let behind = |delivery: &&Delivery| {
        let later = |o: &&&Operation| o.id == delivery.id && o.answered < delivery.at;
        let mut later = spooled.iter().filter(later).peekable();
        let creator = || history.operations.iter().find(|o| o.version() == Some(delivery.version));
        later.peek().is_some() && creator().is_some_and(|creator| later.any(|o| creator.answered < o.sent))
    };
    history.deliveries.iter().filter(behind).count()
}

/// The part of a history that concerns one id.
struct Of<'a> {
    history: &'a History,
    id: Id,
    /// Sorted by the time when they were sent.
    operations: Vec<&'a Operation>,
    deliveries: HashMap<Version, Vec<&'a Delivery>>,
}

impl Of<'_> {
    fn judge(&self, findings: &mut Vec<Finding>) {
        let mut say = |kind, at, text: String| findings.push(Finding { kind, id: Some(self.id), at, text });
        for (version, deliveries) in &self.deliveries {
            let Some(creator) = self.operations.iter().find(|o| o.version() == Some(*version)) else {
                say(
                    Kind::Refused,
                    deliveries[0].at,
                    format!("version {version} was delivered, and never sent"),
                );
                continue;
            };
            for delivery in deliveries {
                self.judge_delivery(creator, delivery, &mut say);
            }
        }
        for operation in &self.operations {
            self.judge_answer(operation, &mut say);
            self.judge_report(operation, &mut say);
            self.judge_presence(operation, &mut say);
        }
        if let Some(Found::NoAnswer(why)) = self.history.left.get(&self.id) {
            say(Kind::Unreachable, Micros::MAX, format!("it cannot be asked for: {why}"));
        }
    }

    fn judge_delivery(
        &self,
        creator: &Operation,
        delivery: &Delivery,
        say: &mut impl FnMut(Kind, Micros, String),
    ) {
        let (version, at) = (delivery.version, delivery.at);
        if !creator.is_possible() {
            say(
                Kind::Refused,
                at,
                format!("version {version} was delivered, and answered {:?}", creator.outcome),
            );
        }
        let (OperationKind::Add { delay, .. } | OperationKind::Patch { delay, .. }) = creator.operation_kind
        else {
            return;
        };
        let hurried = self.operations.iter().any(|o| {
            matches!(o.operation_kind, OperationKind::Run | OperationKind::Redrive)
                && o.is_possible()
                && o.sent <= at
        });
        // The receiver's clock is read in microseconds, dq's in milliseconds.
        let due = creator.sent + delay.saturating_sub(MILLISECOND + self.history.clocks_differ_by);
        if !hurried && at < due {
            say(
                Kind::Early,
                at,
                format!("version {version} came {} ms before it was due", (due - at) / MILLISECOND),
            );
        }
        self.judge_reserve(delivery, say);
        let ended = |o: &&&Operation| o.ends_others() && self.is_firm(o) && self.is_before(creator, o);
        // A change in a spool ends the earlier version only when the spool sends the change.
        let reaches_until = |o: &Operation| match o.outcome {
            Outcome::Spooled => {
                self.history.spools_empty_at.map_or(Micros::MAX, |at| self.in_flight_until(at))
            }
            _ => self.in_flight_until(o.answered),
        };
        if let Some(end) = self.operations.iter().filter(ended).find(|o| at > reaches_until(o)) {
            let after = (at - end.answered) / MILLISECOND;
            let text =
                format!("version {version} came {after} ms after {:?} had been answered", end.operation_kind);
            say(Kind::Revived, at, text);
        }
    }

    /// Reports an answer that contradicts what must exist or what can exist.
    fn judge_answer(&self, asked: &Operation, say: &mut impl FnMut(Kind, Micros, String)) {
        let there = || self.operations.iter().find(|o| self.must_be_there(o, asked));
        match (&asked.operation_kind, &asked.outcome) {
            (
                OperationKind::Delete | OperationKind::Run | OperationKind::Patch { .. } | OperationKind::Get,
                Outcome::NotFound,
            ) => {
                if let Some(there) = there() {
                    let version = there.version().unwrap_or(0);
                    say(
                        Kind::Hidden,
                        asked.sent,
                        format!("{:?} found nothing, and version {version} is there", asked.operation_kind),
                    );
                }
            }
            (OperationKind::Get, Outcome::Shown(shown)) => {
                let creator = self.operations.iter().find(|o| o.version() == Some(*shown));
                let Some(creator) = creator else {
                    return say(
                        Kind::Stale,
                        asked.sent,
                        format!("version {shown} is shown, and was never sent"),
                    );
                };
                let ended = |o: &&Operation| {
                    o.ends_others()
                        && self.is_firm(o)
                        && self.is_before(creator, o)
                        && self.is_before(o, asked)
                };
                if let Some(end) = self.operations.iter().find(|o| ended(o)) {
                    let text =
                        format!("version {shown} is shown after {:?} had been answered", end.operation_kind);
                    say(Kind::Stale, asked.sent, text);
                }
            }
            (OperationKind::Add { version, rule: Rule::Reject | Rule::Keep, .. }, Outcome::Done) => {
                let Some(there) = there() else { return };
                let is_reject = matches!(asked.operation_kind, OperationKind::Add { rule: Rule::Reject, .. });
                if is_reject || self.deliveries.contains_key(version) {
                    let other = there.version().unwrap_or(0);
                    say(
                        Kind::StoredTwice,
                        asked.sent,
                        format!("version {version} was stored, and version {other} was there"),
                    );
                }
            }
            _ => {}
        }
        let says_that_it_is_there = match asked.operation_kind {
            OperationKind::Add { .. } => asked.outcome == Outcome::Exists,
            OperationKind::Delete | OperationKind::Run | OperationKind::Patch { .. } => {
                asked.outcome == Outcome::Done
            }
            _ => false,
        };
        if says_that_it_is_there && !self.can_be_there(asked) {
            say(
                Kind::Phantom,
                asked.sent,
                format!(
                    "{:?} was answered {:?}, and nothing can be there",
                    asked.operation_kind, asked.outcome
                ),
            );
        }
    }

    /// Reports a version that was certainly stored, but was not delivered. It is lost, or it is stuck in the store.
    fn judge_presence(&self, creator: &Operation, say: &mut impl FnMut(Kind, Micros, String)) {
        let Some(version) = creator.version() else { return };
        let is_stored = match creator.operation_kind {
            OperationKind::Add { rule: Rule::Keep, .. } => {
                self.is_certain(creator) && !self.can_be_there(creator)
            }
            _ => self.is_firm(creator),
        };
        let may_end = |o: &&&Operation| {
            o.ends_others() && o.is_possible() && o.version() != Some(version) && !self.is_before(o, creator)
        };
        let is_delivered = self.deliveries.get(&version).is_some_and(|all| all.iter().any(|d| d.is_accepted));
        let may_be_acked =
            |o: &&Operation| o.operation_kind == OperationKind::Ack(version) && o.is_possible();
        let is_ended = || self.operations.iter().any(|o| may_end(&o) || may_be_acked(o));
        if !is_stored || is_delivered || is_ended() {
            return;
        }
        match self.history.left.get(&self.id) {
            Some(Found::Nothing) | None => {
                say(Kind::Lost, creator.sent, format!("version {version} was acknowledged, and is nowhere"));
            }
            Some(Found::Pending(left) | Found::Dead(left)) if *left == version => {
                say(Kind::Stuck, creator.sent, format!("version {version} is there, and is not delivered"));
            }
            Some(Found::Pending(left) | Found::Dead(left)) => {
                say(
                    Kind::Lost,
                    creator.sent,
                    format!("version {version} was acknowledged; there is version {left}"),
                );
            }
            Some(Found::NoAnswer(_)) => {}
        }
    }

    /// Returns the latest time at which a callback that was in flight at `at` may reach the receiver. A process that
    /// was stopped may send its callback after it continues.
    fn in_flight_until(&self, at: Micros) -> Micros {
        let mut until = at + IN_FLIGHT;
        loop {
            let reaching =
                self.history.stops.iter().filter(|stop| stop.from <= until && stop.to + IN_FLIGHT > until);
            match reaching.map(|stop| stop.to + IN_FLIGHT).max() {
                Some(later) => until = later,
                None => return until,
            }
        }
    }

    /// Whether the operation was done, and cannot be undone.
    fn is_certain(&self, operation: &Operation) -> bool {
        let overlaps =
            |span: &crate::ledger::Span| operation.sent <= span.to && operation.answered >= span.from;
        operation.outcome == Outcome::Done && !self.history.weak.iter().any(overlaps)
    }

    /// Whether the operation was done, or will be done in the end. A change in a spool can be lost in only one way:
    /// after the request was sent, a replica that lacks the change is promoted.
    fn is_firm(&self, operation: &Operation) -> bool {
        let may_be_lost = |span: &crate::ledger::Span| span.to >= operation.sent;
        match operation.outcome {
            Outcome::Spooled => !self.history.weak.iter().any(may_be_lost),
            _ => self.is_certain(operation),
        }
    }

    /// Returns the latest time at which the operation can have been done.
    fn latest(&self, operation: &Operation) -> Micros {
        match operation.outcome {
            Outcome::Unknown => self.in_flight_until(operation.answered),
            Outcome::Spooled => self.history.spools_empty_at.unwrap_or(Micros::MAX),
            _ => operation.answered,
        }
    }

    /// Whether it is certain that one operation was done before the other one. This follows from the order on their
    /// connection, from the order of the spool, or from the time.
    fn is_before(&self, one: &Operation, other: &Operation) -> bool {
        let in_order = one.line == other.line && one.number < other.number;
        // If the spool has a change of a job, a later request about this job is done after the change. Requests about
        // dead letters do not wait for the spool.
        let is_behind = one.outcome == Outcome::Spooled
            && one.answered < other.sent
            && !matches!(other.operation_kind, OperationKind::Redrive | OperationKind::Purge);
        (in_order && one.outcome != Outcome::Unknown) || is_behind || self.latest(one) < other.sent
    }

    /// Whether the version that `creator` stored is certainly pending for the whole time of `asked`.
    fn must_be_there(&self, creator: &Operation, asked: &Operation) -> bool {
        let Some(version) = creator.version() else { return false };
        let stores = !matches!(creator.operation_kind, OperationKind::Add { rule: Rule::Keep, .. });
        if !stores || !self.is_certain(creator) || !self.is_before(creator, asked) {
            return false;
        }
        let may_end = |o: &&Operation| {
            o.ends_others()
                && o.is_possible()
                && o.version() != Some(version)
                && !std::ptr::eq(*o, asked)
                && !self.is_before(o, creator)
                && !self.is_before(asked, o)
        };
        let came =
            self.deliveries.get(&version).is_some_and(|all| all.iter().any(|d| d.at <= asked.answered));
        !came && !self.operations.iter().any(may_end)
    }

    /// Whether some version may exist at some moment during `asked`.
    fn can_be_there(&self, asked: &Operation) -> bool {
        let ended = |creator: &Operation| {
            let ends = |o: &&Operation| {
                o.ends_others()
                    && self.is_certain(o)
                    && self.is_before(creator, o)
                    && self.is_before(o, asked)
            };
            self.operations.iter().any(ends)
        };
        let can = |o: &&Operation| {
            o.version().is_some()
                && !std::ptr::eq(*o, asked)
                && o.is_possible()
                && !self.is_before(asked, o)
                && !ended(o)
        };
        self.operations.iter().any(can)
    }
}

#[path = "judge_reserves.rs"]
mod reserves;

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

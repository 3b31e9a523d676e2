//! What clients that reserve jobs must not see.

use super::{Kind, Of};
use crate::ledger::{Delivery, MILLISECOND, Micros, Operation, OperationKind, Outcome};

impl Of<'_> {
    /// Reports a reserved job that was acked before, or that comes before the end of the delay of its nack.
    pub(super) fn judge_reserve(&self, delivery: &Delivery, say: &mut impl FnMut(Kind, Micros, String)) {
        let Delivery { version, at, asked: Some(asked), .. } = *delivery else { return };
        // A process may lease a job before an ack is answered, and may then be stopped for longer than the lease. So a
        // client may get the job after the answer to the ack.
        let is_after = |o: &&&Operation| {
            self.is_certain(o) && (asked > o.answered || at > self.in_flight_until(o.answered))
        };
        let mut after = self.operations.iter().filter(is_after);
        if let Some(ack) = after.clone().find(|o| o.operation_kind == OperationKind::Ack(version)) {
            let late = (at - ack.answered) / MILLISECOND;
            say(
                Kind::Repeated,
                at,
                format!("version {version} came {late} ms after its ack had been answered"),
            );
        }
        let too_early = |o: &&Operation| {
            let OperationKind::Nack { version: nacked, delay } = o.operation_kind else { return None };
            let until = o.sent + delay.saturating_sub(MILLISECOND + self.history.clocks_differ_by);
            (nacked == version && asked > o.answered && at < until).then(|| until - at)
        };
        let is_hurried = |since: Micros| {
            let hurries = |o: &Operation| {
                o.operation_kind == OperationKind::Run
                    && o.is_possible()
                    && self.latest(o) >= since
                    && o.sent <= at
            };
            self.operations.iter().any(|o| hurries(o))
        };
        if let Some((nack, early)) = after.find_map(|o| Some((o, too_early(o)?)))
            && !is_hurried(nack.sent)
        {
            let early = early / MILLISECOND;
            say(Kind::Early, at, format!("version {version} came {early} ms before the end of its nack"));
        }
    }

    /// Finds two faults: (1) the daemon answers a client's report with success although the job had ended; (2) the
    /// daemon still shows a version of a job after a client has acked this version.
    pub(super) fn judge_report(&self, asked: &Operation, say: &mut impl FnMut(Kind, Micros, String)) {
        let (version, kind) = match (asked.reported(), &asked.outcome) {
            (Some(version), Outcome::Done) => (version, Kind::Phantom),
            (None, Outcome::Shown(version)) => (*version, Kind::Stale),
            _ => return,
        };
        let Some(creator) = self.operations.iter().find(|o| o.version() == Some(version)) else { return };
        let ends = |o: &&&Operation| {
            let is_end = match o.operation_kind {
                OperationKind::Ack(acked) => acked == version,
                // Here, a shown version is checked only against acks. `judge_answer` checks it against the other ends.
                _ if kind == Kind::Stale => false,
                _ => o.ends_others() && o.version() != Some(version) && self.is_before(creator, o),
            };
            is_end && !std::ptr::eq(**o, asked) && self.is_certain(o) && o.answered < asked.sent
        };
        if let Some(end) = self.operations.iter().find(ends) {
            let (what, outcome, other) = (asked.operation_kind, &asked.outcome, end.operation_kind);
            say(
                kind,
                asked.sent,
                format!("{what:?} was answered {outcome:?}, after {other:?} had been answered"),
            );
        }
    }
}

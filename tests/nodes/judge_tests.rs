//! Each kind of fault is found in a history made by hand, and nothing is found in a similar history without the fault.

use super::*;
use crate::ledger::{Census, Count, Span};

const ID: Id = Id::Shared(1);

fn add(version: Version) -> OperationKind {
    OperationKind::Add { version, rule: Rule::Replace, delay: 0 }
}

fn with(version: Version, rule: Rule) -> OperationKind {
    OperationKind::Add { version, rule, delay: 0 }
}

/// A history that is written line by line. Times are in tenths of a second.
#[derive(Default)]
struct TestHistory(History);

impl TestHistory {
    /// Adds a request on its own connection.
    fn asked(self, from: u64, to: u64, operation_kind: OperationKind, outcome: Outcome) -> TestHistory {
        let line = 100 + self.0.operations.len() as u64;
        self.on(line, from, to, operation_kind, outcome)
    }

    fn on(
        mut self,
        line: u64,
        from: u64,
        to: u64,
        operation_kind: OperationKind,
        outcome: Outcome,
    ) -> TestHistory {
        let number = self.0.operations.len() as u64;
        let (sent, answered) = (from * SECOND / 10, to * SECOND / 10);
        self.0.operations.push(Operation { id: ID, line, number, operation_kind, sent, answered, outcome });
        self
    }

    fn came(mut self, at: u64, version: Version) -> TestHistory {
        let at = at * SECOND / 10;
        self.0.deliveries.push(Delivery { id: ID, version, at, is_accepted: true, asked: None });
        self
    }

    /// Adds a delivery: a client has reserved the job, and has not acked it with success.
    fn reserved(mut self, asked: u64, at: u64, version: Version) -> TestHistory {
        let (asked, at) = (Some(asked * SECOND / 10), at * SECOND / 10);
        self.0.deliveries.push(Delivery { id: ID, version, at, is_accepted: false, asked });
        self
    }

    fn left(mut self, found: Found) -> TestHistory {
        self.0.left.insert(ID, found);
        self
    }

    fn stopped(mut self, from: u64, to: u64) -> TestHistory {
        self.0.stops.push(Span { from: from * SECOND / 10, to: to * SECOND / 10 });
        self
    }

    fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = judge(&self.0).iter().map(|f| f.kind).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    #[track_caller]
    fn has(self, kind: Kind) {
        assert_eq!(self.kinds(), [kind], "{}", self.0.story(ID, 0));
    }

    #[track_caller]
    fn stands(self) {
        assert_eq!(self.kinds(), [], "{}", self.0.story(ID, 0));
    }
}

use Outcome::{Done, Exists, NotFound, Shown, Spooled, Unknown};

fn test_history() -> TestHistory {
    TestHistory::default()
}

#[test]
fn a_job_that_is_nowhere_is_lost() {
    test_history().asked(0, 1, add(1), Done).left(Found::Nothing).has(Kind::Lost);
    test_history().asked(0, 1, add(1), Done).has(Kind::Lost);
    test_history().asked(0, 1, add(1), Spooled).has(Kind::Lost);
    test_history().asked(0, 1, add(1), Done).came(2, 1).stands();
    test_history().asked(0, 1, add(1), Unknown).left(Found::Nothing).stands();
    test_history()
        .asked(0, 1, add(1), Done)
        .asked(0, 2, OperationKind::Delete, Unknown)
        .left(Found::Nothing)
        .stands();
    test_history()
        .asked(0, 1, add(1), Done)
        .asked(0, 2, OperationKind::Delete, NotFound)
        .left(Found::Nothing)
        .has(Kind::Lost);
}

#[test]
fn the_older_of_two_versions_may_be_gone_and_the_newer_not() {
    test_history().asked(0, 1, add(1), Done).asked(2, 3, add(2), Done).came(4, 2).stands();
    test_history()
        .asked(0, 1, add(1), Done)
        .asked(2, 3, add(2), Done)
        .left(Found::Pending(1))
        .has(Kind::Lost);
    // The two adds overlap, so each of them may be the newer one.
    test_history().asked(0, 2, add(1), Done).asked(1, 3, add(2), Done).came(4, 1).stands();
}

#[test]
fn a_job_that_is_shown_and_does_not_come_is_stuck() {
    test_history().asked(0, 1, add(1), Done).left(Found::Pending(1)).has(Kind::Stuck);
    test_history().asked(0, 1, add(1), Done).left(Found::Dead(1)).has(Kind::Stuck);
}

#[test]
fn a_job_that_comes_too_early_is_found_unless_it_was_hurried() {
    let later = OperationKind::Add { version: 1, rule: Rule::Replace, delay: 2 * SECOND };
    test_history().asked(0, 1, later, Done).came(19, 1).has(Kind::Early);
    test_history().asked(0, 1, later, Done).came(20, 1).stands();
    test_history().asked(0, 1, later, Done).asked(2, 3, OperationKind::Run, Unknown).came(4, 1).stands();
    test_history().asked(0, 1, later, Done).asked(2, 3, OperationKind::Run, NotFound).came(4, 1).asked(
        5,
        6,
        OperationKind::Get,
        NotFound,
    );
    let mut history = test_history().asked(0, 1, later, Done).came(12, 1);
    history.0.clocks_differ_by = SECOND;
    history.stands();
}

#[test]
fn a_delivery_after_its_end_is_found_unless_it_was_in_flight() {
    let replaced = || test_history().asked(0, 1, add(1), Done).asked(2, 3, add(2), Done).came(5, 2);
    replaced().came(40, 1).has(Kind::Revived);
    replaced().came(10, 1).stands();
    let deleted = || test_history().asked(0, 1, add(1), Done).asked(2, 3, OperationKind::Delete, Done);
    deleted().came(40, 1).has(Kind::Revived);
    // A process that held the job was stopped, and then continued.
    deleted().stopped(2, 35).came(40, 1).stands();
    deleted().stopped(20, 35).came(40, 1).has(Kind::Revived);
    // The delete overlaps the add, so the delete may have been done first.
    test_history().asked(0, 3, add(1), Done).asked(2, 4, OperationKind::Delete, Done).came(40, 1).stands();
    // If a master is lost, changes that it has acknowledged may be lost too.
    let mut history = deleted().came(40, 1);
    history.0.weak.push(Span { from: 2 * SECOND / 10, to: 4 * SECOND / 10 });
    history.stands();
}

#[test]
fn requests_of_one_connection_keep_their_order() {
    let pipelined = |first: OperationKind, second: OperationKind| {
        test_history().on(1, 0, 5, first, Done).on(1, 0, 5, second, Done)
    };
    pipelined(add(1), add(2)).came(6, 2).stands();
    pipelined(add(1), add(2)).came(40, 1).came(6, 2).has(Kind::Revived);
    pipelined(add(1), add(2)).left(Found::Pending(1)).has(Kind::Lost);
    pipelined(add(1), OperationKind::Delete).asked(6, 7, OperationKind::Get, Shown(1)).has(Kind::Stale);
    pipelined(add(1), OperationKind::Delete).asked(6, 7, OperationKind::Get, NotFound).stands();
}

#[test]
fn an_old_version_is_allowed_until_the_spools_are_empty() {
    let spooled = || test_history().asked(0, 1, add(1), Done).asked(2, 3, add(2), Spooled).came(40, 1);
    spooled().came(50, 2).stands();
    assert_eq!(behind_spools(&spooled().came(50, 2).0), 1);
    spooled().has(Kind::Lost);
    let empty_at = |tenths: u64| {
        let mut history = spooled().came(50, 2);
        history.0.spools_empty_at = Some(tenths * SECOND / 10);
        history
    };
    empty_at(39).stands();
    empty_at(20).has(Kind::Revived);
    test_history().asked(0, 1, add(1), Done).asked(2, 3, OperationKind::Delete, Spooled).came(40, 1).stands();
}

#[test]
fn what_is_asked_behind_a_spooled_change_sees_it() {
    let spooled = || test_history().asked(0, 1, add(1), Done).asked(2, 3, add(2), Spooled);
    spooled().asked(4, 5, OperationKind::Get, Shown(1)).came(50, 2).has(Kind::Stale);
    spooled().asked(4, 5, OperationKind::Get, Shown(2)).came(50, 2).stands();
    // dq does the request after it has sent the spooled change. So the version of the spooled change cannot come later.
    spooled().asked(4, 5, add(3), Done).came(50, 2).came(60, 3).has(Kind::Revived);
    spooled().asked(4, 5, add(3), Spooled).came(60, 3).stands();
    spooled().asked(4, 5, add(3), Done).has(Kind::Lost);
}

#[test]
fn a_refused_or_unsent_version_that_comes_is_found() {
    let refused = Outcome::Refused("node_down".into());
    test_history().asked(0, 1, add(1), refused).came(2, 1).has(Kind::Refused);
    test_history().came(2, 7).has(Kind::Refused);
}

#[test]
fn a_job_that_is_there_and_not_found_is_hidden() {
    for operation_kind in [
        OperationKind::Get,
        OperationKind::Run,
        OperationKind::Delete,
        OperationKind::Patch { version: 9, delay: 0 },
    ] {
        test_history()
            .asked(0, 1, add(1), Done)
            .asked(2, 3, operation_kind, NotFound)
            .came(9, 1)
            .has(Kind::Hidden);
        test_history().asked(0, 1, add(1), Done).asked(2, 3, operation_kind, NotFound).came(3, 1).stands();
        test_history().asked(0, 1, add(1), Unknown).asked(2, 3, operation_kind, NotFound).came(9, 1).stands();
        test_history().asked(0, 3, add(1), Done).asked(2, 3, operation_kind, NotFound).came(9, 1).stands();
    }
}

#[test]
fn something_where_nothing_can_be_is_a_phantom() {
    let deleted = || test_history().asked(0, 1, add(1), Done).asked(2, 3, OperationKind::Delete, Done);
    deleted().asked(4, 5, with(2, Rule::Reject), Exists).has(Kind::Phantom);
    deleted().asked(4, 5, OperationKind::Run, Done).has(Kind::Phantom);
    deleted().asked(4, 5, OperationKind::Delete, Done).has(Kind::Phantom);
    deleted().asked(4, 5, with(2, Rule::Reject), Done).came(6, 2).stands();
    deleted().asked(3, 5, add(3), Unknown).asked(4, 5, with(2, Rule::Reject), Exists).stands();
}

#[test]
fn a_version_that_was_replaced_and_is_shown_is_stale() {
    let replaced = || test_history().asked(0, 1, add(1), Done).asked(2, 3, add(2), Done).came(9, 2);
    replaced().asked(4, 5, OperationKind::Get, Shown(1)).has(Kind::Stale);
    replaced().asked(2, 5, OperationKind::Get, Shown(1)).stands();
    replaced().asked(4, 5, OperationKind::Get, Shown(2)).stands();
    replaced().asked(4, 5, OperationKind::Get, Shown(7)).has(Kind::Stale);
}

#[test]
fn an_add_that_had_to_find_the_other_is_stored_twice() {
    let there = || test_history().asked(0, 1, add(1), Done).came(30, 1);
    there().asked(2, 3, with(2, Rule::Reject), Done).came(31, 2).has(Kind::StoredTwice);
    there().asked(2, 3, with(2, Rule::Keep), Done).came(31, 2).has(Kind::StoredTwice);
    there().asked(2, 3, with(2, Rule::Keep), Done).stands();
    // If no job exists, an add with `keep` stores its job.
    test_history().asked(0, 1, with(1, Rule::Keep), Done).left(Found::Nothing).has(Kind::Lost);
    test_history().asked(0, 1, with(1, Rule::Keep), Done).came(2, 1).stands();
}

#[test]
fn a_reserved_job_without_an_ack_is_lost() {
    let reserved = || test_history().asked(0, 1, add(1), Done).reserved(1, 2, 1);
    let ack = OperationKind::Ack(1);
    reserved().left(Found::Nothing).has(Kind::Lost);
    reserved().left(Found::Pending(1)).has(Kind::Stuck);
    reserved().asked(3, 4, ack, Unknown).left(Found::Nothing).stands();
    reserved().asked(3, 4, ack, Done).left(Found::Nothing).stands();
    reserved().asked(3, 4, ack, Outcome::Refused("gone".into())).left(Found::Nothing).has(Kind::Lost);
    let nack = OperationKind::Nack { version: 1, delay: 0 };
    reserved().asked(3, 4, nack, Done).left(Found::Nothing).has(Kind::Lost);
    reserved().asked(3, 4, OperationKind::Extend(1), Done).left(Found::Nothing).has(Kind::Lost);
}

#[test]
fn an_acked_job_that_comes_again_is_found() {
    let acked = || {
        test_history().asked(0, 1, add(1), Done).reserved(1, 2, 1).asked(3, 4, OperationKind::Ack(1), Done)
    };
    acked().stands();
    acked().reserved(5, 6, 1).has(Kind::Repeated);
    acked().reserved(3, 6, 1).stands();
    acked().reserved(3, 40, 1).has(Kind::Repeated);
    acked().stopped(2, 35).reserved(3, 40, 1).stands();
    acked().asked(5, 6, OperationKind::Get, Shown(1)).has(Kind::Stale);
    acked().asked(3, 6, OperationKind::Get, Shown(1)).stands();
    // If a master is lost, changes that it has acknowledged may be lost too.
    let mut history = acked().reserved(5, 6, 1);
    history.0.weak.push(Span { from: 3 * SECOND / 10, to: 4 * SECOND / 10 });
    history.stands();
    let unknown = test_history().asked(0, 1, add(1), Done).asked(3, 4, OperationKind::Ack(1), Unknown);
    unknown.reserved(5, 6, 1).stands();
}

#[test]
fn a_report_about_a_job_that_has_ended_is_a_phantom() {
    let reserved = || test_history().asked(0, 1, add(1), Done).reserved(1, 2, 1);
    let nack = OperationKind::Nack { version: 1, delay: 0 };
    for report in [OperationKind::Ack(1), nack, OperationKind::Extend(1)] {
        reserved().asked(3, 4, OperationKind::Ack(1), Done).asked(5, 6, report, Done).has(Kind::Phantom);
        reserved().asked(3, 4, OperationKind::Delete, Done).asked(5, 6, report, Done).has(Kind::Phantom);
        let replaced = reserved().asked(3, 4, add(2), Done).asked(5, 6, report, Done);
        replaced.came(7, 2).has(Kind::Phantom);
        reserved().asked(3, 6, OperationKind::Delete, Done).asked(5, 6, report, Done).stands();
    }
}

#[test]
fn a_job_that_comes_before_the_end_of_its_nack_is_found() {
    let nack = OperationKind::Nack { version: 1, delay: SECOND };
    let nacked =
        || test_history().asked(0, 1, add(1), Done).reserved(1, 2, 1).asked(3, 4, nack, Done).came(30, 1);
    nacked().reserved(5, 12, 1).has(Kind::Early);
    nacked().reserved(5, 13, 1).stands();
    nacked().reserved(3, 12, 1).stands();
    nacked().asked(5, 6, OperationKind::Run, Done).reserved(5, 12, 1).stands();
}

#[test]
fn an_unreachable_job_and_a_wrong_count_are_found() {
    test_history().asked(0, 1, add(1), Done).left(Found::NoAnswer("node_down".into())).has(Kind::Unreachable);
    let mut history = test_history().asked(0, 1, add(1), Done).came(2, 1);
    let count = |pending| Count { pending, dead: 0 };
    history.0.censuses.push(Census { when: "at the end", reported: count(1), found: count(1) });
    history.0.censuses.push(Census { when: "at the end", reported: count(1), found: count(0) });
    assert_eq!(judge(&history.0).len(), 1);
    history.has(Kind::Count);
}

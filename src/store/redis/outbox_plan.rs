//! Decides what is sent from an outbox, and what is removed from it. docs/internals/FOLLOW.md has the rules. Pure.
//!
//! A target is a shard that gets jobs. Each target keeps a mark for each source: the number of the last entry that the
//! target took from the source. A batch for a target begins with the first entry after the mark of the target. The
//! batch has all entries for this target up to the last entry of the batch. The target takes the batch only if its mark
//! is still the mark that the sender has read. So the target takes each entry once.

use std::collections::{BTreeMap, BTreeSet};

/// The entries of one call to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutboxBatch {
    /// The mark that the target must have.
    pub expected: i64,
    /// The mark that the target has after the batch: the number of the last entry.
    pub number: i64,
    /// The numbers of the entries.
    pub entries: Vec<i64>,
}

/// What to do with a page of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutboxPlan<T> {
    /// Entries that their targets took before.
    pub taken: Vec<i64>,
    /// What is sent to each target.
    pub batches: BTreeMap<T, OutboxBatch>,
}

/// Plans what to do with a page of entries, each with its number and its target, in the order of their numbers.
/// `marks`: the marks of the targets. `blocked`: targets for which an earlier entry waits, so that later entries must
/// wait too.
pub(super) fn plan<T: Ord + Copy>(
    entries: &[(i64, T)],
    marks: &BTreeMap<T, i64>,
    blocked: &BTreeSet<T>,
) -> OutboxPlan<T> {
    let mut plan = OutboxPlan { taken: Vec::new(), batches: BTreeMap::new() };
    for (number, target) in entries {
        let Some(mark) = marks.get(target) else { continue };
        if number <= mark {
            plan.taken.push(*number);
        } else if !blocked.contains(target) {
            let new = || OutboxBatch { expected: *mark, number: 0, entries: Vec::new() };
            let batch = plan.batches.entry(*target).or_insert_with(new);
            batch.number = *number;
            batch.entries.push(*number);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A sender between two of its steps.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    enum SimulatedSender {
        Idle,
        /// The sender has read the page, but not the marks.
        Took(Vec<(i64, u8)>),
        /// The sender knows what to do. It still has to send batches and removals, in any order of the targets.
        Planned {
            batches: Vec<(u8, i64, i64, Vec<i64>)>,
            done: Vec<i64>,
        },
    }

    /// The source, two targets, two senders, and what may still happen.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct OutboxModel {
        /// Number and target of each entry that is in the outbox.
        outbox: Vec<(i64, u8)>,
        written: Vec<(i64, u8)>,
        marks: [i64; 2],
        /// How often each entry was added.
        added: Vec<(i64, u8)>,
        senders: [SimulatedSender; 2],
        kills: u8,
        outages: u8,
        to_write: Vec<u8>,
    }

    impl OutboxModel {
        /// Returns all states that one event leads to.
        fn next(&self) -> Vec<OutboxModel> {
            let mut all = Vec::new();
            if let Some((target, rest)) = self.to_write.split_first() {
                let mut world = self.clone();
                let number = self.written.len() as i64 + 1;
                world.outbox.push((number, *target));
                world.written.push((number, *target));
                world.to_write = rest.to_vec();
                all.push(world);
            }
            for s in 0..2 {
                if self.senders[s] != SimulatedSender::Idle && self.kills > 0 {
                    let mut world = self.clone();
                    world.senders[s] = SimulatedSender::Idle;
                    world.kills -= 1;
                    all.push(world);
                }
                self.steps(s, &mut all);
            }
            all
        }

        fn steps(&self, s: usize, all: &mut Vec<OutboxModel>) {
            let mut then = |sender: SimulatedSender, change: &dyn Fn(&mut OutboxModel)| {
                let mut world = self.clone();
                world.senders[s] = sender;
                change(&mut world);
                all.push(world);
            };
            match &self.senders[s] {
                SimulatedSender::Idle if !self.outbox.is_empty() => {
                    // A page may be shorter than the outbox.
                    for page in [1, self.outbox.len()] {
                        then(SimulatedSender::Took(self.outbox[..page].to_vec()), &|_| {});
                    }
                }
                SimulatedSender::Idle => {}
                SimulatedSender::Took(entries) => {
                    let marks = BTreeMap::from([(0, self.marks[0]), (1, self.marks[1])]);
                    let plan = plan(entries, &marks, &BTreeSet::new());
                    let batch = |(t, b): (u8, OutboxBatch)| (t, b.expected, b.number, b.entries);
                    let batches: Vec<_> = plan.batches.into_iter().map(batch).collect();
                    then(SimulatedSender::Planned { batches, done: plan.taken }, &|_| {});
                }
                SimulatedSender::Planned { batches, done } if batches.is_empty() => {
                    then(SimulatedSender::Idle, &|w| w.outbox.retain(|(number, _)| !done.contains(number)));
                }
                SimulatedSender::Planned { batches, done } => {
                    for (n, (target, expected, number, entries)) in batches.iter().enumerate() {
                        let mut rest = batches.clone();
                        rest.remove(n);
                        let t = usize::from(*target);
                        if self.marks[t] != *expected || self.marks[t] >= *number {
                            // The target refuses the batch: another sender has sent. Its entries wait for the next
                            // round.
                            then(SimulatedSender::Planned { batches: rest, done: done.clone() }, &|_| {});
                            continue;
                        }
                        let take = |w: &mut OutboxModel| {
                            w.marks[t] = *number;
                            entries.iter().for_each(|entry| w.added.push((*entry, *target)));
                        };
                        let mut sent = done.clone();
                        sent.extend(entries);
                        then(SimulatedSender::Planned { batches: rest.clone(), done: sent }, &take);
                        if self.outages > 0 {
                            // The target does not answer. It may have taken the batch anyway.
                            let failed = SimulatedSender::Planned { batches: rest, done: done.clone() };
                            then(failed.clone(), &|w| w.outages -= 1);
                            then(failed, &|w| {
                                w.outages -= 1;
                                take(w);
                            });
                        }
                    }
                }
            }
        }

        fn check(&self) {
            let mut seen = HashSet::new();
            assert!(self.added.iter().all(|entry| seen.insert(*entry)), "twice: {self:?}");
            let lost = self.written.iter().find(|e| !self.outbox.contains(e) && !self.added.contains(e));
            assert_eq!(lost, None, "lost: {self:?}");
        }
    }

    /// Tries every order of these events: steps of two senders, kills after any step, lost answers, new entries.
    #[test]
    fn each_entry_is_taken_once_whoever_dies_when() {
        let first = OutboxModel {
            outbox: Vec::new(),
            written: Vec::new(),
            marks: [0, 0],
            added: Vec::new(),
            senders: [SimulatedSender::Idle, SimulatedSender::Idle],
            kills: 2,
            outages: 1,
            to_write: vec![0, 1, 0],
        };
        let (mut seen, mut left, mut ends) = (HashSet::from([first.clone()]), vec![first], 0);
        while let Some(world) = left.pop() {
            world.check();
            let next = world.next();
            if next.is_empty() {
                assert!(world.outbox.is_empty() && world.added.len() == 3, "stuck: {world:?}");
                ends += 1;
            }
            left.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        }
        assert!(seen.len() > 10_000 && ends > 1, "{} worlds, {ends} ends", seen.len());
    }

    #[test]
    fn a_target_that_is_down_holds_up_its_own_entries_alone() {
        let entries = [(1, 'a'), (2, 'b'), (3, 'a'), (4, 'c')];
        let marks = BTreeMap::from([('a', 1), ('b', 0)]);
        let made = plan(&entries, &marks, &BTreeSet::from(['b']));
        assert_eq!(made.taken, [1]);
        let batch = OutboxBatch { expected: 1, number: 3, entries: vec![3] };
        assert_eq!(made.batches, BTreeMap::from([('a', batch)]));
    }
}

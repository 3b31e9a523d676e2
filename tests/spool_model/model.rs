//! The state, and every event that can happen to it, except the steps of the sender.

use crate::scenario::{Budgets, Change, IDS, Scenario};
use crate::sender::Sender;

pub const SHARDS: usize = 2;

/// The maximum number of senders that are remembered somewhere or have a message in flight.
pub const NAMES: usize = 6;

/// The maximum number of noted batches.
pub const NOTED: usize = 6;

/// The maximum number of messages in flight.
pub const FLYING: usize = 4;

/// The maximum number of changes by the host with the spool, plus one.
const CHANGES: usize = 16;

/// For each job, the number of an entry. 0: no entry.
pub type Entries = [u8; IDS];

/// For each job, a set of its versions. The change with the number n has bit n.
type Versions = [u16; IDS];

/// The change of a job that waits on the host's disk. `seq` 0: no change waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    pub seq: u8,
    /// The number of the batch in which the entry was sent. 0: the entry was not sent.
    pub batch: u8,
    /// The dead letters that the job already had when the entry began to wait.
    older: u16,
}

/// A batch that is noted on the host's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Noted {
    pub number: u8,
    pub sender: u8,
    pub shard: u8,
    pub set: u8,
}

/// A batch in flight to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub shard: u8,
    pub set: u8,
    pub sender: u8,
    pub number: u8,
    pub entries: Entries,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    pub is_up: bool,
    /// The number of the set. The sets 1, 3 and 5 are open. In the sets 2 and 4, jobs are being moved.
    pub set: u8,
    /// For each job, the number of the change that stored it. A change by the other host has the bit `OTHER`. 0: the
    /// job does not exist.
    pub jobs: [u8; IDS],
    /// The versions of each job that became dead letters.
    letters: Versions,
    /// For each sender, the number of the last batch that this shard has taken from it.
    pub memory: [u8; NAMES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub shards: [Shard; SHARDS],
    /// The entries on the host's disk, by job. (`noted` is on this disk too.)
    pub entries: [Entry; IDS],
    pub noted: [Option<Noted>; NOTED],
    pub flying: [Option<Message>; FLYING],
    pub sender: Option<Sender>,
    /// How many steps of the change of the set are done.
    moved: u8,
    /// Which of the host's changes are adds: one bit for each change.
    adds: u16,
    /// Which changes were taken from the spool.
    taken: u16,
    /// Which changes may be taken twice, because a node that left the set and does not answer may have taken them.
    pub excused: u16,
    /// For each job, the number of the host's last acknowledged change, and (in `applied`) of the last change that the
    /// home of the job has taken.
    acknowledged: Entries,
    applied: Entries,
    /// For each change, the dead letters that stay when a shard takes it from the spool.
    kept: [u16; CHANGES],
    /// The dead letters that must stay: they became dead letters before the host acknowledged a later change.
    fair: Versions,
    /// Other dead letters that may stay, because an entry was replaced while its batch had no answer.
    doubtful: Versions,
    next_seq: u8,
    pub left: Budgets,
}

/// The outcome of a step of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The step is done, or nothing was sent because the server is down.
    Done,
    /// The step is done, but its answer is lost.
    AnswerLost,
    /// The message is in flight, and arrives later or never.
    Late,
    /// The disk accepts no writes.
    DiskFails,
    /// The next shard that is held up is not due yet.
    NotDue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// `Add`, `Delete` and `Keep` are changes by the host with the spool.
    Add(usize),
    Delete(usize),
    Keep(usize),
    /// `OtherAdd` and `OtherDelete` are changes by the other host.
    OtherAdd(usize),
    OtherDelete(usize),
    /// A job at a shard uses up its attempts.
    Dies(usize, usize),
    Down(usize),
    Up(usize),
    /// The next step of the change of the set.
    Change,
    Arrive(usize),
    SenderStarts,
    SenderDies,
    /// The sender's process reads the sets of the shards that answer.
    Learn,
    Sender(Outcome),
}

/// A change by another host has this bit.
const OTHER: u8 = 128;

impl State {
    pub fn new(scenario: &Scenario) -> State {
        let shard = |i: usize| Shard {
            is_up: true,
            set: u8::from(scenario.change == Change::Move || scenario.has(1, i)),
            jobs: [0; IDS],
            letters: [0; IDS],
            memory: [0; NAMES],
        };
        State {
            shards: [shard(0), shard(1)],
            entries: [Entry::default(); IDS],
            noted: [None; NOTED],
            flying: [None; FLYING],
            sender: Some(Sender::new(0, 1)),
            moved: 0,
            adds: 0,
            taken: 0,
            excused: 0,
            acknowledged: [0; IDS],
            applied: [0; IDS],
            kept: [0; CHANGES],
            fair: [0; IDS],
            doubtful: [0; IDS],
            next_seq: 1,
            left: scenario.budgets,
        }
    }

    pub fn events(&self, scenario: &Scenario) -> Vec<Event> {
        let mut events = Vec::with_capacity(24);
        for id in 0..scenario.ids {
            if self.left.changes > 0 {
                events.extend([Event::Add(id), Event::Delete(id), Event::Keep(id)]);
            }
            if self.left.others > 0 {
                events.extend([Event::OtherAdd(id), Event::OtherDelete(id)]);
            }
            if self.left.deaths > 0 {
                events.extend((0..SHARDS).map(|shard| Event::Dies(shard, id)));
            }
        }
        for shard in 0..SHARDS {
            events.push(if self.shards[shard].is_up { Event::Down(shard) } else { Event::Up(shard) });
        }
        events.extend((0..FLYING).filter(|i| self.flying[*i].is_some()).map(Event::Arrive));
        if scenario.change != Change::None {
            events.push(Event::Change);
        }
        match &self.sender {
            None => events.push(Event::SenderStarts),
            Some(sender) => {
                events.extend([Event::SenderDies, Event::Learn]);
                events.extend(sender.outcomes().iter().map(|outcome| Event::Sender(*outcome)));
            }
        }
        events
    }

    /// Returns the state after an event. `None`: the event cannot happen now, or has no effect. An error describes a
    /// fault.
    pub fn after(&self, event: Event, scenario: &Scenario) -> Result<Option<State>, String> {
        let mut next = *self;
        let happens = match event {
            Event::Add(id) => next.add(id, scenario),
            Event::Delete(id) => next.delete(id, scenario),
            Event::Keep(id) => next.keep(id, scenario),
            Event::OtherAdd(id) => next.other(id, true, scenario),
            Event::OtherDelete(id) => next.other(id, false, scenario),
            Event::Dies(shard, id) => next.die(shard, id),
            Event::Down(shard) => next.down(shard, scenario),
            Event::Up(shard) => next.up(shard, scenario),
            Event::Change => next.change(scenario),
            Event::Arrive(i) => next.arrive(i, scenario)?,
            Event::SenderStarts => next.start(),
            Event::SenderDies => next.sender.take().is_some() && spend(&mut next.left.crashes),
            Event::Learn => next.learn(),
            Event::Sender(outcome) => next.send(outcome, scenario)?,
        };
        if !happens {
            return Ok(None);
        }
        next.tidy();
        Ok((next != *self).then_some(next))
    }

    /// Returns the next event that heals the state. `None`: nothing waits any more.
    pub fn healing_event(&self, scenario: &Scenario) -> Option<Event> {
        if let Some(shard) = (0..SHARDS).find(|shard| !self.shards[*shard].is_up) {
            // A node that was given up comes back only after all processes know that it was given up.
            let is_late = scenario.change == Change::Forget && self.moved > 0;
            return Some(match self.sender.filter(|sender| is_late && sender.known < 3) {
                Some(sender) if sender.is_at_rest() => Event::Learn,
                Some(_) => Event::Sender(Outcome::Done),
                None => Event::Up(shard),
            });
        }
        let is_begun = self.moved > 0 && self.newest() < scenario.last_set();
        if is_begun || self.shards.iter().any(|shard| shard.set % 2 == 0 && shard.set > 0) {
            return Some(Event::Change);
        }
        let Some(sender) = &self.sender else {
            return (!self.is_spool_empty()).then_some(Event::SenderStarts);
        };
        if self.is_spool_empty() && sender.is_at_rest() {
            return None;
        }
        let knows = sender.known == self.newest() || !sender.is_at_rest();
        Some(if knows { Event::Sender(Outcome::Done) } else { Event::Learn })
    }

    /// Checks that the host sees its own changes in their order.
    pub fn judge(&self) -> Result<(), String> {
        for id in 0..IDS {
            let (waits, last) = (self.entries[id].seq, self.acknowledged[id]);
            let sees = if waits > 0 { waits } else { self.applied[id] };
            if sees < last {
                return Err(format!(
                    "the host sees its change {sees} of job {id}, and has acknowledged {last}"
                ));
            }
        }
        Ok(())
    }

    /// Checks a state in which nothing waits. The home of each job must have the host's last change and the right dead
    /// letters. No other shard may have the job.
    pub fn judge_at_rest(&self, scenario: &Scenario) -> Result<(), String> {
        for id in 0..scenario.ids {
            let (applied, last) = (self.applied[id], self.acknowledged[id]);
            if applied != last {
                return Err(format!("change {last} of job {id} is lost; {applied} is the last at its home"));
            }
            let home = scenario.home(self.newest(), id);
            let (letters, fair) = (self.shards[home].letters[id], self.fair[id]);
            if fair & !letters != 0 {
                return Err(format!("dead letters of job {id} are lost: {:b}", fair & !letters));
            }
            let stale = letters & !fair & !self.doubtful[id];
            if stale != 0 {
                return Err(format!("dead letters of job {id} are left although it was changed: {stale:b}"));
            }
            if let Some(shard) = (0..SHARDS).find(|s| *s != home && self.shards[*s].jobs[id] != 0) {
                return Err(format!("job {id} is at {shard}, and its home is {home}"));
            }
        }
        Ok(())
    }

    pub fn is_spool_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.seq == 0)
    }

    pub fn is_add(&self, seq: u8) -> bool {
        self.adds & 1 << seq != 0
    }

    fn newest(&self) -> u8 {
        self.shards.iter().map(|shard| shard.set).max().unwrap_or(0)
    }

    /// Returns where changes of a job are made now. `None`: its home does not answer, or jobs are being moved.
    fn home_now(&self, id: usize, scenario: &Scenario) -> Option<usize> {
        (0..SHARDS).find(|shard| {
            let there = &self.shards[*shard];
            there.is_up && self.is_current(there.set) && scenario.home(there.set, id) == *shard
        })
    }

    /// Whether changes can be made in this set: it is open, and it is the newest set, or the set right before a newest
    /// set in which jobs are being moved.
    fn is_current(&self, set: u8) -> bool {
        set % 2 == 1 && set + 1 >= self.newest()
    }

    /// Acknowledges a change by the host with the spool, and returns its number.
    fn next_change(&mut self, id: usize, is_add: bool) -> u8 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.adds |= u16::from(is_add) << seq;
        self.acknowledged[id] = seq;
        seq
    }

    fn at_home(&mut self, id: usize, home: usize, is_add: bool) {
        let seq = self.next_change(id, is_add);
        if !is_add && self.shards[home].jobs[id] == 0 {
            self.remove_letters(id, home);
        }
        self.shards[home].jobs[id] = if is_add { seq } else { 0 };
        self.applied[id] = seq;
    }

    /// Removes all dead letters of a job, as a deletion does if there is no job.
    fn remove_letters(&mut self, id: usize, home: usize) {
        self.fair[id] &= !std::mem::take(&mut self.shards[home].letters[id]);
    }

    fn letters(&self, id: usize) -> u16 {
        self.shards.iter().fold(0, |all, shard| all | shard.letters[id])
    }

    /// Puts a change into the spool.
    fn spool(&mut self, id: usize, is_add: bool, scenario: &Scenario) {
        let before = self.entries[id];
        let is_sent = before.batch > 0;
        let older = if before.seq == 0 || is_add && is_sent { self.letters(id) } else { before.older };
        if is_add && is_sent {
            self.doubtful[id] |= self.letters(id) & !self.fair[id];
        }
        if !is_add {
            self.fair[id] &= older;
        }
        let older = if scenario.rules.since_first || before.seq == 0 { older } else { self.letters(id) };
        let seq = self.next_change(id, is_add);
        self.kept[usize::from(seq)] = older;
        self.entries[id] = Entry { seq, batch: 0, older };
    }

    fn is_behind(&self, id: usize, scenario: &Scenario) -> bool {
        self.entries[id].seq > 0 && scenario.rules.queue_behind
    }

    fn add(&mut self, id: usize, scenario: &Scenario) -> bool {
        match self.home_now(id, scenario) {
            Some(home) if !self.is_behind(id, scenario) => self.at_home(id, home, true),
            _ => self.spool(id, true, scenario),
        }
        spend(&mut self.left.changes)
    }

    fn delete(&mut self, id: usize, scenario: &Scenario) -> bool {
        if self.is_behind(id, scenario) {
            if !self.is_add(self.entries[id].seq) {
                return false;
            }
            self.spool(id, false, scenario);
        } else {
            let Some(home) = self.home_now(id, scenario) else { return false };
            self.at_home(id, home, false);
        }
        spend(&mut self.left.changes)
    }

    /// Stores a job if it does not exist.
    fn keep(&mut self, id: usize, scenario: &Scenario) -> bool {
        let home = self.home_now(id, scenario);
        let Some(home) = home.filter(|_| !self.is_behind(id, scenario)) else { return false };
        if self.shards[home].jobs[id] != 0 {
            return false;
        }
        self.at_home(id, home, true);
        spend(&mut self.left.changes)
    }

    fn other(&mut self, id: usize, is_add: bool, scenario: &Scenario) -> bool {
        let Some(home) = self.home_now(id, scenario) else { return false };
        if !is_add && self.shards[home].jobs[id] == 0 {
            self.remove_letters(id, home);
        }
        self.shards[home].jobs[id] = if is_add { OTHER | self.left.others } else { 0 };
        spend(&mut self.left.others)
    }

    /// Makes a dead letter of a version of the host with the spool. (The model leaves out the dead letters of the other
    /// host.)
    fn die(&mut self, shard: usize, id: usize) -> bool {
        let there = &mut self.shards[shard];
        let version = there.jobs[id];
        if version == 0 || version & OTHER != 0 || !there.is_up {
            return false;
        }
        there.jobs[id] = 0;
        there.letters[id] |= 1 << version;
        if self.acknowledged[id] == version {
            self.fair[id] |= 1 << version;
        }
        spend(&mut self.left.deaths)
    }

    fn down(&mut self, shard: usize, scenario: &Scenario) -> bool {
        // When A is given up, B does not go down. (Otherwise a host that does not know that A was given up may use A.
        // The model leaves this case out, because it does not concern the spool.)
        let may = scenario.change != Change::Forget || shard == 0;
        may && std::mem::take(&mut self.shards[shard].is_up) && spend(&mut self.left.outages)
    }

    fn up(&mut self, shard: usize, scenario: &Scenario) -> bool {
        let is_given_up = scenario.change == Change::Forget && self.moved > 0;
        let all_know = self.sender.is_none_or(|sender| sender.known >= 3);
        (!is_given_up || all_know) && !std::mem::replace(&mut self.shards[shard].is_up, true)
    }

    /// Makes a step of `dq nodes move` or `dq nodes forget`. The model in ../node_set_model has these steps in detail.
    fn change(&mut self, scenario: &Scenario) -> bool {
        let [a, b] = &mut self.shards;
        if scenario.change == Change::Forget && self.moved == 0 {
            // The data of A is lost. Changes that were not sent to A yet are not lost.
            (b.set, self.moved) = (3, 1);
            return !a.is_up;
        }
        if !a.is_up || !b.is_up {
            return false;
        }
        let fence = if scenario.change == Change::Forget { 4 } else { 2 };
        let step = self.moved - u8::from(scenario.change == Change::Forget);
        match step {
            0 => a.set = fence,
            1 => b.set = fence,
            2 => {
                for id in 0..IDS {
                    if scenario.home(fence + 1, id) == 1 {
                        b.letters[id] |= std::mem::take(&mut a.letters[id]);
                        let from_a = std::mem::take(&mut a.jobs[id]);
                        // An adopted job does not replace a live job.
                        b.jobs[id] = if b.jobs[id] == 0 { from_a } else { b.jobs[id] };
                    }
                }
            }
            3 => b.set = fence + 1,
            4 => a.set = fence + 1,
            _ => return false,
        }
        self.moved += 1;
        true
    }

    fn arrive(&mut self, i: usize, scenario: &Scenario) -> Result<bool, String> {
        let Some(message) = self.flying[i].filter(|message| self.shards[usize::from(message.shard)].is_up)
        else {
            return Ok(false);
        };
        self.flying[i] = None;
        self.apply(message, scenario)?;
        Ok(true)
    }

    /// Runs the script of a shard. Returns false if the shard refuses the message. A shard refuses a message that
    /// carries another set than the set of the shard.
    pub fn apply(&mut self, message: Message, scenario: &Scenario) -> Result<bool, String> {
        let shard = usize::from(message.shard);
        let set = self.shards[shard].set;
        if set != message.set {
            return Ok(false);
        }
        let memory = &mut self.shards[shard].memory[usize::from(message.sender)];
        if *memory >= message.number && scenario.rules.memory {
            return Ok(true);
        }
        *memory = message.number;
        for (id, seq) in message.entries.into_iter().enumerate().filter(|(_, seq)| *seq > 0) {
            if self.taken & !self.excused & 1 << seq != 0 {
                return Err(format!("change {seq} of job {id} is taken twice"));
            }
            let is_home = self.is_current(set) && scenario.home(set, id) == shard;
            if is_home && seq < self.applied[id] {
                return Err(format!("change {seq} of job {id} is taken after {}", self.applied[id]));
            }
            if !is_home && scenario.change != Change::Forget {
                return Err(format!("change {seq} of job {id} is taken at {shard}, which is not its home"));
            }
            // A version that is taken twice becomes a live job again, so its dead letter need not stay.
            self.fair[id] &= !(self.taken & 1 << seq);
            self.taken |= 1 << seq;
            if scenario.rules.late_letters {
                self.shards[shard].letters[id] &= self.kept[usize::from(seq)];
            }
            self.shards[shard].jobs[id] = if self.is_add(seq) { seq } else { 0 };
            self.applied[id] = self.applied[id].max(seq);
        }
        Ok(true)
    }

    fn start(&mut self) -> bool {
        let is_known = |name: u8| {
            let in_noted = self.noted.iter().flatten().any(|noted| noted.sender == name);
            in_noted || self.flying.iter().flatten().any(|message| message.sender == name)
        };
        // A new sender may use the name of an old sender if nothing remembers this name.
        let name = (0..NAMES as u8).find(|name| !is_known(*name)).expect("there are enough names");
        let sets = self.shards.iter().filter(|shard| shard.is_up).map(|shard| shard.set);
        self.sender.is_none() && {
            self.sender = Some(Sender::new(name, sets.max().unwrap_or(0)));
            true
        }
    }

    fn learn(&mut self) -> bool {
        let newest = self.shards.iter().filter(|shard| shard.is_up).map(|shard| shard.set).max();
        let (Some(sender), Some(newest)) = (&mut self.sender, newest) else { return false };
        let is_news = sender.is_at_rest() && newest > sender.known;
        sender.known = sender.known.max(newest);
        is_news
    }
}

pub fn spend(budget: &mut u8) -> bool {
    let has = *budget > 0;
    *budget = budget.saturating_sub(1);
    has
}

//! The sender, one step at a time, as in src/store/redis/spool_sender.rs. The sender may die between any two steps.
//! Then only the data on the disk is left.

use crate::model::{Entries, Entry, FLYING, Message, Noted, Outcome, SHARDS, State, spend};
use crate::scenario::{IDS, Scenario};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sender {
    pub name: u8,
    /// The newest set that the sender has read. 0: none.
    pub known: u8,
    /// The set that the sender puts in its messages.
    set: u8,
    done_to: u8,
    /// For each shard, the first entry that waits because the shard is held up. 0: the shard is not held up.
    held_up: [u8; SHARDS],
    step: Step,
}

/// The next step. `left`: the shards with an unanswered batch, one bit for each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Rest,
    /// Reads the next batch with an unknown outcome, and its remaining entries.
    Ask {
        after: u8,
        left: u8,
    },
    /// Sends the batch once more.
    SendAgain {
        number: u8,
        entries: Entries,
        left: u8,
    },
    /// Notes the outcome of the batch.
    NoteAsked {
        number: u8,
        is_taken: bool,
        left: u8,
    },
    /// Reads a page of entries: for the next shard that is held up and is due, or after all entries that were read
    /// before.
    Read {
        next: usize,
        firsts: [u8; SHARDS],
        left: u8,
    },
    /// Notes the adds or the deletions of the page as batches.
    Note {
        page: Page,
    },
    /// Sends the batches, and then notes their outcomes.
    Send {
        page: Page,
        batches: [Option<Batch>; SHARDS],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Page {
    entries: Entries,
    is_deletions: bool,
    /// The held-up shard for which the page was read. `SHARDS`: the page is for all shards.
    of: usize,
    firsts: [u8; SHARDS],
    left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Batch {
    number: u8,
    entries: Entries,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Taken,
    NotTaken,
    Unknown,
}

fn first_of(entries: Entries) -> Option<u8> {
    entries.into_iter().filter(|seq| *seq > 0).min()
}

impl Sender {
    pub fn new(name: u8, known: u8) -> Sender {
        Sender { name, known, set: 0, done_to: 0, held_up: [0; SHARDS], step: Step::Rest }
    }

    pub fn is_at_rest(&self) -> bool {
        self.step == Step::Rest
    }

    pub fn outcomes(&self) -> &'static [Outcome] {
        use Outcome::{AnswerLost, DiskFails, Done, Late, NotDue};
        match self.step {
            Step::Rest => &[Done],
            Step::Ask { .. } => &[Done, AnswerLost],
            Step::SendAgain { .. } => &[Done, AnswerLost, Late],
            Step::Read { .. } => &[Done, NotDue],
            Step::NoteAsked { .. } | Step::Note { .. } => &[Done, DiskFails],
            Step::Send { batches, .. } if batches.iter().flatten().any(|batch| batch.answer.is_none()) => {
                &[Done, AnswerLost, Late]
            }
            Step::Send { .. } => &[Done, DiskFails],
        }
    }

    /// Returns the number of the batch that the sender is sending to a shard.
    pub fn number_of(&self, shard: u8) -> Option<u8> {
        match self.step {
            Step::Send { batches, .. } => batches[usize::from(shard)].map(|batch| batch.number),
            _ => None,
        }
    }

    /// Changes the numbers of the batches that the sender has in memory.
    pub fn renumber(&mut self, mut anew: impl FnMut(&mut u8)) {
        match &mut self.step {
            Step::Ask { after, .. } => anew(after),
            Step::SendAgain { number, .. } | Step::NoteAsked { number, .. } => anew(number),
            Step::Send { batches, .. } => {
                for batch in batches.iter_mut().flatten() {
                    anew(&mut batch.number);
                }
            }
            _ => {}
        }
    }

    fn block_shard(&mut self, shard: usize, entries: Entries) {
        let Some(first) = first_of(entries) else { return };
        let held = &mut self.held_up[shard];
        *held = if *held == 0 { first } else { first.min(*held) };
    }

    /// Ends the work on a page because the disk accepts no writes. The sender begins this work again later.
    fn give_up(&mut self, page: Option<Page>, scenario: &Scenario) {
        if let Some(page) = page.filter(|page| page.of < SHARDS && scenario.rules.held_until_noted) {
            self.held_up[page.of] = page.firsts[page.of];
        }
        self.step = Step::Rest;
    }

    /// Chooses the next step after the adds or the deletions of a page are complete.
    fn after_part(&mut self, page: Page) {
        self.step = if !page.is_deletions {
            Step::Note { page: Page { is_deletions: true, ..page } }
        } else if page.of == SHARDS {
            self.done_to = page.entries.into_iter().max().unwrap_or(0);
            Step::Read { next: SHARDS, firsts: page.firsts, left: page.left }
        } else {
            let first = page.firsts[page.of];
            match &mut self.held_up[page.of] {
                0 => self.done_to = self.done_to.min(first - 1),
                held => *held = first,
            }
            Step::Read { next: page.of + 1, firsts: page.firsts, left: page.left }
        };
    }
}

impl State {
    /// Makes the sender's next step. Returns false if the step has no effect.
    pub fn send(&mut self, outcome: Outcome, scenario: &Scenario) -> Result<bool, String> {
        let Some(mut sender) = self.sender else { return Ok(false) };
        if outcome == Outcome::DiskFails {
            let page = match sender.step {
                Step::Note { page } | Step::Send { page, .. } => Some(page),
                _ => None,
            };
            sender.give_up(page, scenario);
            self.sender = Some(sender);
            return Ok(spend(&mut self.left.disk));
        }
        match sender.step {
            Step::Rest => self.begin(&mut sender),
            Step::Ask { after, left } => self.ask(&mut sender, after, left, outcome, scenario),
            Step::SendAgain { number, entries, left } => {
                let noted = self.noted.iter().flatten().find(|noted| noted.number == number);
                let Noted { shard, set, sender: name, .. } = *noted.expect("it was noted");
                let message = Message { shard, set, sender: name, number, entries };
                sender.step = match self.deliver(&mut sender, message, outcome, scenario)? {
                    Answer::Taken => Step::NoteAsked { number, is_taken: true, left },
                    _ => Step::Ask { after: number, left: left | 1 << shard },
                };
            }
            Step::NoteAsked { number, is_taken, left } => {
                self.note_answered(&mut sender, number, is_taken);
                sender.step = Step::Ask { after: number, left };
            }
            Step::Read { next, firsts, left } => {
                self.read(&mut sender, next, firsts, left, outcome, scenario);
            }
            Step::Note { page } => self.note(&mut sender, page, scenario),
            Step::Send { page, batches } => self.send_batch(&mut sender, page, batches, outcome, scenario)?,
        }
        let before = self.sender.replace(sender);
        Ok(before != Some(sender))
    }

    fn begin(&mut self, sender: &mut Sender) {
        if self.is_spool_empty() {
            return;
        }
        if sender.known.is_multiple_of(2) {
            let sets = self.shards.iter().filter(|shard| shard.is_up).map(|shard| shard.set);
            sender.known = sets.max().unwrap_or(0).max(sender.known);
        }
        if sender.known % 2 == 1 {
            if sender.set != sender.known {
                (sender.set, sender.done_to, sender.held_up) = (sender.known, 0, [0; SHARDS]);
            }
            sender.step = Step::Ask { after: 0, left: 0 };
        }
    }

    fn ask(&mut self, sender: &mut Sender, after: u8, left: u8, outcome: Outcome, scenario: &Scenario) {
        let rules = scenario.rules;
        let noted = self.noted.iter().flatten().filter(|noted| noted.number > after);
        let Some(noted) = noted.min_by_key(|noted| noted.number).copied() else {
            let mut firsts = sender.held_up;
            (0..SHARDS).filter(|shard| left & 1 << shard != 0).for_each(|shard| firsts[shard] = 0);
            sender.step = Step::Read { next: 0, firsts, left };
            return;
        };
        let number = noted.number;
        let unknown = Step::Ask { after: number, left: left | 1 << noted.shard };
        let asked = |is_taken| Step::NoteAsked { number, is_taken, left };
        let entries = self.entries.map(|entry| if entry.batch == number { entry.seq } else { 0 });
        let is_same_set = noted.set == sender.set;
        sender.step = if left & 1 << noted.shard != 0 {
            Step::Ask { after: number, left }
        } else if first_of(entries).is_none() && !(is_same_set && rules.send_empty) {
            asked(true)
        } else if is_same_set {
            Step::SendAgain { number, entries, left }
        } else if !rules.ask_old {
            asked(false)
        } else {
            let there = &self.shards[usize::from(noted.shard)];
            let is_in_set = scenario.has(sender.set, usize::from(noted.shard));
            let is_other = there.set == noted.set || is_in_set && there.set != sender.set;
            match there.is_up && outcome == Outcome::Done {
                true if is_other && rules.old_has_set => unknown,
                true => asked(there.memory[usize::from(noted.sender)] >= number),
                false if is_in_set => unknown,
                false => {
                    entries.iter().filter(|seq| **seq > 0).for_each(|seq| self.excused |= 1 << seq);
                    asked(false)
                }
            }
        };
    }

    /// Delivers a message with this outcome. Returns the answer.
    fn deliver(
        &mut self,
        sender: &mut Sender,
        message: Message,
        outcome: Outcome,
        scenario: &Scenario,
    ) -> Result<Answer, String> {
        let shard = usize::from(message.shard);
        if outcome == Outcome::Late {
            // If there is no room for the message, it is lost.
            let places = self.flying.iter_mut().take(FLYING.min(self.left.flying.into()));
            if let Some(place) = places.into_iter().find(|place| place.is_none()) {
                *place = Some(message);
            }
            return Ok(Answer::Unknown);
        }
        if !self.shards[shard].is_up {
            return Ok(Answer::NotTaken);
        }
        let is_taken = self.apply(message, scenario)?;
        if outcome == Outcome::AnswerLost {
            return Ok(Answer::Unknown);
        }
        if !is_taken {
            sender.known = sender.known.max(self.shards[shard].set);
        }
        Ok(if is_taken { Answer::Taken } else { Answer::NotTaken })
    }

    /// Notes whether a batch was taken. If it was taken, its entries are done. Otherwise its entries wait again.
    fn note_answered(&mut self, sender: &mut Sender, number: u8, is_taken: bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.batch == number) {
            if is_taken {
                *entry = Entry::default();
            } else {
                entry.batch = 0;
                sender.done_to = sender.done_to.min(entry.seq - 1);
            }
        }
        for noted in self.noted.iter_mut().filter(|noted| noted.is_some_and(|noted| noted.number == number)) {
            *noted = None;
        }
    }

    /// Returns the first entries after `after` that are in no batch.
    fn page(&self, after: u8, limit: usize) -> Entries {
        let mut seqs: Vec<u8> = self.entries.iter().filter(|entry| entry.batch == 0).map(|e| e.seq).collect();
        seqs.retain(|seq| *seq > after);
        seqs.sort_unstable();
        seqs.truncate(limit);
        self.entries.map(|entry| if seqs.contains(&entry.seq) { entry.seq } else { 0 })
    }

    fn read(
        &self,
        sender: &mut Sender,
        next: usize,
        firsts: [u8; SHARDS],
        left: u8,
        outcome: Outcome,
        scenario: &Scenario,
    ) {
        let of = (next..SHARDS).find(|shard| firsts[*shard] > 0).unwrap_or(SHARDS);
        if of < SHARDS && outcome == Outcome::NotDue {
            sender.step = Step::Read { next: of + 1, firsts, left };
            return;
        }
        let mut page = Page { entries: [0; IDS], is_deletions: false, of, firsts, left };
        if of < SHARDS {
            page.entries = self.page(firsts[of] - 1, scenario.page);
            for (id, seq) in page.entries.iter_mut().enumerate() {
                *seq = if scenario.home(sender.set, id) == of { *seq } else { 0 };
            }
            sender.held_up[of] = 0;
        } else {
            page.entries = self.page(sender.done_to, scenario.page);
        }
        let is_over = of == SHARDS && first_of(page.entries).is_none();
        sender.step = if is_over { Step::Rest } else { Step::Note { page } };
    }

    fn note(&mut self, sender: &mut Sender, page: Page, scenario: &Scenario) {
        let rules = scenario.rules;
        let mut batches = [None; SHARDS];
        for shard in 0..SHARDS {
            let mut entries = page.entries;
            for (id, seq) in entries.iter_mut().enumerate() {
                let is_in = scenario.home(sender.set, id) == shard && self.is_add(*seq) != page.is_deletions;
                *seq = if is_in { *seq } else { 0 };
            }
            if first_of(entries).is_none() {
                continue;
            }
            let is_unanswered = page.left & 1 << shard != 0 && rules.one_at_a_time;
            if is_unanswered || sender.held_up[shard] > 0 {
                sender.block_shard(shard, entries);
                continue;
            }
            let number = self.next_number() + batches.iter().flatten().count() as u8;
            if rules.note_first {
                self.note_sent(sender, shard as u8, number, &mut entries, rules.still_there);
            }
            let answer = first_of(entries).is_none().then_some(Answer::Taken);
            batches[shard] = Some(Batch { number, entries, answer });
        }
        match batches.iter().flatten().count() {
            0 => sender.after_part(page),
            _ => sender.step = Step::Send { page, batches },
        }
    }

    fn note_sent(
        &mut self,
        sender: &Sender,
        shard: u8,
        number: u8,
        entries: &mut Entries,
        still_there: bool,
    ) {
        let place = self.noted.iter_mut().find(|noted| noted.is_none()).expect("there is room for batches");
        *place = Some(Noted { number, sender: sender.name, shard, set: sender.set });
        for (entry, seq) in self.entries.iter_mut().zip(entries).filter(|(_, seq)| **seq > 0) {
            if entry.seq == *seq || !still_there {
                entry.batch = number;
            } else {
                *seq = 0;
            }
        }
    }

    fn send_batch(
        &mut self,
        sender: &mut Sender,
        page: Page,
        mut batches: [Option<Batch>; SHARDS],
        outcome: Outcome,
        scenario: &Scenario,
    ) -> Result<(), String> {
        let pending = |batch: &Option<Batch>| batch.is_some_and(|batch| batch.answer.is_none());
        if let Some(shard) = batches.iter().position(pending)
            && let Some(batch) = &mut batches[shard]
        {
            let message = Message {
                shard: shard as u8,
                set: sender.set,
                sender: sender.name,
                number: batch.number,
                entries: batch.entries,
            };
            batch.answer = Some(self.deliver(sender, message, outcome, scenario)?);
            sender.step = Step::Send { page, batches };
            return Ok(());
        }
        let rules = scenario.rules;
        for (shard, batch) in batches.iter().enumerate() {
            let Some(Batch { number, entries, answer: Some(answer) }) = *batch else { continue };
            let is_taken = answer == Answer::Taken;
            if !is_taken && (rules.one_at_a_time || answer == Answer::NotTaken) {
                sender.block_shard(shard, entries);
            }
            if !rules.note_first && is_taken {
                for (entry, seq) in self.entries.iter_mut().zip(entries) {
                    *entry = if entry.seq == seq { Entry::default() } else { *entry };
                }
            }
            if answer != Answer::Unknown {
                // Entries that wait again belong to a shard that is held up. The sender finds them again, because it
                // remembers the first entry of such a shard.
                let done_to = sender.done_to;
                self.note_answered(sender, number, is_taken);
                sender.done_to = done_to;
            }
        }
        sender.after_part(page);
        Ok(())
    }
}

//! Renumbers the batches of a state, so that states without an important difference are equal.

use crate::model::{NAMES, SHARDS, State};

impl State {
    /// Brings states without an important difference into the same form: batches are renumbered, and a shard forgets
    /// batches that are older than all existing batches. This is safe, because new batches always get greater numbers.
    pub fn tidy(&mut self) {
        for shard in 0..SHARDS {
            for name in 0..NAMES {
                let last = self.shards[shard].memory[name];
                if last > 0 && !self.has_batch_of(shard, name, last) {
                    self.shards[shard].memory[name] = 0;
                }
            }
        }
        let numbers = self.numbers();
        if numbers & (numbers + 1) != 0 {
            self.renumber(|number| {
                if *number > 0 {
                    *number = (numbers & ((2 << (*number - 1)) - 1)).count_ones() as u8;
                }
            });
        }
        self.flying.sort_unstable_by_key(|message| (message.is_none(), *message));
    }

    /// Whether there is a batch of this sender for this shard with at most this number.
    fn has_batch_of(&self, shard: usize, name: usize, last: u8) -> bool {
        let (shard, name) = (shard as u8, name as u8);
        for noted in self.noted.iter().flatten() {
            if noted.shard == shard && noted.sender == name && noted.number <= last {
                return true;
            }
        }
        for message in self.flying.iter().flatten() {
            if message.shard == shard && message.sender == name && message.number <= last {
                return true;
            }
        }
        let own = self.sender.filter(|sender| sender.name == name).and_then(|sender| sender.number_of(shard));
        own.is_some_and(|number| number <= last)
    }

    /// Returns the numbers of all existing batches: one bit for each number.
    fn numbers(&self) -> u64 {
        let mut numbers = 0;
        let mut state = *self;
        state.renumber(|number| numbers |= 1 << *number >> 1);
        numbers
    }

    fn renumber(&mut self, mut anew: impl FnMut(&mut u8)) {
        for noted in self.noted.iter_mut().flatten() {
            anew(&mut noted.number);
        }
        for message in self.flying.iter_mut().flatten() {
            anew(&mut message.number);
        }
        for shard in &mut self.shards {
            for last in &mut shard.memory {
                anew(last);
            }
        }
        for entry in &mut self.entries {
            anew(&mut entry.batch);
        }
        if let Some(sender) = &mut self.sender {
            sender.renumber(anew);
        }
    }

    /// Returns a number that is greater than the numbers of all existing batches.
    pub fn next_number(&self) -> u8 {
        65 - self.numbers().leading_zeros() as u8
    }
}

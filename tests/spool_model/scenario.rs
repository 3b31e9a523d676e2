//! What is explored: the homes of the jobs, the change of the set, how often each thing may happen, and the rules.

/// The maximum number of jobs.
pub const IDS: usize = 2;

/// What happens to the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    /// The set changes from 1 to 3.
    Move,
    /// A is given up (from set 1 to set 3), and adopted (from set 3 to set 5).
    Forget,
}

/// How often each thing may happen in one sequence of events. `flying` is different: it is the maximum number of
/// messages in flight at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budgets {
    /// Changes by the host with the spool.
    pub changes: u8,
    /// Changes by the other host.
    pub others: u8,
    /// Jobs that become dead letters.
    pub deaths: u8,
    pub outages: u8,
    /// Crashes of the sender.
    pub crashes: u8,
    /// Failed writes of the sender.
    pub disk: u8,
    pub flying: u8,
}

/// The rules of docs/internals/NODES.md. `false` leaves a rule out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A shard remembers the last batch of each sender, and takes only later batches.
    pub memory: bool,
    /// A batch is noted on the disk before it is sent.
    pub note_first: bool,
    /// While the outcome of a batch is unknown, nothing else is sent to its shard.
    pub one_at_a_time: bool,
    /// After a change of the set, the sender asks the old shard whether it has taken a batch.
    pub ask_old: bool,
    /// The answer of the old shard counts only if this shard has the new set.
    pub old_has_set: bool,
    /// If a job has an entry in the spool, further changes of the job by the host's clients wait behind the entry.
    pub queue_behind: bool,
    /// A batch is noted only for the entries that were read, not for later entries of the same jobs.
    pub still_there: bool,
    /// A batch without remaining entries is sent once more, empty, so that the shard does not take its old message
    /// later.
    pub send_empty: bool,
    /// A shard stays held up until the outcome of the entries that were tried again is noted on the disk.
    pub held_until_noted: bool,
    /// When a shard takes an entry, it removes the dead letters that came while the entry waited.
    pub late_letters: bool,
    /// If an entry replaces entries that were not sent, its waiting time begins with the first of them.
    pub since_first: bool,
}

impl Rules {
    pub const ALL: Rules = Rules {
        memory: true,
        note_first: true,
        one_at_a_time: true,
        ask_old: true,
        old_has_set: true,
        queue_behind: true,
        still_there: true,
        send_empty: true,
        held_until_noted: true,
        late_letters: true,
        since_first: true,
    };
}

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The number of jobs.
    pub ids: usize,
    /// The home of each job in the sets 1, 3 and 5.
    pub homes: [[u8; IDS]; 3],
    /// The nodes in each of these sets: one bit for each node.
    pub names: [u8; 3],
    pub change: Change,
    /// How many entries the sender reads at once.
    pub page: usize,
    pub rules: Rules,
    pub budgets: Budgets,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            ids: 1,
            homes: [[0; IDS]; 3],
            names: [1; 3],
            change: Change::None,
            page: IDS,
            rules: Rules::ALL,
            budgets: Budgets::default(),
        }
    }
}

impl Scenario {
    /// Returns the home of a job in a set. While jobs are moved, the result is the home in the last open set.
    pub fn home(&self, set: u8, id: usize) -> usize {
        usize::from(self.homes[(usize::from(set) - 1) / 2][id])
    }

    pub fn has(&self, set: u8, shard: usize) -> bool {
        self.names[(usize::from(set) - 1) / 2] & 1 << shard != 0
    }

    /// Returns the set in which all changes are complete.
    pub fn last_set(&self) -> u8 {
        match self.change {
            Change::None => 1,
            Change::Move => 3,
            Change::Forget => 5,
        }
    }
}

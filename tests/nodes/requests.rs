//! The requests of a campaign's clients. The requests are drawn before the campaign begins.

use fastrand::Rng;

use crate::ledger::{Id, MILLISECOND, Micros, OperationKind, Rule, SECOND, Version};

/// A delay that is longer than any campaign, even if clocks differ by two hours.
pub const PARKED: Micros = 6 * 3600 * SECOND;

/// A request about one id. An add of several jobs (`madd`) has one `Ask` for each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub id: Id,
    pub operation_kind: OperationKind,
    pub fate: Fate,
}

/// What the receiver of a version, or the client that reserves it, does with the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Accepted,
    AcceptedSlowly,
    /// The receiver or the client refuses the first attempt. (A client may also let the first lease run out.)
    SecondAttempt,
    /// The receiver or the client refuses all attempts until the end of the campaign.
    Refused,
}

impl Fate {
    pub fn word(self) -> &'static str {
        match self {
            Fate::Accepted => "accepted",
            Fate::AcceptedSlowly => "slowly",
            Fate::SecondAttempt => "second",
            Fate::Refused => "refused",
        }
    }
}

/// The requests that a client sends at once, after a pause. A request with more than one `Ask` is a `madd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub pause: Micros,
    pub requests: Vec<Vec<Ask>>,
}

/// Draws the requests that clients send within the time `length`.
pub struct Requests<'a> {
    random: &'a mut Rng,
    length: Micros,
    version: Version,
    singles: u32,
    failing: u32,
}

/// The number of ids with callbacks that all clients share.
const SHARED: u32 = 24;

/// The number of ids with jobs to reserve that all clients share.
const SHARED_PULLED: u32 = 12;

fn is_shared(id: Id) -> bool {
    matches!(id, Id::Shared(_) | Id::Pulled(0..SHARED_PULLED))
}

impl<'a> Requests<'a> {
    pub fn new(random: &'a mut Rng, length: Micros) -> Requests<'a> {
        Requests { random, length, version: 0, singles: 0, failing: 0 }
    }

    /// Draws the requests of a client of the TCP port.
    pub fn tcp(&mut self) -> Vec<Batch> {
        let (mut batches, mut at) = (Vec::new(), 0);
        while at < self.length {
            let pause = self.random.u64(5..120) * MILLISECOND;
            at += pause;
            let mut requests = Vec::new();
            for _ in 0..self.random.u64(1..12) {
                if self.random.u8(0..12) > 0 {
                    requests.push(vec![self.ask()]);
                    continue;
                }
                let jobs: Vec<Ask> = (0..self.random.u64(2..40)).map(|_| self.add()).collect();
                // In half of the cases, another request follows at once. If clients share the id of the last job, the
                // request is about this id.
                let last = jobs[jobs.len() - 1].id;
                requests.push(jobs);
                if self.random.bool() {
                    let next = Ask { id: last, ..self.ask() };
                    requests.push(vec![if is_shared(last) { next } else { self.ask() }]);
                }
            }
            batches.push(Batch { pause, requests });
        }
        batches
    }

    /// Draws the requests of a client of the HTTP API.
    pub fn http(&mut self) -> Vec<Batch> {
        let (mut batches, mut at) = (Vec::new(), 0);
        while at < self.length {
            let pause = self.random.u64(20..150) * MILLISECOND;
            at += pause;
            let failing = Id::Failing(self.random.u32(0..self.failing + 1));
            let fate = Fate::Accepted;
            let ask = match self.random.u8(0..100) {
                0..35 => Ask { id: self.shared(), operation_kind: self.patch(), fate: self.fate() },
                35..50 => Ask { id: self.shared(), operation_kind: OperationKind::Get, fate },
                50..60 => Ask { id: self.shared(), operation_kind: OperationKind::Run, fate },
                60..80 => self.add_failing(),
                80..92 => Ask { id: failing, operation_kind: OperationKind::Redrive, fate },
                92..97 => Ask { id: failing, operation_kind: OperationKind::Purge, fate },
                _ => Ask { id: failing, operation_kind: OperationKind::Delete, fate },
            };
            batches.push(Batch { pause, requests: vec![vec![ask]] });
        }
        batches
    }

    fn shared(&mut self) -> Id {
        match self.random.u32(0..SHARED + SHARED_PULLED) {
            n @ 0..SHARED => Id::Shared(n),
            n => Id::Pulled(n - SHARED),
        }
    }

    fn version(&mut self) -> Version {
        self.version += 1;
        self.version
    }

    fn delay(&mut self) -> Micros {
        match self.random.u8(0..10) {
            0..4 => self.random.u64(0..300) * MILLISECOND,
            4..8 => self.random.u64(300..4000) * MILLISECOND,
            _ => PARKED,
        }
    }

    fn fate(&mut self) -> Fate {
        match self.random.u8(0..20) {
            0..2 => Fate::AcceptedSlowly,
            2 => Fate::SecondAttempt,
            _ => Fate::Accepted,
        }
    }

    fn patch(&mut self) -> OperationKind {
        OperationKind::Patch { version: self.version(), delay: self.delay() }
    }

    /// Draws an add with the rule `Replace`. The id is a shared id or a new one.
    fn add(&mut self) -> Ask {
        let (version, delay, fate) = (self.version(), self.delay(), self.fate());
        let id = if self.random.u8(0..6) == 0 {
            self.singles += 1;
            let is_pulled = self.random.u8(0..3) == 0;
            if is_pulled { Id::Pulled(SHARED_PULLED + self.singles) } else { Id::Single(self.singles) }
        } else {
            self.shared()
        };
        Ask { id, operation_kind: OperationKind::Add { version, rule: Rule::Replace, delay }, fate }
    }

    fn add_failing(&mut self) -> Ask {
        self.failing += 1;
        let operation_kind = OperationKind::Add {
            version: self.version(),
            rule: Rule::Replace,
            delay: self.random.u64(0..500) * MILLISECOND,
        };
        Ask { id: Id::Failing(self.failing), operation_kind, fate: Fate::Refused }
    }

    fn ask(&mut self) -> Ask {
        let (id, fate) = (self.shared(), self.fate());
        let careful =
            |me: &mut Self, rule| OperationKind::Add { version: me.version(), rule, delay: me.delay() };
        let operation_kind = match self.random.u8(0..100) {
            0..45 => return self.add(),
            45..55 => careful(self, Rule::Keep),
            55..65 => careful(self, Rule::Reject),
            65..80 => OperationKind::Delete,
            80..88 => OperationKind::Run,
            _ => OperationKind::Get,
        };
        Ask { id, operation_kind, fate }
    }
}

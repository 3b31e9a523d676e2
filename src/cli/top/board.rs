//! What `dq top` shows, without the terminal: the last snapshot, and the rates since the snapshot before it. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::daemon_snapshot::DaemonSnapshot;
use super::super::exposition;

/// The column by which topics are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Delayed,
    Ready,
    Leased,
    Dead,
    Adds,
    Done,
    Late,
}

impl Sort {
    /// All columns: the key, the column, and the word above it.
    pub(super) const ALL: [(char, Sort, &'static str); 8] = [
        ('n', Sort::Name, "TOPIC"),
        ('d', Sort::Delayed, "DELAYED"),
        ('r', Sort::Ready, "READY"),
        ('l', Sort::Leased, "LEASED"),
        ('x', Sort::Dead, "DEAD"),
        ('a', Sort::Adds, "ADD/S"),
        ('o', Sort::Done, "DONE/S"),
        ('t', Sort::Late, "LATE P99"),
    ];

    /// Returns the column that a key sorts by.
    pub(super) fn from_key(key: char) -> Option<Sort> {
        Sort::ALL.into_iter().find(|(k, ..)| *k == key).map(|(_, sort, _)| sort)
    }
}

/// The row of a topic. `None`: the value is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopicRow {
    pub topic: String,
    pub delayed: u64,
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
    pub adds: Option<f64>,
    pub done: Option<f64>,
    pub late_ms: Option<f64>,
}

/// The data on the screen.
#[derive(Debug)]
pub(super) struct Board {
    /// The address of the daemon.
    pub address: String,
    pub sort: Sort,
    /// How many topics are above the first visible topic.
    pub above: usize,
    /// The topics, sorted.
    pub rows: Vec<TopicRow>,
    /// The share of a processor that each process used, by name and generation.
    pub cpu: HashMap<(String, String), f64>,
    /// The last snapshot.
    pub snapshot: Option<DaemonSnapshot>,
    /// Why there is no newer snapshot, or why its topics are missing.
    pub trouble: Option<String>,
    taken_at: Option<Instant>,
}

impl Board {
    pub(super) fn new(address: String) -> Board {
        Board {
            address,
            sort: Sort::Ready,
            above: 0,
            rows: Vec::new(),
            cpu: HashMap::new(),
            snapshot: None,
            trouble: None,
            taken_at: None,
        }
    }

    /// Replaces the snapshot. After an error, stores the error and keeps the earlier snapshot.
    pub(super) fn take(&mut self, snapshot: Result<DaemonSnapshot>, at: Instant) {
        match snapshot {
            Ok(snapshot) => {
                let span = self.taken_at.map(|before| at.saturating_duration_since(before));
                let before = self.snapshot.as_ref().zip(span).filter(|(_, span)| !span.is_zero());
                self.rows = rows(&snapshot, before);
                self.cpu = before.map(|(before, span)| cpu(&snapshot, before, span)).unwrap_or_default();
                self.trouble = snapshot.missing.clone().filter(|_| snapshot.topics.is_none());
                (self.snapshot, self.taken_at) = (Some(snapshot), Some(at));
                self.arrange();
            }
            Err(e) => self.trouble = Some(format!("{e:#}")),
        }
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.above) = (sort, 0);
        self.arrange();
    }

    pub(super) fn scroll(&mut self, rows: isize) {
        self.above = self.above.saturating_add_signed(rows).min(self.rows.len().saturating_sub(1));
    }

    /// Sorts the rows: the largest value first, and equal values by name.
    fn arrange(&mut self) {
        self.rows.sort_by(|a, b| a.topic.cmp(&b.topic));
        let micro = |n: Option<f64>| Reverse((n.unwrap_or(-1.0) * 1e6) as i64);
        match self.sort {
            Sort::Name => {}
            Sort::Delayed => self.rows.sort_by_key(|row| Reverse(row.delayed)),
            Sort::Ready => self.rows.sort_by_key(|row| Reverse(row.ready)),
            Sort::Leased => self.rows.sort_by_key(|row| Reverse(row.leased)),
            Sort::Dead => self.rows.sort_by_key(|row| Reverse(row.dead)),
            Sort::Adds => self.rows.sort_by_key(|row| micro(row.adds)),
            Sort::Done => self.rows.sort_by_key(|row| micro(row.done)),
            Sort::Late => self.rows.sort_by_key(|row| micro(row.late_ms)),
        }
        self.scroll(0);
    }
}

fn rows(snapshot: &DaemonSnapshot, before: Option<(&DaemonSnapshot, Duration)>) -> Vec<TopicRow> {
    let rate = |name: &str, topic: &str| -> Option<f64> {
        let (before, span) = before?;
        let now = exposition::sum(&snapshot.samples, name, topic)?;
        let was = exposition::sum(&before.samples, name, topic).unwrap_or(0.0);
        Some((now - was).max(0.0) / span.as_secs_f64())
    };
    let late = |topic: &str| -> Option<f64> {
        let (before, _) = before?;
        let (now, was) = (snapshot.lateness.get(topic)?, before.lateness.get(topic)?);
        now.since(was)?.percentile_us(0.99).map(|us| us as f64 / 1000.0)
    };
    let row = |t: &super::super::daemon_snapshot::TopicSnapshot| TopicRow {
        topic: t.topic.clone(),
        delayed: t.delayed,
        ready: t.ready,
        leased: t.leased,
        dead: t.dead,
        adds: rate("dq_adds_total", &t.topic),
        done: rate("dq_deliveries_total", &t.topic),
        late_ms: late(&t.topic),
    };
    snapshot.topics.iter().flatten().map(row).collect()
}

fn cpu(snapshot: &DaemonSnapshot, before: &DaemonSnapshot, span: Duration) -> HashMap<(String, String), f64> {
    let mut used = HashMap::new();
    for now in &snapshot.status.processes {
        let was = before.status.processes.iter().find(|p| p.pid == now.pid && p.pid.is_some());
        if let Some((now_ms, was_ms)) = now.cpu_ms.zip(was.and_then(|p| p.cpu_ms)) {
            let part = now_ms.saturating_sub(was_ms) as f64 / span.as_millis().max(1) as f64;
            used.insert((now.name.clone(), now.generation.to_string()), part);
        }
    }
    used
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use anyhow::anyhow;
    use model::metrics::LatenessHistogram;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a snapshot with these topics (name, delayed jobs, ready jobs), this page of metrics, and this processor
    /// time of one process.
    pub(in super::super) fn snapshot(topics: &[(&str, u64, u64)], page: &str, cpu_ms: u64) -> DaemonSnapshot {
        let status = json!({"version": "1.2.3", "instance": "host-a", "pid": 7, "started_ms": 0, "phase": "steady",
            "generation": 3, "renewal": null, "listening": [],
            "processes": [{"name": "dq-server", "generation": 3, "state": "up", "pid": 12, "started_ms": 0,
                "overdue_ms": 0, "restarts": 1, "last_end": null, "memory_bytes": 3 << 20, "cpu_ms": cpu_ms}],
            "findings": []});
        let topic = |(name, delayed, ready): &(&str, u64, u64)| -> Value {
            json!({"topic": name, "delayed": delayed, "ready": ready, "leased": 0, "dead": 0})
        };
        let topics: Vec<Value> = topics.iter().map(topic).collect();
        DaemonSnapshot {
            status: serde_json::from_value(status).unwrap(),
            topics: Some(serde_json::from_value(json!(topics)).unwrap()),
            nodes: None,
            spool: None,
            missing: None,
            lateness: BTreeMap::new(),
            samples: exposition::read(page),
        }
    }

    fn names(board: &Board) -> Vec<&str> {
        board.rows.iter().map(|row| row.topic.as_str()).collect()
    }

    #[test]
    fn rates_are_what_came_between_two_pictures() {
        let mut board = Board::new("d".into());
        let now = Instant::now();
        // The lateness counts only the deliveries between the two snapshots.
        let taken = |adds: u32, done: u32, early: u64, cpu_ms| {
            let page =
                format!("dq_adds_total{{topic=\"a\"}} {adds}\ndq_deliveries_total{{topic=\"a\"}} {done}\n");
            let late = LatenessHistogram::from_ranges([(Some(60), early), (Some(3_600_000_000), 5)]);
            let mut snapshot = snapshot(&[("a", 1, 2)], &page, cpu_ms);
            snapshot.lateness.insert("a".to_owned(), late);
            snapshot
        };
        board.take(Ok(taken(10, 5, 0, 1000)), now);
        assert_eq!((board.rows[0].adds, board.rows[0].late_ms), (None, None));
        board.take(Ok(taken(30, 6, 1, 1500)), now + Duration::from_secs(2));
        let row = &board.rows[0];
        assert_eq!((row.adds, row.done, row.late_ms), (Some(10.0), Some(0.5), Some(0.059)));
        assert_eq!(board.cpu[&("dq-server".to_owned(), "3".to_owned())], 0.25);
        // If the daemon does not answer, the known values stay.
        board.take(Err(anyhow!("away")), now + Duration::from_secs(3));
        assert_eq!((board.trouble.as_deref(), board.rows.len()), (Some("away"), 1));
        board.take(Ok(snapshot(&[("a", 1, 2)], "", 1500)), now + Duration::from_secs(4));
        assert_eq!((board.trouble.as_deref(), board.rows[0].adds), (None, None));
    }

    #[test]
    fn topics_are_sorted_by_what_a_key_says_the_largest_first() {
        let mut board = Board::new("d".into());
        board.take(Ok(snapshot(&[("c", 5, 1), ("a", 1, 1), ("b", 9, 7)], "", 0)), Instant::now());
        assert_eq!(names(&board), ["b", "a", "c"]);
        for (key, order) in [('n', ["a", "b", "c"]), ('d', ["b", "c", "a"]), ('a', ["a", "b", "c"])] {
            board.sort_by(Sort::from_key(key).unwrap());
            assert_eq!(names(&board), order, "{key}");
        }
        board.scroll(9);
        assert_eq!(board.above, 2);
        board.scroll(isize::MIN);
        assert_eq!((board.above, Sort::from_key('z')), (0, None));
    }
}

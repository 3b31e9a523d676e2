//! `dq list`: a topic's jobs in one state, page by page.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::job::Job;
use super::show::{Table, cut, moment_from, or_nothing, raw_lines};
use super::target::TargetOptions;
use host::now_ms;
use model::job::State;

/// The most jobs on one page.
const PAGE: usize = 1000;

/// List the jobs of a topic that are in one state
///
/// Delayed jobs are sorted by due time, ready jobs by priority and due time, leased jobs by deadline, and dead letters
/// by the time when they died.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq list orders
  dq list orders --state ready --limit 10
  dq list orders --state dead --all --json | jq -r .id")]
pub(super) struct ListArguments {
    /// The topic
    topic: String,

    /// The state of the jobs to list
    #[arg(long, value_name = "STATE", default_value = "delayed", value_parser = ["delayed", "ready", "leased", "dead"])]
    state: String,

    #[command(flatten)]
    how_many: PageOptions,

    #[command(flatten)]
    at: TargetOptions,
}

/// How many jobs are listed.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PageOptions {
    /// The maximum number of entries to list
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "all")]
    limit: usize,

    /// List all entries
    #[arg(long)]
    all: bool,
}

impl PageOptions {
    /// Returns the largest number of jobs to list.
    pub(super) fn most(&self) -> usize {
        if self.all { usize::MAX } else { self.limit }
    }
}

#[derive(Debug, Deserialize)]
struct ListPage {
    jobs: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The nodes that did not answer.
    #[serde(default)]
    away: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Stats {
    topics: Vec<TopicCounts>,
}

/// How many jobs of a topic are in each state.
#[derive(Debug, Deserialize)]
struct TopicCounts {
    topic: String,
    delayed: u64,
    ready: u64,
    leased: u64,
    dead: u64,
}

/// Runs `dq list`.
pub(super) fn run(arguments: &ListArguments) -> Result<()> {
    let path = format!("/v1/topics/{}/jobs?state={}", part(&arguments.topic), arguments.state);
    let table = match arguments.state.as_str() {
        "dead" => dead_table,
        "leased" => leased_table,
        _ => table,
    };
    let shown = show(&arguments.at, &path, &arguments.how_many, table)?;
    if shown == 0 && !arguments.at.json {
        // The counts need a token with another scope. Without the counts, the other states are not named.
        let answer = Api::from_options(&arguments.at)?.get("/v1/stats");
        let counts = answer.and_then(|answer| answer.json::<Stats>()).ok();
        let counts = counts.and_then(|stats| stats.topics.into_iter().find(|of| of.topic == arguments.topic));
        eprintln!("{}", none_in(&arguments.state, counts.as_ref()));
    }
    Ok(())
}

/// Says that no job is in a state, and names the states in which the topic has jobs.
fn none_in(state: &str, counts: Option<&TopicCounts>) -> String {
    let counts = counts.map_or([0; 4], |of| [of.ready, of.delayed, of.leased, of.dead]);
    let others = ["ready", "delayed", "leased", "dead"].into_iter().zip(counts);
    let others: Vec<String> = others
        .filter(|(name, count)| *count > 0 && *name != state)
        .map(|(name, count)| {
            format!("{count} {} {name}: --state {name}", if count == 1 { "is" } else { "are" })
        })
        .collect();
    let separator = if others.is_empty() { "" } else { "; " };
    format!("no {state} jobs{separator}{}", others.join("; "))
}

/// Prints the jobs that the API lists at a path. Returns how many there are. `table` makes a table from a page and the
/// time.
pub(super) fn show(
    at: &TargetOptions,
    path: &str,
    how_many: &PageOptions,
    table: fn(&[Box<RawValue>], i64) -> Result<String>,
) -> Result<usize> {
    let api = Api::from_options(at)?;
    let most = how_many.most();
    let and = if path.contains('?') { '&' } else { '?' };
    let (mut shown, mut cursor, mut away, mut is_first) = (0, None::<String>, Vec::new(), true);
    while shown < most {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let page: ListPage =
            api.get(&format!("{path}{and}limit={}{behind}", PAGE.min(most - shown)))?.json()?;
        // A page may hold fewer jobs than asked for. Its cursor leads to the next page.
        let jobs: Vec<_> = page.jobs.into_iter().take(most - shown).collect();
        if at.json {
            raw_lines(&jobs);
        } else {
            let text = table(&jobs, now_ms())?;
            // Only the first page is printed with the head of the table.
            print!("{}", if is_first { text.as_str() } else { text.split_once('\n').map_or("", |(_, t)| t) });
        }
        shown += jobs.len();
        (cursor, away, is_first) = (page.next, page.away, false);
        if cursor.is_none() {
            break;
        }
    }
    print_missing("jobs", &away, cursor.is_some() && !at.json);
    Ok(shown)
}

/// Prints to stderr what is missing from a list: the entries on nodes that did not answer, and the further entries.
pub(super) fn print_missing(what: &str, away: &[String], has_more: bool) {
    if !away.is_empty() {
        eprintln!("these nodes could not be asked, and their {what} are missing: {}", away.join(", "));
    }
    if has_more {
        eprintln!("there are more: --limit or --all shows them");
    }
}

fn table(jobs: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["ID", "DUE", "PRIORITY", ">ATTEMPTS", "BODY"]);
    for job in jobs {
        let job: Job = serde_json::from_str(job.get())?;
        let when = if job.state == State::Delayed { job.due_ms } else { job.until_ms.unwrap_or(job.due_ms) };
        table.row([
            cut(&job.id, 60),
            moment_from(when, now_ms),
            job.priority.to_string(),
            job.attempts.to_string(),
            cut(job.body.get(), 60),
        ]);
    }
    Ok(table.text())
}

/// Returns the table of leased jobs. It shows until when each job is leased. If the client has a name, it also shows
/// the name and the time of the reservation.
fn leased_table(jobs: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["ID", "LEASED UNTIL", "HELD BY", "SINCE", ">ATTEMPTS", "BODY"]);
    for job in jobs {
        let job: Job = serde_json::from_str(job.get())?;
        let holder = job.consumer.as_ref();
        let address = holder.and_then(|one| one.address.as_ref()).map(|address| format!(" at {address}"));
        table.row([
            cut(&job.id, 60),
            moment_from(job.until_ms.unwrap_or(job.due_ms), now_ms),
            holder.map_or(String::new(), |one| cut(&one.name, 60) + &address.unwrap_or_default()),
            holder.map_or(String::new(), |one| moment_from(one.since_ms, now_ms)),
            job.attempts.to_string(),
            cut(job.body.get(), 60),
        ]);
    }
    Ok(table.text())
}

/// Returns the table of dead letters: when each died, why its last attempt failed, and what the receiver answered then.
pub(super) fn dead_table(jobs: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["ID", "DIED", ">ATTEMPTS", "REASON", "ANSWER", "BODY"]);
    for job in jobs {
        let job: Job = serde_json::from_str(job.get())?;
        let last = job.log.last();
        table.row([
            cut(&job.id, 60),
            moment_from(job.until_ms.unwrap_or(job.due_ms), now_ms),
            job.attempts.to_string(),
            cut(&or_nothing(last.map_or("", |last| &last.error)), 60),
            cut(&or_nothing(last.map_or("", |last| &last.answer)), 60),
            cut(job.body.get(), 40),
        ]);
    }
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_tells_jobs_apart() {
        let job = r#"{"topic":"t","id":"订单","state":"dead","due_ms":0,"until_ms":60000,"added_ms":0,
            "priority":"low","attempts":10,"max_attempts":null,"log":[],"body":[1,2]}"#;
        let jobs = [RawValue::from_string(job.to_owned()).unwrap()];
        let text = table(&jobs, 120_000).unwrap();
        assert!(
            text.contains("订单")
                && text.contains("(1m ago)")
                && text.ends_with("low             10  [1,2]\n"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_list_says_where_the_jobs_are() {
        let counts =
            |delayed, ready, leased, dead| TopicCounts { topic: "t".into(), delayed, ready, leased, dead };
        assert_eq!(none_in("delayed", None), "no delayed jobs");
        assert_eq!(none_in("delayed", Some(&counts(0, 0, 0, 0))), "no delayed jobs");
        assert_eq!(
            none_in("delayed", Some(&counts(0, 5, 0, 0))),
            "no delayed jobs; 5 are ready: --state ready"
        );
        let all = none_in("ready", Some(&counts(1, 2, 0, 3)));
        assert_eq!(all, "no ready jobs; 1 is delayed: --state delayed; 3 are dead: --state dead");
    }

    #[test]
    fn leased_jobs_show_who_has_them_and_since_when() {
        let job = r#"{"topic":"t","id":"a","state":"leased","due_ms":0,"until_ms":180000,"added_ms":0,"priority":"low",
            "attempts":1,"log":[],"body":7,"consumer":{"name":"w1","address":"::1","since_ms":60000}}"#;
        let unnamed = job.replace(r#","consumer":{"name":"w1","address":"::1","since_ms":60000}"#, "");
        let jobs = [job.to_owned(), unnamed].map(|job| RawValue::from_string(job).unwrap());
        let text = leased_table(&jobs, 120_000).unwrap();
        let [head, first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(head.contains("LEASED UNTIL") && first.contains("w1 at ::1"), "{text}");
        assert!(first.contains("(1m ago)") && first.contains("(in 1m)") && first.ends_with("1  7"), "{text}");
        assert!(!second.contains("w1") && second.ends_with("1  7"), "{text}");
    }

    #[test]
    fn dead_letters_show_when_and_why_they_died() {
        let job = r#"{"topic":"t","id":"a","state":"dead","due_ms":0,"until_ms":60000,"added_ms":0,
            "priority":"low","attempts":2,"max_attempts":null,"body":[1,2],"log":[
            {"number":1,"at_ms":1,"took_ms":1,"error":"timeout"},
            {"number":2,"at_ms":2,"took_ms":1,"status":503,"error":"status 503","answer":"closed\non Sundays"}]}"#;
        let unknown = job.replace("closed\\non Sundays", "");
        let jobs = [job.to_owned(), unknown].map(|job| RawValue::from_string(job).unwrap());
        let text = dead_table(&jobs, 120_000).unwrap();
        let [head, first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(
            head.starts_with("ID  DIED") && head.ends_with("REASON      ANSWER              BODY"),
            "{text}"
        );
        assert!(first.contains("(1m ago)"), "{text}");
        assert!(first.ends_with("2  status 503  closed\\non Sundays  [1,2]"), "{text}");
        assert!(second.ends_with("2  status 503  -                   [1,2]"), "{text}");
    }
}

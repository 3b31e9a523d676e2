//! `dq dead`: dead letters, the jobs that used up their attempts or were refused for good.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::{Api, part};
use super::ask::confirm;
use super::list::{self, PageOptions};
use super::progress::Progress;
use super::show::json_line;
use super::target::TargetOptions;
use model::letters::RedrivePace;
use model::topic::Rate;

/// The most dead letters that one request handles.
const CHUNK: u64 = 1000;

/// Dead letters: list, redrive or remove jobs that used up their attempts or were refused for good
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq dead list orders
  dq dead redrive orders --dry-run
  dq dead redrive orders --yes
  dq dead redrive orders --status 503 --died-after 2h --rate 50/s
  dq dead purge orders --id 42 --id 43")]
pub(super) struct DeadArguments {
    #[command(subcommand)]
    command: DeadCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum DeadCommand {
    List(ListDeadLetters),
    Redrive(Redrive),
    Purge(Purge),
}

/// List the dead letters of a topic, in the order in which they died
///
/// REASON says why the last attempt failed. ANSWER has the first characters of the receiver's answer to this attempt.
/// It is empty for tokens without the scope read for the topic.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq dead list orders\n  dq dead list orders --all --json | jq -r .id")]
struct ListDeadLetters {
    /// The topic
    topic: String,

    #[command(flatten)]
    filter: DeadLetterFilter,

    #[command(flatten)]
    how_many: PageOptions,
}

/// The conditions that select dead letters. A dead letter must meet all given conditions.
#[derive(Debug, Clone, Default, clap::Args)]
struct DeadLetterFilter {
    /// Only dead letters whose id begins with this text
    #[arg(long, value_name = "TEXT")]
    id_prefix: Option<String>,

    /// Only dead letters whose id contains this text
    #[arg(long, value_name = "TEXT")]
    id_contains: Option<String>,

    /// Only dead letters that died at this time or later: RFC 3339, Unix milliseconds, or a span before now (2h: two
    /// hours ago)
    #[arg(long, value_name = "WHEN")]
    died_after: Option<String>,

    /// Only dead letters that died before this time, written in the same ways
    #[arg(long, value_name = "WHEN")]
    died_before: Option<String>,

    /// Only dead letters whose last attempt failed with an error that contains this text
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Only dead letters whose last attempt was answered with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,

    /// Only dead letters of jobs that have this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

impl DeadLetterFilter {
    /// Returns the conditions with the API's names.
    fn fields(&self) -> Map<String, Value> {
        let text = |value: &Option<String>| value.as_ref().map(|value| json!(value));
        let fields = [
            ("id_prefix", text(&self.id_prefix)),
            ("id_contains", text(&self.id_contains)),
            ("died_after", text(&self.died_after)),
            ("died_before", text(&self.died_before)),
            ("reason", text(&self.reason)),
            ("status", self.status.map(|status| json!(status))),
            ("tag", text(&self.tag)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Deliver the dead letters of a topic again; their attempts are counted from 0 again
///
/// If the topic has a new job with the id of a dead letter, the dead letter stays where it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq dead redrive orders --dry-run
  dq dead redrive orders --limit 100 --yes
  dq dead redrive orders --reason 'the lease ran out' --rate 30/m
  dq dead redrive orders --tag campaign:3 --dry-run")]
struct Redrive {
    #[command(flatten)]
    which: DeadSelection,

    /// Spread the deliveries over time, at this rate: 50/s, 30/m, 500/h; default: all at once
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
}

/// Remove the dead letters of a topic for good
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq dead purge orders --dry-run\n  dq dead purge orders --yes")]
struct Purge {
    #[command(flatten)]
    which: DeadSelection,
}

#[derive(Debug, clap::Args)]
struct DeadSelection {
    /// The topic
    topic: String,

    /// Only the dead letter with this id; may be given several times
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["DeadLetterFilter", "limit"])]
    ids: Vec<String>,

    #[command(flatten)]
    filter: DeadLetterFilter,

    /// The maximum number of dead letters; default: all
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,

    /// Change nothing, and print how many match
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// An operation on dead letters: the last part of its route in the API, the word for what was done (also the name of
/// the count in the JSON), and the verb in the question to the user.
#[derive(Debug, Clone, Copy)]
struct DeadOperationKind {
    route: &'static str,
    done: &'static str,
    question: &'static str,
}

const REDRIVE: DeadOperationKind =
    DeadOperationKind { route: "redrive", done: "redriven", question: "deliver again" };
const PURGE: DeadOperationKind =
    DeadOperationKind { route: "purge", done: "purged", question: "remove for good" };

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DeadOperationAnswer {
    matched: u64,
    redriven: u64,
    purged: u64,
    /// Whether the request ended before it had checked all dead letters.
    more: bool,
    /// The nodes that did not answer.
    away: Vec<String>,
}

/// Runs `dq dead`. Returns whether all was done.
pub(super) fn run(arguments: &DeadArguments) -> Result<bool> {
    let at = &arguments.at;
    match &arguments.command {
        DeadCommand::List(ListDeadLetters { topic, filter, how_many }) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let query = |(name, value): (String, Value)| format!("{name}={}", part(&text(&value)));
            let query: Vec<String> = filter.fields().into_iter().map(query).collect();
            let and = if query.is_empty() { "" } else { "?" };
            let path = format!("/v1/topics/{}/dead{and}{}", part(topic), query.join("&"));
            list::show(at, &path, how_many, list::dead_table).map(|_| true)
        }
        DeadCommand::Redrive(Redrive { which, rate }) => run_operation(at, which, REDRIVE, *rate),
        DeadCommand::Purge(Purge { which }) => run_operation(at, which, PURGE, None),
    }
}

fn run_operation(
    at: &TargetOptions,
    which: &DeadSelection,
    operation: DeadOperationKind,
    rate: Option<Rate>,
) -> Result<bool> {
    let api = Api::from_options(at)?;
    let mut named = BTreeSet::new();
    let ids: Vec<String> = which.ids.iter().filter(|id| named.insert(*id)).cloned().collect();
    let DeadOperationAnswer { matched, more, away, .. } = count(&api, which, operation, &ids)?;
    if more {
        eprintln!("there are more dead letters than one request can look at: run this again afterwards");
    }
    if !away.is_empty() {
        eprintln!("these nodes do not answer, and their dead letters are left out: {}", away.join(", "));
    }
    let missing = (ids.len() as u64).saturating_sub(matched);
    if missing > 0 {
        let all = ids.len();
        eprintln!("{missing} of the {all} jobs in --id have no dead letter, or a new job has the same id");
    }
    let seen_all = !more && away.is_empty() && missing == 0;
    let wanted = which.limit.map_or(matched, |limit| limit.min(matched));
    if which.dry_run {
        print_result(at, which, operation, matched, 0)?;
        return Ok(seen_all);
    }
    if wanted > 0 {
        confirm(which.yes, || {
            format!("{} {wanted} dead letters of topic {}?", operation.question, which.topic)
        })?;
    }
    let mut progress = Progress::begin(wanted, "dead letters");
    let mut done = 0;
    let (pace, begun) = (RedrivePace::new(rate, Duration::ZERO), Instant::now());
    let step = |ids: &[String], limit: u64, done: u64| -> Result<u64> {
        let mut how = Map::new();
        if let Some(rate) = rate {
            // The jobs of this request become due after the jobs of the earlier requests.
            let after = pace.behind(done as usize, begun.elapsed()).after;
            how.insert("rate".into(), json!(rate.to_string()));
            how.insert("delay".into(), json!(after.as_secs_f64()));
        }
        let counts = ask(&api, which, operation, ids, Some(limit), how, false)?;
        Ok(counts.redriven + counts.purged)
    };
    let mut dealt = || -> Result<()> {
        // Named ids are sent in chunks. Without ids, the request is repeated as long as it finds dead letters.
        for ids in ids.chunks(CHUNK as usize) {
            if done >= wanted {
                break;
            }
            let some = step(ids, wanted - done, done)?;
            done += some;
            progress.step(some);
        }
        while ids.is_empty() && done < wanted {
            let some = step(&[], CHUNK.min(wanted - done), done)?;
            done += some;
            progress.step(some);
            if some == 0 {
                break;
            }
        }
        Ok(())
    };
    let dealt = dealt();
    progress.end();
    // The count is also printed after an error, because it shows what was done before the error.
    print_result(at, which, operation, matched, done)?;
    dealt?;
    Ok(done >= wanted && seen_all)
}

/// Counts the dead letters that the operation would change. A request with ids looks at all these ids, or fails. So its
/// answer does not have `more` and `away`.
fn count(
    api: &Api,
    which: &DeadSelection,
    operation: DeadOperationKind,
    ids: &[String],
) -> Result<DeadOperationAnswer> {
    let ask_for = |ids: &[String]| ask(api, which, operation, ids, None, Map::new(), true);
    let mut all = DeadOperationAnswer::default();
    if ids.is_empty() {
        return ask_for(ids);
    }
    for ids in ids.chunks(CHUNK as usize) {
        all.matched += ask_for(ids)?.matched;
    }
    Ok(all)
}

fn ask(
    api: &Api,
    which: &DeadSelection,
    operation: DeadOperationKind,
    ids: &[String],
    limit: Option<u64>,
    mut asked: Map<String, Value>,
    dry_run: bool,
) -> Result<DeadOperationAnswer> {
    let filter = which.filter.fields();
    if !filter.is_empty() {
        asked.insert("filter".into(), Value::Object(filter));
    }
    if !ids.is_empty() {
        asked.insert("ids".into(), json!(ids));
    }
    if let Some(limit) = limit {
        asked.insert("limit".into(), json!(limit));
    }
    if dry_run {
        asked.insert("dry_run".into(), json!(true));
    }
    let path = format!("/v1/topics/{}/dead/{}", part(&which.topic), operation.route);
    api.ask("POST", &path, &Value::Object(asked))?.json()
}

fn print_result(
    at: &TargetOptions,
    which: &DeadSelection,
    operation: DeadOperationKind,
    matched: u64,
    done: u64,
) -> Result<()> {
    if at.json {
        return json_line(
            &json!({"topic": which.topic, "matched": matched, operation.done: done, "dry_run": which.dry_run}),
        );
    }
    match which.dry_run {
        true => println!("{matched} dead letters match"),
        false => println!("{done} of {matched} dead letters are {}", operation.done),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::receiver::{CallbackReceiver, HandlerAnswer, ReceivedRequest};
    use super::*;

    /// A stand-in for the daemon: a topic with `dead` dead letters, of which `stay` cannot be redriven.
    fn stand_in(dead: u64, stay: u64) -> (TargetOptions, Arc<Mutex<Vec<Value>>>) {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (kept, left) = (Arc::clone(&asked), Mutex::new(dead));
        let answer = move |call: ReceivedRequest| {
            let body: Value = serde_json::from_str(&call.body).unwrap();
            kept.lock().unwrap().push(body.clone());
            let mut left = left.lock().unwrap();
            let matched = body["ids"].as_array().map_or(*left, |ids| left.min(ids.len() as u64));
            let take = match body["dry_run"] == true {
                true => 0,
                false => body["limit"].as_u64().unwrap().min(matched).min(left.saturating_sub(stay)),
            };
            *left -= take;
            HandlerAnswer::new(200, &json!({"matched": matched, "redriven": take}).to_string())
        };
        let receiver = CallbackReceiver::start(([127, 0, 0, 1], 0).into(), Arc::new(answer)).unwrap();
        (
            TargetOptions { url: Some(format!("http://{}", receiver.address)), ..TargetOptions::default() },
            asked,
        )
    }

    fn which(limit: Option<u64>, ids: &[&str], dry_run: bool) -> DeadSelection {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        DeadSelection {
            topic: "t".into(),
            ids,
            filter: DeadLetterFilter::default(),
            limit,
            dry_run,
            yes: true,
        }
    }

    #[test]
    fn dead_letters_are_handled_in_batches_while_progress_is_made() {
        let (at, asked) = stand_in(2500, 0);
        assert!(run_operation(&at, &which(None, &[], false), REDRIVE, None).unwrap());
        let limits: Vec<_> = asked.lock().unwrap().iter().map(|a| a["limit"].as_u64()).collect();
        assert_eq!(limits, [None, Some(1000), Some(1000), Some(500)]);
        let (at, asked) = stand_in(1200, 300);
        assert!(!run_operation(&at, &which(None, &[], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap().len(), 3);
        let (at, asked) = stand_in(1200, 0);
        assert!(run_operation(&at, &which(Some(3), &[], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap()[1..], [json!({"limit": 3})]);
    }

    #[test]
    fn a_filter_is_said_and_a_rate_goes_on_from_request_to_request() {
        let (at, asked) = stand_in(1500, 0);
        let filter = DeadLetterFilter {
            status: Some(503),
            died_after: Some("2h".into()),
            ..DeadLetterFilter::default()
        };
        let some = DeadSelection { filter, ..which(None, &[], false) };
        assert!(run_operation(&at, &some, REDRIVE, Some("100/s".parse().unwrap())).unwrap());
        let asked = asked.lock().unwrap();
        let filter = json!({"status": 503, "died_after": "2h"});
        assert_eq!(asked[0], json!({"dry_run": true, "filter": filter}));
        assert!(asked.iter().all(|a| a["filter"] == filter));
        assert_eq!((&asked[1]["rate"], asked[1]["delay"].as_f64()), (&json!("100/s"), Some(0.0)));
        // At this rate, the first thousand jobs take ten seconds.
        assert!((9.0..=10.0).contains(&asked[2]["delay"].as_f64().unwrap()), "{}", asked[2]);
    }

    #[test]
    fn a_dry_run_changes_nothing_and_ids_are_named() {
        let (at, asked) = stand_in(5, 0);
        assert!(run_operation(&at, &which(None, &[], true), REDRIVE, None).unwrap());
        assert_eq!(*asked.lock().unwrap(), [json!({"dry_run": true})]);
        let (at, asked) = stand_in(5, 0);
        assert!(run_operation(&at, &which(None, &["a", "b"], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap()[1..], [json!({"ids": ["a", "b"], "limit": 2})]);
        let (at, asked) = stand_in(1, 0);
        assert!(!run_operation(&at, &which(None, &["a", "unknown"], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap()[1..], [json!({"ids": ["a", "unknown"], "limit": 1})]);
    }
}

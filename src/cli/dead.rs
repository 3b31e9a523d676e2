//! `dq dead`: jobs that used up their attempts.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::{Api, part};
use super::ask::confirm;
use super::list::{self, HowMany};
use super::progress::Progress;
use super::show::json_line;
use super::target::Where;
use crate::letters::Pace;
use crate::topic::Rate;

/// How many dead letters one request takes, at most.
const CHUNK: u64 = 1000;

/// Dead letters: jobs that used up their attempts, and are kept to be looked at
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq dead list orders
  dq dead redrive orders --dry-run
  dq dead redrive orders --yes
  dq dead redrive orders --status 503 --died-after 2h --rate 50/s
  dq dead purge orders --id 42 --id 43")]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    at: Where,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Redrive(Redrive),
    Purge(Purge),
}

/// List a topic's dead letters, in the order in which they died
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq dead list orders\n  dq dead list orders --all --json | jq -r .id")]
struct List {
    /// The topic
    topic: String,

    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    how_many: HowMany,
}

/// Which of them: by all of what is given.
#[derive(Debug, Clone, Default, clap::Args)]
struct Filter {
    /// Only those whose id begins so
    #[arg(long, value_name = "TEXT")]
    id_prefix: Option<String>,

    /// Only those in whose id this stands
    #[arg(long, value_name = "TEXT")]
    id_contains: Option<String>,

    /// Only those that died then or later: a moment (RFC 3339, Unix milliseconds), or 2h: two hours ago
    #[arg(long, value_name = "WHEN")]
    died_after: Option<String>,

    /// Only those that died before
    #[arg(long, value_name = "WHEN")]
    died_before: Option<String>,

    /// Only those in whose last attempt's error this stands
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Only those whose last attempt was answered with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
}

impl Filter {
    /// In the API's words.
    fn fields(&self) -> Map<String, Value> {
        let text = |value: &Option<String>| value.as_ref().map(|value| json!(value));
        let fields = [
            ("id_prefix", text(&self.id_prefix)),
            ("id_contains", text(&self.id_contains)),
            ("died_after", text(&self.died_after)),
            ("died_before", text(&self.died_before)),
            ("reason", text(&self.reason)),
            ("status", self.status.map(|status| json!(status))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Deliver a topic's dead letters again, with all their attempts
///
/// One whose id has a new job meanwhile stays where it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq dead redrive orders --dry-run
  dq dead redrive orders --limit 100 --yes
  dq dead redrive orders --reason 'the lease ran out' --rate 30/m")]
struct Redrive {
    #[command(flatten)]
    which: Which,

    /// So many in a span, one after the other: 50/s, 30/m, 500/h; default: all at once
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
}

/// Remove a topic's dead letters for good
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq dead purge orders --dry-run\n  dq dead purge orders --yes")]
struct Purge {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The topic
    topic: String,

    /// Only the one of this id; may be given again
    #[arg(long = "id", value_name = "ID", conflicts_with = "Filter")]
    ids: Vec<String>,

    #[command(flatten)]
    filter: Filter,

    /// So many at most; default: all
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,

    /// Change nothing: tell how many there are
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// What is done with them, in the API's words.
#[derive(Debug, Clone, Copy)]
struct Deed {
    route: &'static str,
    done: &'static str,
    question: &'static str,
}

const REDRIVE: Deed = Deed { route: "redrive", done: "redriven", question: "deliver again" };
const PURGE: Deed = Deed { route: "purge", done: "purged", question: "remove for good" };

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counts {
    matched: u64,
    redriven: u64,
    purged: u64,
    /// It has not looked at all of them.
    more: bool,
    /// Nodes that could not be looked at.
    away: Vec<String>,
}

/// Runs `dq dead`. Tells whether all was done.
pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let at = &arguments.at;
    match &arguments.command {
        Command::List(List { topic, filter, how_many }) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let query = |(name, value): (String, Value)| format!("{name}={}", part(&text(&value)));
            let query: Vec<String> = filter.fields().into_iter().map(query).collect();
            let and = if query.is_empty() { "" } else { "?" };
            let path = format!("/v1/topics/{}/dead{and}{}", part(topic), query.join("&"));
            list::show(at, &path, how_many).map(|()| true)
        }
        Command::Redrive(Redrive { which, rate }) => deal(at, which, REDRIVE, *rate),
        Command::Purge(Purge { which }) => deal(at, which, PURGE, None),
    }
}

fn deal(at: &Where, which: &Which, deed: Deed, rate: Option<Rate>) -> Result<bool> {
    let api = Api::of(at)?;
    let Counts { matched, more, away, .. } = ask(&api, which, deed, &which.ids, None, Map::new(), true)?;
    if more {
        eprintln!("there are more than could be looked at in one go: run it again when this is done");
    }
    if !away.is_empty() {
        eprintln!("not looked at, as they do not answer: {}", away.join(", "));
    }
    let seen_all = !more && away.is_empty();
    let wanted = which.limit.map_or(matched, |limit| limit.min(matched));
    if which.dry_run {
        tell(at, which, deed, matched, 0)?;
        return Ok(seen_all);
    }
    if wanted > 0 {
        confirm(which.yes, || format!("{} {wanted} dead letters of topic {}?", deed.question, which.topic))?;
    }
    let mut progress = Progress::begin(wanted, "dead letters");
    let mut done = 0;
    let (pace, begun) = (Pace::of(rate, Duration::ZERO), Instant::now());
    let step = |ids: &[String], limit: u64, done: u64| -> Result<u64> {
        let mut how = Map::new();
        if let Some(rate) = rate {
            // Those behind the ones of the request before.
            let after = pace.behind(done as usize, begun.elapsed()).after;
            how.insert("rate".into(), json!(rate.to_string()));
            how.insert("delay".into(), json!(after.as_secs_f64()));
        }
        let counts = ask(&api, which, deed, ids, Some(limit), how, false)?;
        Ok(counts.redriven + counts.purged)
    };
    let mut dealt = || -> Result<()> {
        // Ids that were named in pieces; else, for as long as there are some.
        for ids in which.ids.chunks(CHUNK as usize) {
            if done >= wanted {
                break;
            }
            let some = step(ids, wanted - done, done)?;
            done += some;
            progress.step(some);
        }
        while which.ids.is_empty() && done < wanted {
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
    // What was done before it broke is told, too.
    tell(at, which, deed, matched, done)?;
    dealt?;
    Ok(done >= wanted && seen_all)
}

fn ask(
    api: &Api,
    which: &Which,
    deed: Deed,
    ids: &[String],
    limit: Option<u64>,
    mut asked: Map<String, Value>,
    dry_run: bool,
) -> Result<Counts> {
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
    let path = format!("/v1/topics/{}/dead/{}", part(&which.topic), deed.route);
    api.ask("POST", &path, &Value::Object(asked))?.json()
}

fn tell(at: &Where, which: &Which, deed: Deed, matched: u64, done: u64) -> Result<()> {
    if at.json {
        return json_line(
            &json!({"topic": which.topic, "matched": matched, deed.done: done, "dry_run": which.dry_run}),
        );
    }
    match which.dry_run {
        true => println!("{matched} dead letters match"),
        false => println!("{done} of {matched} dead letters are {}", deed.done),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::receiver::{Answer, Call, Receiver};
    use super::*;

    /// A topic with so many dead letters, of which some cannot be redriven.
    fn stand_in(dead: u64, stay: u64) -> (Where, Arc<Mutex<Vec<Value>>>) {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (kept, left) = (Arc::clone(&asked), Mutex::new(dead));
        let answer = move |call: Call| {
            let body: Value = serde_json::from_str(&call.body).unwrap();
            kept.lock().unwrap().push(body.clone());
            let mut left = left.lock().unwrap();
            let matched = body["ids"].as_array().map_or(*left, |ids| ids.len() as u64);
            let take = match body["dry_run"] == true {
                true => 0,
                false => body["limit"].as_u64().unwrap().min(matched).min(left.saturating_sub(stay)),
            };
            *left -= take;
            Answer::new(200, &json!({"matched": matched, "redriven": take}).to_string())
        };
        let receiver = Receiver::start(([127, 0, 0, 1], 0).into(), Arc::new(answer)).unwrap();
        (Where { url: Some(format!("http://{}", receiver.address)), ..Where::default() }, asked)
    }

    fn which(limit: Option<u64>, ids: &[&str], dry_run: bool) -> Which {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        Which { topic: "t".into(), ids, filter: Filter::default(), limit, dry_run, yes: true }
    }

    #[test]
    fn dead_letters_are_taken_in_pieces_until_all_are_or_no_more_can_be() {
        let (at, asked) = stand_in(2500, 0);
        assert!(deal(&at, &which(None, &[], false), REDRIVE, None).unwrap());
        let limits: Vec<_> = asked.lock().unwrap().iter().map(|a| a["limit"].as_u64()).collect();
        assert_eq!(limits, [None, Some(1000), Some(1000), Some(500)]);
        let (at, asked) = stand_in(1200, 300);
        assert!(!deal(&at, &which(None, &[], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap().len(), 3);
        let (at, asked) = stand_in(1200, 0);
        assert!(deal(&at, &which(Some(3), &[], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap()[1..], [json!({"limit": 3})]);
    }

    #[test]
    fn a_filter_is_said_and_a_rate_goes_on_from_request_to_request() {
        let (at, asked) = stand_in(1500, 0);
        let filter = Filter { status: Some(503), died_after: Some("2h".into()), ..Filter::default() };
        let some = Which { filter, ..which(None, &[], false) };
        assert!(deal(&at, &some, REDRIVE, Some("100/s".parse().unwrap())).unwrap());
        let asked = asked.lock().unwrap();
        let filter = json!({"status": 503, "died_after": "2h"});
        assert_eq!(asked[0], json!({"dry_run": true, "filter": filter}));
        assert!(asked.iter().all(|a| a["filter"] == filter));
        assert_eq!((&asked[1]["rate"], asked[1]["delay"].as_f64()), (&json!("100/s"), Some(0.0)));
        // The first thousand take ten seconds.
        assert!((9.0..=10.0).contains(&asked[2]["delay"].as_f64().unwrap()), "{}", asked[2]);
    }

    #[test]
    fn a_dry_run_changes_nothing_and_ids_are_named() {
        let (at, asked) = stand_in(5, 0);
        assert!(deal(&at, &which(None, &[], true), REDRIVE, None).unwrap());
        assert_eq!(*asked.lock().unwrap(), [json!({"dry_run": true})]);
        let (at, asked) = stand_in(5, 0);
        assert!(deal(&at, &which(None, &["a", "b"], false), REDRIVE, None).unwrap());
        assert_eq!(asked.lock().unwrap()[1..], [json!({"ids": ["a", "b"], "limit": 2})]);
    }
}

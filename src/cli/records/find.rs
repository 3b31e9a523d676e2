//! `dq find`: an id in all topics, or the jobs and records that filters select.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::api::{Api, part};
use super::super::failure::Failure;
use super::super::job::Job;
use super::super::list::{PageOptions, print_missing};
use super::super::show::{NOTHING, Table, cut, moment_from, or_nothing, plain, raw_lines};
use super::super::target::TargetOptions;
use super::record::{Record, table as record_table};
use host::now_ms;

/// The most jobs or records on one page.
const PAGE: usize = 1000;

/// Find jobs in all topics, by their id or by filters
///
/// With an id alone, the command shows the job or dead letter with this id in each topic, and how earlier jobs with the
/// id ended. If no topic has the id, it shows the jobs whose ids begin with this text. With filters, it shows the jobs
/// that meet all filters. Without --state and due times, it also shows ended jobs. A search with filters, or for the
/// beginning of ids, may take long: for most filters, dq looks at one job after the other.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq find 42
  dq find 42 --json | jq -r .topic
  dq find order- --state delayed
  dq find --tag shop:7 --all
  dq find --state delayed,ready --tag shop:7 --due-until 2026-12-01T00:00:00Z")]
pub(in super::super) struct FindArguments {
    /// The whole id. With filters, the command finds the ids that begin with this text. It does the same if no topic
    /// has this id
    #[arg(allow_hyphen_values = true)]
    id: Option<String>,

    #[command(flatten)]
    filter: FindFilter,

    #[command(flatten)]
    how_many: PageOptions,

    #[command(flatten)]
    at: TargetOptions,
}

/// The conditions that select jobs. A job must meet all given conditions.
#[derive(Debug, Clone, Default, clap::Args)]
struct FindFilter {
    /// Only jobs in this state: delayed, ready, leased, dead, or several of these with commas between them
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// Only jobs that have this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Only jobs of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only jobs that are due at this time or later: RFC 3339, or Unix milliseconds
    #[arg(long, value_name = "WHEN")]
    due_since: Option<String>,

    /// Only jobs that are due before this time
    #[arg(long, value_name = "WHEN")]
    due_until: Option<String>,
}

impl FindFilter {
    fn is_empty(&self) -> bool {
        self.tag.is_none() && self.topic.is_none() && self.has_ended_jobs()
    }

    /// Returns whether jobs that have ended can meet the conditions.
    fn has_ended_jobs(&self) -> bool {
        self.state.is_none() && self.due_since.is_none() && self.due_until.is_none()
    }

    /// Returns the path of the jobs that meet the conditions.
    fn jobs(&self, id_prefix: Option<&String>) -> String {
        let fields = [
            ("id_prefix", id_prefix),
            ("state", self.state.as_ref()),
            ("tag", self.tag.as_ref()),
            ("topic", self.topic.as_ref()),
            ("due_since", self.due_since.as_ref()),
            ("due_until", self.due_until.as_ref()),
        ];
        format!("/v1/jobs?{}", query(&fields))
    }

    /// Returns the path of the API request for the ended jobs that meet the conditions.
    fn records(&self, id_prefix: Option<&String>) -> String {
        let path = match &self.topic {
            Some(topic) => format!("/v1/topics/{}/records", part(topic)),
            None => "/v1/records".to_owned(),
        };
        format!("{path}?{}", query(&[("id_prefix", id_prefix), ("tag", self.tag.as_ref())]))
    }
}

/// Returns a query of the fields that have values. Each field ends with `&`.
fn query(fields: &[(&str, Option<&String>)]) -> String {
    let field = |(name, value): &(&str, Option<&String>)| Some(format!("{name}={}&", part((*value)?)));
    fields.iter().filter_map(field).collect()
}

#[derive(Debug, Deserialize)]
struct FoundPage {
    found: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The topics that could not be asked.
    #[serde(default)]
    away: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct FoundInTopic {
    topic: String,
    job: Option<Job>,
    records: Vec<Record>,
}

/// A page of jobs or of records.
#[derive(Debug, Deserialize)]
struct FoundJobsPage {
    #[serde(alias = "records")]
    jobs: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The nodes that did not answer.
    #[serde(default)]
    away: Vec<String>,
}

/// Runs `dq find`.
pub(in super::super) fn run(arguments: &FindArguments) -> Result<()> {
    let FindArguments { id, filter, how_many, at } = arguments;
    let api = Api::from_options(at)?;
    match (id, filter.is_empty()) {
        (None, true) => {
            return Err(Failure::Usage("give an id, or a filter such as --tag shop:7".to_owned()).into());
        }
        (Some(id), true) if exactly(&api, id, at)? => return Ok(()),
        _ => {}
    }
    let jobs = list(&api, &filter.jobs(id.as_ref()), "jobs", how_many, at.json, job_table)?;
    let records = match filter.has_ended_jobs() {
        true => match list(&api, &filter.records(id.as_ref()), "records", how_many, at.json, record_table) {
            // A topic that was removed may still have jobs, but it has no records.
            Err(e) if jobs > 0 && Failure::is_unknown_topic(&e) => 0,
            records => records?,
        },
        false => 0,
    };
    let message = match (id.as_ref().filter(|_| filter.is_empty()), jobs + records) {
        (Some(id), 0) => format!(
            "no registered topic has a job {:?}, or a record of one (dq keeps records as long as the topic's keep_done \
             says; `dq get TOPIC ID` also looks in a topic that is not registered)",
            plain(id)
        ),
        (Some(id), _) => {
            format!("no registered topic has the id {:?}: these ids only begin with it", plain(id))
        }
        (None, 0) => "no job meets all conditions".to_owned(),
        (None, _) => return Ok(()),
    };
    Err(Failure::NotFound(message).into())
}

/// Shows the job and the records that each topic has for an id. Returns whether a topic has something.
fn exactly(api: &Api, id: &str, at: &TargetOptions) -> Result<bool> {
    let (mut found, mut away, mut cursor) = (Vec::new(), Vec::new(), None::<String>);
    loop {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let page: FoundPage = api.get(&format!("/v1/find?id={}{behind}", part(id)))?.json()?;
        found.extend(page.found);
        away.extend(page.away);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if !away.is_empty() {
        eprintln!("the nodes of these topics could not be asked: {}", away.join(", "));
    }
    if found.is_empty() {
        return Ok(false);
    }
    if at.json {
        raw_lines(&found);
    } else {
        print!("{}", table(&found, now_ms())?);
    }
    Ok(true)
}

/// Prints the jobs or records that the API lists at a path, page by page. Returns how many there are. Prints nothing if
/// there are none.
fn list(
    api: &Api,
    path: &str,
    what: &str,
    how_many: &PageOptions,
    is_json: bool,
    table: fn(&[Box<RawValue>], i64) -> Result<String>,
) -> Result<usize> {
    let (most, mut shown, mut cursor, mut away) = (how_many.most(), 0, None::<String>, Vec::new());
    while shown < most {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let page: FoundJobsPage =
            api.get(&format!("{path}limit={}{behind}", PAGE.min(most - shown)))?.json()?;
        if is_json {
            raw_lines(&page.jobs);
        } else if !page.jobs.is_empty() {
            let text = table(&page.jobs, now_ms())?;
            // Only the first page is printed with the head of the table.
            print!(
                "{}",
                if shown == 0 { text.as_str() } else { text.split_once('\n').map_or("", |(_, t)| t) }
            );
        }
        shown += page.jobs.len();
        (cursor, away) = (page.next, page.away);
        if cursor.is_none() {
            break;
        }
    }
    print_missing(what, &away, cursor.is_some() && !is_json);
    Ok(shown)
}

/// Returns the result of the last attempt of a job.
fn last_attempt(job: &Job) -> String {
    job.log.last().map_or(NOTHING.to_owned(), |last| match last.error.as_str() {
        "" => last.status.map_or(NOTHING.to_owned(), |status| format!("status {status}")),
        error => error.to_owned(),
    })
}

/// Returns the state of a job, and the time that belongs to this state: the end of the lease, the time when the job
/// died, or the due time.
fn state_and_moment(job: &Job, now_ms: i64) -> [String; 2] {
    let state = if job.until_ms.is_some() { job.state.to_string() } else { format!("{}, due", job.state) };
    [state, moment_from(job.until_ms.unwrap_or(job.due_ms), now_ms)]
}

fn job_table(jobs: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["TOPIC", "ID", "WHAT", "WHEN", ">ATTEMPTS", "LAST ATTEMPT", "TAGS"]);
    for job in jobs {
        let job: Job = serde_json::from_str(job.get())?;
        let [state, when] = state_and_moment(&job, now_ms);
        let (last, tags) = (cut(&last_attempt(&job), 60), or_nothing(&job.tags.join(" ")));
        table.row([job.topic, cut(&job.id, 60), state, when, job.attempts.to_string(), last, tags]);
    }
    Ok(table.text())
}

fn table(found: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["TOPIC", "WHAT", "WHEN", ">ATTEMPTS", "LAST ATTEMPT"]);
    for one in found {
        let FoundInTopic { topic, job, records } = serde_json::from_str(one.get())?;
        if let Some(job) = job {
            let [state, when] = state_and_moment(&job, now_ms);
            table.row([topic.clone(), state, when, job.attempts.to_string(), last_attempt(&job)]);
        }
        for record in records {
            let cells = [
                topic.clone(),
                format!("ended: {}", record.outcome),
                moment_from(record.ended_ms, now_ms),
                record.attempts.to_string(),
                record.last(),
            ];
            table.row(cells);
        }
    }
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_queries_of_jobs_and_of_records() {
        let id = "a&b".to_owned();
        let filter = FindFilter { tag: Some("shop:7".into()), ..FindFilter::default() };
        assert_eq!(filter.jobs(Some(&id)), "/v1/jobs?id_prefix=a%26b&tag=shop%3A7&");
        assert_eq!(filter.records(None), "/v1/records?tag=shop%3A7&");
        assert!(filter.has_ended_jobs() && !filter.is_empty() && FindFilter::default().is_empty());
        let filter = FindFilter { state: Some("dead".into()), topic: Some("t".into()), ..filter };
        assert_eq!(filter.jobs(None), "/v1/jobs?state=dead&tag=shop%3A7&topic=t&");
        assert_eq!(filter.records(Some(&id)), "/v1/topics/t/records?id_prefix=a%26b&tag=shop%3A7&");
        assert!(!filter.has_ended_jobs());
    }

    #[test]
    fn a_table_of_jobs_shows_state_and_tags() {
        let job = serde_json::json!({
            "topic": "t", "id": "a", "state": "delayed", "due_ms": 120_000, "priority": "normal", "attempts": 1,
            "tags": ["x", "y"], "body": 1, "log": [{"number": 1, "at_ms": 1, "took_ms": 1, "error": "timeout"}],
        });
        let text = job_table(&[RawValue::from_string(job.to_string()).unwrap()], 60_000).unwrap();
        assert!(
            text.contains("t      a   delayed, due  ") && text.ends_with("1  timeout       x y\n"),
            "{text}"
        );
    }
}

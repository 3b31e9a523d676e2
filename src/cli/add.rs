//! `dq add`: adds a job, or a file of jobs.

use std::collections::BTreeMap;
use std::io::Read as _;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::api::{Api, part};
use super::batch::{self, JobFields};
use super::due::DueOptions;
use super::failure::Failure;
use super::show::plain;
use super::target::TargetOptions;
use model::job_priority::JobPriority;

/// Add a job, or a file of jobs
///
/// The topic must be registered. Without --id, dq makes an id and prints it. With --batch, each line of the file is one
/// job: {"id": …, "body": …, "delay": …, …}. The other options set the fields that a line does not have. Refused jobs
/// are printed with their line numbers, and the other jobs are stored.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq add orders '{\"order\": 42}' --id 42 --delay 30m --header 'x-tenant: 7'
  dq add orders '{\"order\": 42}' --path '/merchants/7' --tag shop:7 --tag campaign:spring
  dq add orders '{\"order\": 42}' --then '{\"topic\": \"invoices\", \"body\": 42, \"delay\": \"1h\"}'
  dq add orders @job.json --at '2026-12-01 23:50:50'
  echo '{\"order\": 42}' | dq add orders - --on-conflict keep
  dq add orders --batch jobs.ndjson --delay 1h")]
pub(super) struct AddArguments {
    /// The topic
    topic: String,

    /// The body: any JSON value, @FILE to read it from a file, or - to read it from stdin
    #[arg(required_unless_present = "batch", conflicts_with = "batch", allow_negative_numbers = true)]
    body: Option<String>,

    /// A file of jobs, one JSON object a line; - reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "idempotency_key", "text"])]
    batch: Option<String>,

    /// The job's id, unique in its topic; default: dq makes one
    #[arg(long)]
    id: Option<String>,

    #[command(flatten)]
    when: DueOptions,

    /// The priority: high, normal (2147483648), low or a number. Among the ready jobs of a topic, the jobs with the
    /// lowest number are served first
    #[arg(long, value_name = "PRIORITY", value_parser = priority)]
    priority: Option<JobPriority>,

    /// What to do if the topic has a job with this id: replace the old job (the default), reject the new one, or keep
    /// the old one without an error
    #[arg(long, value_name = "WHAT", value_parser = ["replace", "reject", "keep"])]
    on_conflict: Option<String>,

    /// The most attempts to deliver the job; default: the topic's max_attempts
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,

    /// How long a client that reserves the job may work on it, such as 2m; default: the topic's ttr
    #[arg(long, value_name = "TIME")]
    ttr: Option<String>,

    /// How long after its due time the job may still begin an attempt, such as 1h; 0: no limit; default: the topic's
    /// expire_after
    #[arg(long, value_name = "TIME")]
    expire_after: Option<String>,

    /// A header for the job's callbacks; may be given several times
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// A path or query that is appended to the topic's callback for this job, such as /merchants/7?x=1
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// A URL that is called for this job in place of the topic's callback; job_hosts of the topic must list its host
    #[arg(long, value_name = "URL", conflicts_with = "path")]
    callback: Option<String>,

    /// A tag by which the job can be found, such as shop:7; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// The followers: a job or a list of jobs as JSON, or @FILE; dq adds them when this job is accepted
    #[arg(long, value_name = "JSON", conflicts_with = "batch")]
    then: Option<String>,

    /// A key for repeats: a second add with the same key stores nothing, and gets the answer of the first add
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// The body is plain text, not JSON
    #[arg(long)]
    text: bool,

    #[command(flatten)]
    at: TargetOptions,
}

/// The daemon's answer to an add.
#[derive(Debug, Deserialize)]
struct AddAnswer {
    id: String,
    outcome: String,
    due: String,
}

/// Runs `dq add`. Returns whether all jobs were stored.
pub(super) fn run(arguments: &AddArguments) -> Result<bool> {
    let mut fields = arguments.fields()?;
    let topic = part(&arguments.topic);
    if let Some(file) = &arguments.batch {
        return batch::run(&arguments.at, &arguments.topic, file, &fields);
    }
    fields.insert("body".to_owned(), arguments.body()?);
    let key = arguments.idempotency_key.as_deref().map(|key| ("idempotency-key", key));
    let api = Api::from_options(&arguments.at)?;
    let answer = api.ask_with("POST", &format!("/v1/topics/{topic}/jobs"), key.as_slice(), &fields)?;
    if arguments.at.json {
        println!("{}", answer.raw()?.get());
        return Ok(true);
    }
    let AddAnswer { id, outcome, due } = answer.json()?;
    println!("{outcome}: {}:{}, due {}", arguments.topic, plain(&id), plain(&due));
    Ok(true)
}

fn priority(text: &str) -> std::result::Result<JobPriority, String> {
    JobPriority::parse(text).ok_or_else(|| format!("not {}", JobPriority::FORMS.replace('"', "")))
}

impl AddArguments {
    /// Returns all fields except the body.
    fn fields(&self) -> Result<JobFields> {
        fn put(fields: &mut JobFields, name: &str, value: Option<impl Serialize>) -> Result<()> {
            if let Some(value) = value {
                fields.insert(name.to_owned(), to_raw_value(&value)?);
            }
            Ok(())
        }
        let mut fields = JobFields::new();
        put(&mut fields, "id", self.id.as_ref())?;
        put(&mut fields, "priority", self.priority.as_ref())?;
        put(&mut fields, "on_conflict", self.on_conflict.as_ref())?;
        put(&mut fields, "max_attempts", self.max_attempts)?;
        put(&mut fields, "ttr", self.ttr.as_ref())?;
        put(&mut fields, "expire_after", self.expire_after.as_ref())?;
        let mut headers: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in &self.headers {
            if headers.insert(name, value).is_some() {
                return Err(Failure::Usage(format!("--header {name:?} is given twice")).into());
            }
        }
        put(&mut fields, "headers", (!headers.is_empty()).then_some(headers))?;
        put(&mut fields, "path", self.path.as_ref())?;
        put(&mut fields, "url", self.callback.as_ref())?;
        put(&mut fields, "tags", (!self.tags.is_empty()).then_some(&self.tags))?;
        if let Some(then) = &self.then {
            let json = RawValue::from_string(given(then)?.trim().to_owned());
            let json = json.map_err(|e| Failure::Usage(format!("--then is no JSON value: {e}")))?;
            fields.insert("then".to_owned(), json);
        }
        if let Some((name, value)) = self.when.field()? {
            put(&mut fields, name, Some(value))?;
        }
        Ok(fields)
    }

    fn body(&self) -> Result<Box<RawValue>> {
        let body = self.body.as_deref().unwrap_or_default();
        let text = given(body)?;
        if self.text {
            return Ok(to_raw_value(text.trim_end_matches('\n'))?);
        }
        RawValue::from_string(text.trim().to_owned()).map_err(|e| {
            Failure::Usage(format!("the body is no JSON value: {e} (--text takes it as a text)")).into()
        })
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME:VALUE, such as \"x-tenant: 7\"")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Returns the text that an argument stands for: the content of the file after `@`, the content of stdin for `-`, or
/// the argument itself.
pub(super) fn given(argument: &str) -> Result<String> {
    match (argument, argument.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
            Ok(text)
        }
        (_, Some(file)) => std::fs::read_to_string(file).with_context(|| format!("cannot read {file}")),
        (text, None) => Ok(text.to_owned()),
    }
}

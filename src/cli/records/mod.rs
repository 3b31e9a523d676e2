//! `dq records`: lists the records of jobs that have ended.

pub(super) mod find;
pub(super) mod forget;
pub(super) mod record;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::record::table;
use super::api::{Api, part};
use super::list::{PageOptions, print_missing};
use super::record_filter::{RecordFilter, text};
use super::show::raw_lines;
use super::target::TargetOptions;
use host::now_ms;

/// The most records on one page.
const PAGE: usize = 1000;

/// List how jobs ended: the last record of each id; the jobs that ended last come first
///
/// Without a topic, it lists the records of all topics. dq keeps a record for as long as the topic's keep_done says,
/// one day by default. REASON and ANSWER belong to the last attempt. ANSWER is empty for tokens without the scope read
/// for the topic.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq records orders
  dq records orders --outcome dead --since 2h --tag shop:7
  dq records --text 'no such order' --all --json | jq -r .id
  dq records orders --all --csv > ended.csv")]
pub(super) struct RecordsArguments {
    /// The topic; default: all topics
    topic: Option<String>,

    #[command(flatten)]
    filter: RecordFilter,

    /// Only jobs that have this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    #[command(flatten)]
    how_many: PageOptions,

    /// Print CSV. Cells that a spreadsheet would take for formulas begin with an apostrophe
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, Deserialize)]
struct RecordsPage {
    records: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The nodes that did not answer.
    #[serde(default)]
    away: Vec<String>,
}

/// Runs `dq records`.
pub(super) fn run(arguments: &RecordsArguments) -> Result<()> {
    let RecordsArguments { topic, filter, tag, how_many, csv, at } = arguments;
    let path = topic.as_ref().map_or("/v1/records".to_owned(), |t| format!("/v1/topics/{}/records", part(t)));
    let mut fields = filter.fields();
    fields.extend(text(tag).map(|tag| ("tag".to_owned(), tag)));
    let field = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("&{name}={}", part(&value))
    };
    let query: String = fields.iter().map(field).collect();
    let path = format!("{path}?format={}{query}", if *csv { "csv" } else { "json" });
    let api = Api::from_options(at)?;
    let (most, mut shown, mut cursor) = (how_many.most(), 0, None::<String>);
    let (mut away, mut is_first) = (Vec::new(), true);
    while shown < most {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let answer = api.get(&format!("{path}&limit={}{behind}", PAGE.min(most - shown)))?;
        // A page may have fewer records than asked for. Its cursor leads to the next page.
        if *csv {
            let text = answer.text();
            print!(
                "{}",
                if is_first { text.as_str() } else { text.split_once("\r\n").map_or("", |(_, t)| t) }
            );
            // (The lines are not counted, because the ANSWER of one record may have several lines.)
            shown += answer.header("dq-count").and_then(|n| n.parse::<usize>().ok()).unwrap_or(PAGE);
            cursor = answer.header("dq-next").map(str::to_owned);
            away = answer.header("dq-away").into_iter().map(str::to_owned).collect();
        } else {
            let page: RecordsPage = answer.json()?;
            if at.json {
                raw_lines(&page.records);
            } else {
                let text = table(&page.records, now_ms())?;
                let rows = text.split_once('\n').map_or("", |(_, rows)| rows);
                print!("{}", if is_first { text.as_str() } else { rows });
            }
            shown += page.records.len();
            (cursor, away) = (page.next, page.away);
        }
        is_first = false;
        if cursor.is_none() {
            break;
        }
    }
    print_missing("records", &away, cursor.is_some() && !at.json);
    Ok(())
}

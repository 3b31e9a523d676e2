//! A record as the API shows it, in a table or on a page of its own. Pure.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::attempts::attempts;
use super::super::show::{
    NOTHING, Table, cut, lines, moment, moment_from, or_nothing, plain, short_span, span,
};
use model::job::Attempt;

/// The record of a job that has ended.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Record {
    pub topic: String,
    pub id: String,
    pub outcome: String,
    added_ms: Option<i64>,
    due_ms: i64,
    pub ended_ms: i64,
    late_ms: Option<u64>,
    note: Option<String>,
    pub attempts: u32,
    #[serde(default)]
    log: Vec<Attempt>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    then: Vec<JobReference>,
    after: Option<JobReference>,
    body: Option<Box<RawValue>>,
}

/// Topic and id of a job.
#[derive(Debug, Deserialize)]
pub(in super::super) struct JobReference {
    topic: String,
    id: String,
}

/// Returns what a job follows, and what follows it.
pub(in super::super) fn links(
    then: &[JobReference],
    after: Option<&JobReference>,
) -> Vec<(&'static str, String)> {
    let name = |link: &JobReference| format!("{}:{}", link.topic, link.id);
    let mut facts: Vec<_> = after.map(|after| ("after", name(after))).into_iter().collect();
    if !then.is_empty() {
        facts.push(("then", then.iter().map(name).collect::<Vec<_>>().join(", ")));
    }
    facts
}

impl Record {
    /// Returns how the job ended, in a sentence without a subject: `delivered 3m ago after 2 attempts`.
    pub(in super::super) fn sentence(&self, now_ms: i64) -> String {
        let what = match self.outcome.as_str() {
            "dead" => "became a dead letter",
            known => known,
        };
        let ago = match now_ms - self.ended_ms {
            ..1000 => "just now".to_owned(),
            ago => format!("{} ago", span(ago)),
        };
        let attempts = match self.attempts {
            0 => "without an attempt".to_owned(),
            1 => "after 1 attempt".to_owned(),
            n => format!("after {n} attempts"),
        };
        format!("{what} {ago} {attempts}")
    }

    /// Returns why the job was removed, or the result of the last attempt.
    pub(in super::super) fn last(&self) -> String {
        if let Some(note) = &self.note {
            return note.clone();
        }
        match self.log.last() {
            None => NOTHING.to_owned(),
            Some(Attempt { error, .. }) if !error.is_empty() => error.clone(),
            Some(Attempt { status, .. }) => {
                status.map_or(NOTHING.to_owned(), |status| format!("status {status}"))
            }
        }
    }

    /// Returns everything that is known of the job.
    pub(in super::super) fn page(&self, now_ms: i64) -> String {
        let mut facts = vec![
            ("topic", self.topic.clone()),
            ("id", self.id.clone()),
            ("outcome", self.sentence(now_ms)),
            ("ended", moment_from(self.ended_ms, now_ms)),
            ("due", moment(self.due_ms)),
        ];
        facts.extend(self.note.clone().map(|note| ("reason", note)));
        facts.extend(self.late_ms.map(|late| ("late", short_span(late as f64))));
        facts.extend(self.added_ms.map(|added| ("added", moment(added))));
        facts.extend((!self.tags.is_empty()).then(|| ("tags", self.tags.join(", "))));
        facts.extend(links(&self.then, self.after.as_ref()));
        facts.push(("attempts", self.attempts.to_string()));
        facts.extend(self.body.as_ref().map(|body| ("body", body.get().to_owned())));
        let mut text = lines(&facts);
        if !self.log.is_empty() {
            text = text + "\n" + &attempts(&self.log);
        }
        text
    }
}

/// Returns the story of an id: the whole last record, and how earlier jobs with this id ended. None: there are no
/// records.
pub(in super::super) fn story(records: &[Record], now_ms: i64) -> Option<String> {
    let (last, before) = records.split_first()?;
    let mut text = last.page(now_ms);
    if !before.is_empty() {
        text += "\nBefore this:\n";
        let line = |record: &Record| format!("  {} ({})\n", record.sentence(now_ms), plain(&record.last()));
        text.extend(before.iter().map(line));
    }
    Some(text)
}

/// Returns the table of a page of records.
pub(super) fn table(records: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let head = ["TOPIC", "ID", "OUTCOME", "ENDED", ">LATE", ">ATTEMPTS", "REASON", "ANSWER"];
    let mut table = Table::new(&head);
    for record in records {
        let record: Record = serde_json::from_str(record.get())?;
        table.row([
            record.topic.clone(),
            cut(&record.id, 60),
            record.outcome.clone(),
            moment_from(record.ended_ms, now_ms),
            record.late_ms.map_or(NOTHING.to_owned(), |late| short_span(late as f64)),
            record.attempts.to_string(),
            cut(&record.last(), 60),
            cut(&or_nothing(record.log.last().map_or("", |last| &last.answer)), 60),
        ]);
    }
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(outcome: &str, attempts: u32) -> serde_json::Value {
        json!({
            "topic": "t", "id": "a\nb", "outcome": outcome, "added_ms": 0, "due_ms": 1000, "ended_ms": 60_000,
            "late_ms": 7, "attempts": attempts, "body": {"order": 42}, "tags": ["a", "b"], "later": "unknown", "log": [
                {"number": 1, "at_ms": 1000, "took_ms": 7, "status": 503, "answer": "not\nyet", "error": "status 503"},
                {"number": 2, "at_ms": 2000, "took_ms": 30, "status": 200, "answer": "ok"},
            ],
        })
    }

    #[test]
    fn a_record_says_how_its_job_ended() {
        let records = [record("delivered", 2), record("dead", 1), record("deleted", 0)];
        let records: Vec<Record> =
            records.into_iter().map(|record| serde_json::from_value(record).unwrap()).collect();
        let text = story(&records, 240_000).unwrap();
        for part in [
            "id        a\\nb\n",
            "outcome   delivered 3m ago after 2 attempts\n",
            "late      7 ms\n",
            "tags      a, b\n",
            "body      {\"order\":42}\n",
            "status 503  not\\nyet\n",
            "\nBefore this:\n  became a dead letter 3m ago after 1 attempt (status 200)\n",
            "  deleted 3m ago without an attempt (",
        ] {
            assert!(text.contains(part), "{part:?}\n{text}");
        }
        assert_eq!(story(&[], 0), None);
        assert!(records[0].sentence(60_000).starts_with("delivered just now"));
    }

    #[test]
    fn a_table_of_records_tells_them_apart() {
        let records = [RawValue::from_string(record("delivered", 2).to_string()).unwrap()];
        let text = table(&records, 240_000).unwrap();
        assert!(text.contains("t      a\\nb  delivered  ") && text.contains("(3m ago)"), "{text}");
        assert!(text.ends_with("7 ms         2  status 200  ok\n"), "{text}");
    }
}

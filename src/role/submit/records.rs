//! Requests about records: searches through the records of several topics in steps of limited work, and the search for
//! one id over several topics.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::list::PAGE_BYTES;
use model::job::{JobId, JobKey, TopicName};
use model::record::{JobRecord, RecordFilter};
use store::{Result, Store, StoreError, StoredJob};

/// How many records one request may look at, and for how long.
const LOOKS: usize = 5_000;
const STEP: Duration = Duration::from_millis(100);

/// How many records of a topic are read at a time. The number doubles as long as the records are small.
const READ: [usize; 2] = [50, 400];
const SMALL: usize = 256 << 10;

/// How many topics one request may search. Their records are merged, so each topic must be read before the first record
/// is known. If the first reads take too long, fewer topics are searched.
const TOPICS: usize = 100;

/// A topic whose records are searched.
#[derive(Debug, Clone)]
pub struct SearchedTopic {
    /// Its name.
    pub name: TopicName,
    /// Whether the reader may see what receivers answered. If not, answers are not searched and not shown.
    pub sees_answers: bool,
}

/// Which records a request shows.
#[derive(Debug)]
pub struct RecordQuery {
    /// The topics, in the order of their names.
    pub topics: Vec<SearchedTopic>,
    /// The filter that selects records of these topics.
    pub filter: RecordFilter,
    /// Where the previous page ended.
    pub cursor: Option<RecordCursor>,
    /// The maximum number of records.
    pub limit: usize,
}

/// Where a page of records ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordCursor {
    /// The first of the topics that are searched together.
    pub first: TopicName,
    /// The first topic after these topics. None: these topics are the last topics. If `last` is none too, the search
    /// has not decided yet where these topics end.
    pub behind: Option<TopicName>,
    /// The last record that was looked at: its `order_ms`, its topic, its id. None: these topics were not searched yet.
    pub last: Option<(i64, TopicName, JobId)>,
}

/// A page of records.
#[derive(Debug, Default)]
pub struct FoundRecords {
    /// The records. The record of the job that ended last comes first.
    pub records: Vec<JobRecord>,
    /// Where to continue. None: all records were looked at.
    pub next: Option<RecordCursor>,
    /// How many records were looked at for this page.
    pub looked_at: usize,
    /// The nodes that could not be asked.
    pub away: Vec<String>,
}

/// The records that were read from one topic, the latest record first.
struct TopicRecords<'a> {
    topic: &'a SearchedTopic,
    read: VecDeque<JobRecord>,
    cursor: Option<String>,
    is_over: bool,
    most: usize,
}

impl TopicRecords<'_> {
    /// Reads the next records if none is left.
    fn fill(&mut self, store: &mut dyn Store, since_ms: i64, away: &mut Vec<String>) -> Result<()> {
        while self.read.is_empty() && !self.is_over {
            let page = store.list_records(&self.topic.name, self.cursor.as_deref(), self.most)?;
            away.extend(page.away);
            // If a clock was set back, single records may be out of order. So the search of a topic ends only when all
            // records of a page are too old.
            let is_old = page.records.iter().all(|record| record.ended_ms < since_ms);
            self.is_over = page.next.is_none() || is_old;
            self.cursor = page.next;
            if !is_old {
                self.read = page.records.into();
            }
            let is_small = self.read.iter().map(size).sum::<usize>() < SMALL;
            self.most = if is_small { (self.most * 2).min(READ[1]) } else { READ[0].min(self.most) };
        }
        Ok(())
    }
}

fn size(record: &JobRecord) -> usize {
    let log = record.attempts_log.iter().map(|a| a.answer.len() + a.error.len());
    record.body.as_ref().map_or(0, |body| body.as_str().len()) + log.sum::<usize>()
}

/// Returns the store's cursor for a topic. With it, a search continues after the record `last`.
fn start(
    store: &mut dyn Store,
    topic: &TopicName,
    last: Option<&(i64, TopicName, JobId)>,
    until_ms: Option<i64>,
) -> Result<Option<String>> {
    match (last, until_ms) {
        (None, None) => Ok(None),
        (None, Some(until_ms)) => store.records_after(topic, until_ms, None),
        // Records of the same moment are in the order of their topics.
        (Some((order_ms, of, id)), _) if of == topic => store.records_after(topic, *order_ms, Some(id)),
        (Some((order_ms, of, _)), _) if topic < of => store.records_after(topic, *order_ms, None),
        (Some((order_ms, ..)), _) => store.records_after(topic, order_ms.saturating_add(1), None),
    }
}

/// Finds a page of records. The page has fewer records than the limit if the records are large, or if the search takes
/// long.
pub(super) fn find(store: &mut dyn Store, query: &RecordQuery) -> Result<FoundRecords> {
    let RecordQuery { topics, filter, cursor, limit } = query;
    let (since_ms, mut found, mut bytes) = (filter.since_ms.unwrap_or(i64::MIN), FoundRecords::default(), 0);
    let topics = topics_from(topics, cursor.as_ref());
    let Some(first) = topics.first() else { return Ok(found) };
    let last = cursor.as_ref().and_then(|at| at.last.as_ref());
    let most = (2 * READ[0] / topics.len().min(TOPICS)).clamp(2, READ[0]);
    let (mut streams, begun) = (Vec::new(), Instant::now());
    for topic in topics.iter().take(TOPICS) {
        // The limit `STEP` is only for the first page of these topics. Further pages search the same topics, until all
        // of their records were looked at.
        if last.is_none() && !streams.is_empty() && begun.elapsed() >= STEP {
            break;
        }
        let from = start(store, &topic.name, last, filter.until_ms)?;
        let mut stream = TopicRecords { topic, read: VecDeque::new(), cursor: from, is_over: false, most };
        stream.fill(store, since_ms, &mut found.away)?;
        streams.push(stream);
    }
    let after = match cursor.as_ref().filter(|at| at.last.is_some()).and_then(|at| at.behind.as_ref()) {
        Some(behind) => Some(behind.clone()),
        None => topics.get(streams.len()).map(|topic| topic.name.clone()),
    };
    // `STEP` counts again from here, because the first reads of many topics alone may take longer than `STEP`.
    let (mut last, until) = (None, Instant::now() + STEP);
    loop {
        for stream in &mut streams {
            stream.fill(store, since_ms, &mut found.away)?;
        }
        streams.retain(|stream| !stream.read.is_empty());
        let is_full = found.records.len() >= *limit || bytes >= PAGE_BYTES;
        let is_long = found.looked_at >= LOOKS || found.looked_at > 0 && Instant::now() >= until;
        if streams.is_empty() || is_full || is_long {
            break;
        }
        // If several records have the same time, the one of the first topic comes first.
        let latest = streams.iter_mut().rev().max_by_key(|s| s.read.front().map(|record| record.order_ms));
        let Some(stream) = latest else { break };
        let Some(mut record) = stream.read.pop_front() else { continue };
        found.looked_at += 1;
        last = Some((record.order_ms, record.key.topic.clone(), record.key.id.clone()));
        if !stream.topic.sees_answers {
            record.remove_answers();
        }
        if filter.admits(&record) {
            bytes += size(&record);
            found.records.push(record);
        }
    }
    found.away.sort();
    found.away.dedup();
    found.next = match (streams.is_empty(), after) {
        (false, behind) => Some(RecordCursor { first: first.name.clone(), behind, last }),
        (true, Some(next)) => Some(RecordCursor { first: next, behind: None, last: None }),
        (true, None) => None,
    };
    Ok(found)
}

/// Returns the topics from the cursor's `first` on. If the cursor has a `behind`, only the topics before `behind` are
/// returned.
fn topics_from<'a>(topics: &'a [SearchedTopic], cursor: Option<&RecordCursor>) -> &'a [SearchedTopic] {
    let Some(cursor) = cursor else { return topics };
    let begin = topics.partition_point(|topic| topic.name < cursor.first);
    let end = cursor.behind.as_ref().map_or(topics.len(), |at| topics.partition_point(|t| t.name < *at));
    &topics[begin..end.max(begin)]
}

/// Returns the records of an id, the latest first.
pub(super) fn of_id(store: &mut dyn Store, key: &JobKey, sees_answers: bool) -> Result<Vec<JobRecord>> {
    let mut records = store.records(key)?;
    if !sees_answers {
        records.iter_mut().for_each(JobRecord::remove_answers);
    }
    Ok(records)
}

/// The job and the records that one topic has for an id.
#[derive(Debug)]
pub struct FoundId {
    /// The topic.
    pub topic: SearchedTopic,
    /// The job, or the latest dead letter if there is no job.
    pub job: Option<StoredJob>,
    /// The records of jobs that ended.
    pub records: Vec<JobRecord>,
}

/// The jobs and records that several topics have for an id.
#[derive(Debug, Default)]
pub struct FoundIds {
    /// The topics that have a job or a record with this id.
    pub found: Vec<FoundId>,
    /// How many topics were asked.
    pub looked_at: usize,
    /// The topics that could not be asked, because the node that would have this id does not answer.
    pub away: Vec<TopicName>,
}

/// Looks for an id in these topics. The search stops after the time [`STEP`].
pub(super) fn find_id(store: &mut dyn Store, topics: Vec<SearchedTopic>, id: &JobId) -> Result<FoundIds> {
    let (begun, mut all) = (Instant::now(), FoundIds::default());
    for topic in topics {
        if all.looked_at > 0 && begun.elapsed() >= STEP {
            break;
        }
        all.looked_at += 1;
        let key = JobKey { topic: topic.name.clone(), id: id.clone() };
        let look = store.get(&key).and_then(|job| Ok((job, of_id(store, &key, topic.sees_answers)?)));
        match look {
            Ok((None, records)) if records.is_empty() => {}
            Ok((job, records)) => all.found.push(FoundId { topic, job, records }),
            // A failed read has changed nothing, so `Unknown` counts like a node that is down.
            Err(StoreError::NodeDown(_) | StoreError::Unknown(_)) => all.away.push(topic.name),
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

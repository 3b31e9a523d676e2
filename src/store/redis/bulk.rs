//! Operations on many jobs. Lists the jobs of all shards, without their bodies. Changes listed jobs, but only those
//! that are still the same as when they were listed.

use redis::Value;

use super::answer::{self, array, bytes, number, unexpected};
use super::batch::argument_writer;
use super::nodes::{Place, moving};
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::{
    Bulk, Direction, ListedChangeGoal, ListedChangeResult, ListedJob, ListedJobChange, ListedPage, Result,
};
use model::job::{JobId, JobKey, State, TopicName};

/// The minimum number of jobs that one shard is asked for. If there are many shards, the part of a page for each shard
/// would be very small without this minimum.
const SHARE: usize = 16;

/// How many bytes follow the id in the name of a dead letter.
const LETTER: usize = 4;

/// A place in the order of the jobs of a state: score and member. The order is the same on all shards.
type ListSortKey = (i64, Vec<u8>);

/// The jobs that one shard lists, with the place of each job, and whether the shard has more jobs.
struct ShardListing {
    jobs: Vec<(ListSortKey, ListedJob)>,
    has_more: bool,
}

fn heads_of(value: Value, state: State) -> Result<ShardListing> {
    let mut values = array(value)?.into_iter();
    let mut next = || values.next();
    let has_more = number(&next().ok_or_else(|| unexpected("a list"))?)? > 0;
    let mut jobs = Vec::new();
    while let Some(member) = next() {
        let mut part = || next().ok_or_else(|| unexpected("a job"));
        let member = bytes(member)?;
        let score = number(&part()?)?;
        let (due_ms, stamp_us, log) = (number(&part()?)?, number(&part()?)?, bytes(part()?)?);
        let length = if state == State::Dead { member.len().saturating_sub(LETTER) } else { member.len() };
        let listed = ListedJob {
            id: answer::id(Value::BulkString(member[..length].to_vec()))?,
            state,
            due_ms,
            until_ms: matches!(state, State::Leased | State::Dead).then_some(score),
            stamp_us,
            tried_ms: answer::attempts_of(&log).last().map(|attempt| attempt.at_ms),
            headers: answer::headers_of(&log),
        };
        jobs.push(((score, member), listed));
    }
    Ok(ShardListing { jobs, has_more })
}

/// Joins the lists of the shards to one page. Some shards have more jobs than they listed. The page ends at the
/// earliest end of their lists, so that no job of these shards is skipped.
fn joined(shards: Vec<ShardListing>, direction: Direction, limit: usize) -> Result<ListedPage> {
    let is_before = |a: &ListSortKey, b: &ListSortKey| match direction {
        Direction::Forward => a < b,
        Direction::Backward => a > b,
    };
    let mut end: Option<ListSortKey> = None;
    for shard in shards.iter().filter(|shard| shard.has_more) {
        let last = shard.jobs.last().map(|(place, _)| place).ok_or_else(|| unexpected("a list"))?;
        if end.as_ref().is_none_or(|end| is_before(last, end)) {
            end = Some(last.clone());
        }
    }
    let mut jobs: Vec<(ListSortKey, ListedJob)> = shards.into_iter().flat_map(|shard| shard.jobs).collect();
    jobs.sort_by(|(a, _), (b, _)| if direction == Direction::Forward { a.cmp(b) } else { b.cmp(a) });
    let all = jobs.len();
    if let Some(end) = &end {
        jobs.retain(|(place, _)| !is_before(end, place));
    }
    jobs.truncate(limit);
    let is_cut = end.is_some() || jobs.len() < all;
    let next = jobs.last().filter(|_| is_cut).map(|(place, _)| serde_json::to_string(place));
    let next = next.transpose().map_err(|_| unexpected("a cursor"))?;
    Ok(ListedPage { jobs: jobs.into_iter().map(|(_, job)| job).collect(), next })
}

impl Bulk for RedisStore {
    fn list_in_order(
        &mut self,
        topic: &TopicName,
        state: State,
        direction: Direction,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage> {
        let place: Option<ListSortKey> = match cursor.map(serde_json::from_str) {
            None => None,
            Some(Ok(place)) => Some(place),
            Some(Err(_)) => return Ok(ListedPage::default()),
        };
        let (score, member) =
            place.map_or_else(Default::default, |(score, member)| (score.to_string(), member));
        let homes = self.nodes.open_homes()?;
        let places: Vec<Place> = self.all_places().collect();
        let share = limit.div_ceil(places.len().max(1)).clamp(SHARE, CHUNK).min(limit);
        let word = if direction == Direction::Forward { "forward" } else { "backward" };
        let call = |place: Place| {
            let mut call = self.call(Script::Heads, place);
            call.cmd.arg(topic.as_str()).arg(state as u8).arg(&score).arg(&member[..]);
            call.cmd.arg(word).arg(share).arg(BYTES);
            (place, call)
        };
        let answers = self.ask_all(places.into_iter().map(call).collect());
        let shards: Vec<ShardListing> =
            answers.into_iter().map(|(_, answer)| heads_of(answer?, state)).collect::<Result<_>>()?;
        // A job that was moved during these calls may be missing in all answers. So the answers are used only if the
        // set of nodes is still the same.
        match self.nodes.open_homes()?.set == homes.set {
            true => joined(shards, direction, limit),
            false => Err(moving()),
        }
    }

    fn change_listed(
        &mut self,
        topic: &TopicName,
        changes: &[ListedJobChange],
    ) -> Vec<Result<ListedChangeResult>> {
        let key = |id: &JobId| JobKey { topic: topic.clone(), id: id.clone() };
        let keyed: Vec<(JobKey, &ListedJobChange)> = changes.iter().map(|one| (key(&one.id), one)).collect();
        let keys: Vec<&JobKey> = keyed.iter().map(|(key, _)| key).collect();
        if let Err(e) = self.check_nothing_spooled(&keys) {
            return changes.iter().map(|_| Err(e.clone())).collect();
        }
        let understand = |[letter]: [u8; 1]| match letter {
            b'd' => Ok(ListedChangeResult::Done),
            b'a' => Ok(ListedChangeResult::Already),
            b'x' => Ok(ListedChangeResult::Differs),
            b'n' => Ok(ListedChangeResult::NotFound),
            _ => Err(unexpected("an answer")),
        };
        self.run_by_homes(&keyed, |homes, keyed| {
            let words = argument_writer(|(key, change): &(JobKey, &ListedJobChange), cmd| {
                cmd.arg(key.id.as_str()).arg(change.stamp_us).arg(change.due_ms);
                match change.aim {
                    ListedChangeGoal::Due(to_ms) => cmd.arg(to_ms),
                    ListedChangeGoal::Gone => cmd.arg("-"),
                };
            });
            let letters = self.each(Script::ChangeListed, homes, keyed, |(key, _)| key, &[], words);
            letters.into_iter().map(|letter| letter.and_then(understand)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::headers::Headers;

    fn heads(scores: &[i64], has_more: bool) -> ShardListing {
        let listed = |score: &i64| ListedJob {
            id: JobId::new(score.to_string()).unwrap(),
            state: State::Delayed,
            due_ms: *score,
            until_ms: None,
            stamp_us: 1,
            tried_ms: None,
            headers: Headers::default(),
        };
        let jobs = scores.iter().map(|score| ((*score, vec![b'a']), listed(score))).collect();
        ShardListing { jobs, has_more }
    }

    fn scores(page: &ListedPage) -> Vec<i64> {
        page.jobs.iter().map(|job| job.due_ms).collect()
    }

    #[test]
    fn a_page_ends_where_the_first_shard_with_more_ends() {
        let shards = || vec![heads(&[1, 4, 9], true), heads(&[2, 3, 5], true), heads(&[6], false)];
        let page = joined(shards(), Direction::Forward, 10).unwrap();
        assert_eq!(scores(&page), [1, 2, 3, 4, 5]);
        assert_eq!(page.next.as_deref(), Some("[5,[97]]"));
        let page = joined(shards(), Direction::Forward, 2).unwrap();
        assert_eq!((scores(&page), page.next.as_deref()), (vec![1, 2], Some("[2,[97]]")));
        let back = vec![heads(&[9, 4, 1], false), heads(&[8, 7], true)];
        let page = joined(back, Direction::Backward, 10).unwrap();
        assert_eq!(scores(&page), [9, 8, 7]);
        let page = joined(vec![heads(&[9], false), heads(&[], false)], Direction::Forward, 10).unwrap();
        assert_eq!((scores(&page), page.next), (vec![9], None));
    }
}

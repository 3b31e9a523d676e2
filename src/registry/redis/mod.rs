//! The registry in tables on a node of the store, for hosts that share Redis. For each change, a process reads the
//! table and computes the change. It writes the change only if nobody has changed the table in the meantime. If
//! somebody has changed the table, the process starts again.
//!
//! docs/internals/REGISTRY.md has the tables and fields, and the rules by which all hosts find the node.

mod audit;
mod bulk;
mod statistics;

use serde_json::{Map, Value};

use super::record;
use super::token::{self, TokenRow};
use super::{
    BulkClaim, BulkSave, Expected, InvalidRow, Listing, Registered, Registry, RegistryError, Result, Revision,
};
use model::audit::AuditEntry;
use model::bulk::{BulkRequest, StoredBulkOperation};
use model::job::TopicName;
use model::metrics::{PageSums, Statistics};
use model::settings::RedisSettings;
use model::token::{Token, TokenName};
use model::topic::{Topic, TopicStatus};
use store::{RedisTableChange, RedisTables};

/// The first table: topics and tokens. Its version is the revision of the registry.
const TABLE: &str = RedisTables::FIRST;

/// The names of the fields that hold topics begin with this text. The value is the topic's revision, a space, and its
/// settings as JSON.
const TOPIC: &str = "topic:";

/// The names of the fields that hold tokens and accounts begin with this text. The value is JSON.
const TOKEN: &str = "token:";

/// The limit of tries for one change. A try fails if somebody else was faster, so each failed try means that another
/// change was made.
const TRIES: usize = 100;

/// A handle to the tables.
#[derive(Debug)]
pub struct RedisRegistry {
    tables: RedisTables,
}

impl RedisRegistry {
    /// Finds the registry. None: there is no registry yet.
    pub fn find(nodes: &RedisSettings) -> Result<Option<RedisRegistry>> {
        Ok(RedisTables::find(nodes)?.map(|tables| RedisRegistry { tables }))
    }

    /// Opens the registry, and makes it if there is none.
    pub fn open(nodes: &RedisSettings) -> Result<RedisRegistry> {
        match RedisRegistry::find(nodes)? {
            Some(registry) => Ok(registry),
            None => RedisRegistry::create(nodes, None, &[], &[]).map(|(registry, _)| registry),
        }
    }

    /// Makes a registry with these topics and tokens on the node `on`. Without `on`, makes it on the node that has the
    /// first name of all nodes that hold jobs. Refuses if there is a registry already.
    pub fn rebuild(
        nodes: &RedisSettings,
        on: Option<&str>,
        topics: &[Topic],
        tokens: &[Token],
    ) -> Result<RedisRegistry> {
        match RedisRegistry::create(nodes, on, topics, tokens)? {
            (registry, true) => Ok(registry),
            (other, false) => {
                Err(RegistryError::Away(format!("node {} has a registry: nothing was written", other.node())))
            }
        }
    }

    fn create(
        nodes: &RedisSettings,
        on: Option<&str>,
        topics: &[Topic],
        tokens: &[Token],
    ) -> Result<(RedisRegistry, bool)> {
        // The first revision is a random number, so that processes notice if another registry replaces this one.
        let version = fastrand::u64(1..1_000_000_000_000);
        let topic = |topic: &Topic| {
            set(
                TABLE,
                topic_field(&topic.name),
                format!("{version} {}", record::stored_over(topic, None, &[])),
            )
        };
        let token = |token: &Token| Ok(set(TABLE, token_field(&token.name), json(&TokenRow::new(token))?));
        let mut changes: Vec<RedisTableChange> = topics.iter().map(topic).collect();
        changes.extend(tokens.iter().map(token).collect::<Result<Vec<_>>>()?);
        let (tables, is_made) = RedisTables::create(nodes, on, version, &changes)?;
        Ok((RedisRegistry { tables }, is_made))
    }

    /// Returns the name of the node that has the registry.
    pub fn node(&self) -> &str {
        self.tables.node()
    }

    /// Moves the registry to another node. A run that was interrupted can be started again.
    pub fn move_to(self, node: &str) -> Result<RedisRegistry> {
        let others = |tables: &RedisTables| {
            let always = [audit::TABLES, bulk::TABLES, statistics::TABLES].concat();
            let days = statistics::day_tables(tables)?;
            Ok(always.into_iter().map(str::to_owned).chain(days).collect())
        };
        Ok(RedisRegistry { tables: self.tables.move_to(node, others)? })
    }

    /// Makes a change. `work` reads what it needs, and returns the changes and the result. If the version of the table
    /// `guard` has changed in the meantime, `work` runs again.
    fn change<T>(
        &mut self,
        guard: &'static str,
        mut work: impl FnMut(&RedisTables, u64) -> Result<(Vec<RedisTableChange>, T)>,
    ) -> Result<T> {
        for _ in 0..TRIES {
            let version = self.tables.version(guard)?;
            if version.is_none() && guard == TABLE {
                return Err(self.tables.gone().into());
            }
            let (changes, result) = work(&self.tables, version.unwrap_or(0) + 1)?;
            if changes.is_empty() || self.tables.write(guard, version, &changes)? {
                return Ok(result);
            }
        }
        Err(RegistryError::Away("others change the registry all the time: try again".to_owned()))
    }

    fn change_token(
        &mut self,
        name: &TokenName,
        work: impl Fn(Option<TokenRow>) -> Result<Option<TokenRow>>,
    ) -> Result<()> {
        let field = token_field(name);
        self.change(TABLE, |tables, _| {
            let found = one_field(tables, TABLE, &field)?;
            let row =
                found.map(|text| read_token(&field, &text)).transpose().map_err(RegistryError::Unusable)?;
            let (table, field) = (TABLE.to_owned(), field.clone());
            let change = match work(row)? {
                Some(row) => RedisTableChange::Set { table, field, value: json(&row)? },
                None => RedisTableChange::Remove { table, field },
            };
            Ok((vec![change], ()))
        })
    }
}

fn set(table: &str, field: impl Into<String>, value: impl Into<String>) -> RedisTableChange {
    RedisTableChange::Set { table: table.to_owned(), field: field.into(), value: value.into() }
}

fn remove(table: &str, field: impl Into<String>) -> RedisTableChange {
    RedisTableChange::Remove { table: table.to_owned(), field: field.into() }
}

fn one_field(tables: &RedisTables, table: &str, field: &str) -> Result<Option<String>> {
    Ok(tables.fields(table, &[field.to_owned()])?.pop().flatten())
}

/// Reads the text of a field as a number. None: there is no such field, so the number is 0.
fn number(text: Option<String>) -> Result<u64> {
    match text {
        None => Ok(0),
        Some(text) => {
            text.parse().map_err(|_| RegistryError::Away(format!("the registry has {text:?} for a number")))
        }
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| RegistryError::Away(format!("cannot write a row: {e}")))
}

/// A topic as it is stored: its revision, and its settings as JSON.
struct RedisTopicValue<'a> {
    revision: Revision,
    spec: &'a str,
}

impl RedisTopicValue<'_> {
    fn read<'a>(name: &str, text: &'a str) -> std::result::Result<RedisTopicValue<'a>, InvalidRow> {
        let parts = text.split_once(' ').and_then(|(revision, spec)| Some((revision.parse().ok()?, spec)));
        let (revision, spec) = parts.ok_or_else(|| unusable(name, "it has no revision".to_owned()))?;
        Ok(RedisTopicValue { revision: Revision(revision), spec })
    }

    fn registered(name: &str, text: &str) -> std::result::Result<Registered, InvalidRow> {
        let RedisTopicValue { revision, spec } = RedisTopicValue::read(name, text)?;
        let checked = TopicName::new(name).map_err(|e| unusable(name, e.to_string()))?;
        let record = serde_json::from_str(spec).map_err(|e| unusable(name, format!("spec: {e}")))?;
        let topic = record::topic(checked, &record).map_err(|e| unusable(name, e.to_string()))?;
        Ok(Registered { topic, revision })
    }
}

fn unusable(name: &str, why: String) -> InvalidRow {
    InvalidRow { which: format!("topic {name:?}"), why }
}

fn read_token(field: &str, text: &str) -> std::result::Result<TokenRow, InvalidRow> {
    let which = || format!("token {:?}", field.strip_prefix(TOKEN).unwrap_or(field));
    serde_json::from_str(text).map_err(|e| InvalidRow { which: which(), why: e.to_string() })
}

fn topic_field(name: &TopicName) -> String {
    format!("{TOPIC}{name}")
}

fn token_field(name: &TokenName) -> String {
    format!("{TOKEN}{}", name.stored())
}

/// Returns the text in the topic's field. None: there is no such field.
fn topic_text(tables: &RedisTables, name: &TopicName) -> Result<Option<String>> {
    one_field(tables, TABLE, &topic_field(name))
}

fn revision_in(name: &TopicName, text: Option<&String>) -> Result<Option<Revision>> {
    let read = |text: &String| RedisTopicValue::read(name.as_str(), text).map(|field| field.revision);
    text.map(read).transpose().map_err(RegistryError::Unusable)
}

impl Registry for RedisRegistry {
    fn revision(&mut self) -> Result<Revision> {
        self.tables.version(TABLE)?.map(Revision).ok_or_else(|| self.tables.gone().into())
    }

    fn list(&mut self) -> Result<Listing> {
        let (version, fields) = self.tables.table(TABLE)?.ok_or_else(|| self.tables.gone())?;
        let (mut topics, mut rows, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (field, text) in &fields {
            if let Some(name) = field.strip_prefix(TOPIC) {
                match RedisTopicValue::registered(name, text) {
                    Ok(registered) => {
                        others.extend(registered.left_out());
                        topics.push(registered);
                    }
                    Err(unusable) => others.push(unusable),
                }
            } else if field.starts_with(TOKEN) {
                match read_token(field, text) {
                    Ok(row) => rows.push(row),
                    Err(unusable) => others.push(unusable),
                }
            }
        }
        let (tokens, mut unusable) = token::sorted(rows);
        unusable.extend(others);
        Ok(Listing { revision: Revision(version), topics, tokens, unusable })
    }

    fn get(&mut self, name: &TopicName) -> Result<Option<Registered>> {
        let text = topic_text(&self.tables, name)?;
        let read = |text: String| RedisTopicValue::registered(name.as_str(), &text);
        text.map(read).transpose().map_err(RegistryError::Unusable)
    }

    fn put(&mut self, topic: &Topic, expected: Expected) -> Result<Revision> {
        topic.check()?;
        self.change(TABLE, |tables, next| {
            let before = topic_text(tables, &topic.name)?;
            expected.check(&topic.name, revision_in(&topic.name, before.as_ref())?)?;
            let before = before.as_deref().and_then(|text| text.split_once(' ')).map(|(_, spec)| spec);
            let spec = record::stored_over(topic, before, &[]);
            Ok((vec![set(TABLE, topic_field(&topic.name), format!("{next} {spec}"))], Revision(next)))
        })
    }

    fn set_status(&mut self, name: &TopicName, status: TopicStatus) -> Result<Revision> {
        let status = match status {
            TopicStatus::Online => "online",
            TopicStatus::Offline => "offline",
        };
        self.change(TABLE, |tables, next| {
            let text = topic_text(tables, name)?.ok_or_else(|| RegistryError::NotFound(name.clone()))?;
            let field = RedisTopicValue::read(name.as_str(), &text).map_err(RegistryError::Unusable)?;
            let mut spec: Map<String, Value> = serde_json::from_str(field.spec)
                .map_err(|e| RegistryError::Unusable(unusable(name.as_str(), format!("spec: {e}"))))?;
            spec.insert("status".to_owned(), status.into());
            let value = format!("{next} {}", Value::Object(spec));
            Ok((vec![set(TABLE, topic_field(name), value)], Revision(next)))
        })
    }

    fn delete(&mut self, name: &TopicName, expected: Expected) -> Result<()> {
        self.change(TABLE, |tables, _| {
            let text = topic_text(tables, name)?;
            expected.check(name, revision_in(name, text.as_ref())?)?;
            match text {
                None => Err(RegistryError::NotFound(name.clone())),
                Some(_) => Ok((vec![remove(TABLE, topic_field(name))], ())),
            }
        })
    }

    fn put_token(&mut self, token: &Token) -> Result<()> {
        self.change_token(&token.name, |found| match found {
            Some(_) => Err(RegistryError::TokenExists(token.name.clone())),
            None => Ok(Some(TokenRow::new(token))),
        })
    }

    fn put_account(&mut self, account: &Token) -> Result<()> {
        self.change_token(&account.name, |_| Ok(Some(TokenRow::new(account))))
    }

    fn end_sessions(&mut self, account: &TokenName) -> Result<()> {
        self.change_token(account, |found| {
            let row = found.ok_or_else(|| RegistryError::NoToken(account.clone()))?;
            Ok(Some(TokenRow { created_ms: row.created_ms + 1, ..row }))
        })
    }

    fn delete_token(&mut self, name: &TokenName) -> Result<()> {
        self.change_token(name, |found| match found {
            None => Err(RegistryError::NoToken(name.clone())),
            Some(_) => Ok(None),
        })
    }

    fn note(&mut self, entry: &AuditEntry) -> Result<()> {
        self.change(audit::LOG, |tables, _| Ok((audit::note(tables, entry)?, ())))
    }

    fn audit(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<(u64, AuditEntry)>> {
        audit::read(&self.tables, before, limit)
    }

    fn begin_bulk(&mut self, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>> {
        self.change(audit::LOG, |tables, _| bulk::begin(tables, request, who, now_ms))
    }

    fn bulks(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<StoredBulkOperation>> {
        bulk::read(&self.tables, before, limit)
    }

    fn claim_bulk(&mut self, claim: &BulkClaim<'_>) -> Result<Option<StoredBulkOperation>> {
        self.change(audit::LOG, |tables, _| bulk::claim(tables, claim))
    }

    fn save_bulk(&mut self, save: &BulkSave<'_>) -> Result<Option<bool>> {
        self.change(audit::LOG, |tables, _| bulk::save(tables, save))
    }

    fn stop_bulk(&mut self, number: u64) -> Result<bool> {
        self.change(audit::LOG, |tables, _| bulk::stop(tables, number))
    }

    fn carry(&mut self, day: &str, pages: &[PageSums]) -> Result<usize> {
        self.change(statistics::DAYS, |tables, _| statistics::carry(tables, day, pages))
    }

    fn statistics(&mut self, since: &str) -> Result<Statistics> {
        statistics::read(&self.tables, since)
    }
}

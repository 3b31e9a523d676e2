//! Tables that all hosts share, beside the jobs. The registry is in them. The tables are hashes on the first shard of
//! one node, and are not moved with jobs.
//!
//! docs/internals/REGISTRY.md has the rules by which all hosts find the same node, and says what is true after a crash
//! between any two steps of a move.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;

use super::answer;
use super::node::{Call, Failure};
use super::nodes::{Nodes, Place};
use super::script::Script;
use super::table_change::RedisTableChange;
use crate::{Result, StoreError};
use model::settings;
use model::topic::Durability;

/// The first table. The node that has the tables has this table. No other node has this table.
const FIRST: &str = "registry";

/// The field with the version of a table.
const VERSION: &str = "version";

/// A field of the first table: the name of the node to which the tables are being moved.
const MOVES_TO: &str = "moves_to";

/// A key on the nodes that do not have the tables: the name of the node that has the tables.
const HINT: &str = "tables_on";

/// The maximum number of fields that one command writes or reads.
const FIELDS: usize = 1000;

/// A handle to the shared tables.
pub struct RedisTables {
    nodes: Arc<Nodes>,
    place: Place,
    durability: Durability,
}

/// What a node reports about the tables.
struct TablesReport {
    /// Whether the first table is on this node.
    is_here: bool,
    /// The node to which the tables are being moved.
    moves_to: Option<String>,
    /// The node that has the tables, according to this node.
    hint: Option<String>,
}

impl RedisTables {
    /// The first table.
    pub const FIRST: &str = FIRST;

    /// Finds the tables. None: no node has the tables, and no node knows of a node that had them.
    pub fn find(settings: &settings::RedisSettings) -> Result<Option<RedisTables>> {
        let nodes = Nodes::from_settings(settings)?;
        let reports = reports(&nodes);
        let here = |is_moving: bool| {
            let is_it = move |report: &TablesReport| report.is_here && report.moves_to.is_some() == is_moving;
            let found =
                reports.iter().enumerate().filter(move |(_, report)| report.as_ref().is_ok_and(is_it));
            found.map(|(node, _)| node).collect::<Vec<usize>>()
        };
        let silent = reports.iter().find_map(|report| report.as_ref().err());
        let (usable, leaving) = (here(false), here(true));
        let node = match (usable.as_slice(), leaving.first(), silent) {
            ([node], _, _) => *node,
            ([], _, Some(e)) => return Err(e.clone()),
            ([], Some(node), None) => *node,
            ([], None, None) => match reports.iter().flatten().find_map(|report| report.hint.as_ref()) {
                Some(hint) => return Err(StoreError::Unavailable(lost(&nodes, hint))),
                None => return Ok(None),
            },
            (more, _, _) => {
                let key = |node: &usize| format!("{}{FIRST}", nodes.nodes[*node].bases[0]);
                return Err(StoreError::Unavailable(format!(
                    "more than one node has a registry: remove the wrong key of {}",
                    more.iter().map(key).collect::<Vec<_>>().join(", ")
                )));
            }
        };
        let tables = RedisTables::at(&nodes, node);
        tables.tell_the_others(&reports);
        Ok(Some(tables))
    }

    /// Makes the tables on the node `on`. Without `on`, makes them on a home of jobs: the home with the first name in
    /// alphabetical order. All nodes must answer, and none may have tables. The first table gets `changes` in the same
    /// step. Also returns whether this process made the tables. If not, another process was faster and has made them.
    pub fn create(
        settings: &settings::RedisSettings,
        on: Option<&str>,
        version: u64,
        changes: &[RedisTableChange],
    ) -> Result<(RedisTables, bool)> {
        let nodes = Nodes::from_settings(settings)?;
        nodes.is_fit()?;
        let there = reports(&nodes).into_iter().collect::<Result<Vec<_>>>()?;
        if let Some(node) = there.iter().position(|report| report.is_here) {
            return Ok((RedisTables::at(&nodes, node), false));
        }
        let name = match on {
            Some(name) => name.to_owned(),
            None => {
                let homes = nodes.homes()?;
                homes.set.homes().iter().min().cloned().ok_or_else(|| answer::unexpected("a set of nodes"))?
            }
        };
        let tables = RedisTables::at(&nodes, position(&nodes, &name)?);
        let is_made = tables.write_next(FIRST, None, Some(version), changes)?;
        tables.tell_the_others(&reports(&nodes));
        Ok((tables, is_made))
    }

    fn at(nodes: &Arc<Nodes>, node: usize) -> RedisTables {
        let durability = nodes.levels().store();
        RedisTables { nodes: Arc::clone(nodes), place: Place { node, shard: 0 }, durability }
    }

    /// Returns the name of the node that has the tables.
    pub fn node(&self) -> &str {
        &self.nodes.names[self.place.node]
    }

    /// Returns the version of a table. None: the table is not there.
    pub fn version(&self, table: &str) -> Result<Option<u64>> {
        let version = self.fields(table, &[VERSION.to_owned()])?.pop().flatten();
        version.map(|text| text.parse().map_err(|_| answer::unexpected("a version"))).transpose()
    }

    /// Returns fields of a table.
    pub fn fields(&self, table: &str, fields: &[String]) -> Result<Vec<Option<String>>> {
        let calls: Vec<Call> = fields
            .chunks(FIELDS)
            .map(|some| {
                let mut call = self.plain("HMGET", table);
                call.cmd.arg(some);
                call
            })
            .collect();
        let mut all = Vec::with_capacity(fields.len());
        for answer in self.run(&calls) {
            for value in answer::array(answer?)? {
                all.push((value != Value::Nil).then(|| answer::text(value)).transpose()?);
            }
        }
        Ok(all)
    }

    /// Returns the version and all other fields of a table, as they were at one moment. None: the table is not there.
    pub fn table(&self, table: &str) -> Result<Option<(u64, BTreeMap<String, String>)>> {
        let mut fields = self.every_field(table)?;
        let Some(version) = fields.remove(VERSION) else { return Ok(None) };
        let version = version.parse().map_err(|_| answer::unexpected("a version"))?;
        fields.remove(MOVES_TO);
        Ok(Some((version, fields)))
    }

    /// Returns all fields of a table that has no version.
    pub fn every_field(&self, table: &str) -> Result<BTreeMap<String, String>> {
        let answer = self.run(&[self.plain("HGETALL", table)]).pop().unwrap_or(Ok(Value::Nil))?;
        let values = match answer {
            // With the protocol of Redis 6, the answer is a map.
            Value::Map(pairs) => pairs.into_iter().flat_map(|(field, value)| [field, value]).collect(),
            other => answer::array(other)?,
        };
        let mut texts = values.into_iter().map(answer::text);
        let mut fields = BTreeMap::new();
        while let (Some(field), Some(value)) = (texts.next(), texts.next()) {
            fields.insert(field?, value?);
        }
        Ok(fields)
    }

    /// Makes changes if the guarding table still has this version (None: the table is not there), and increases the
    /// version by 1. If the table has another version, changes nothing and returns false.
    pub fn write(&self, guard: &str, version: Option<u64>, changes: &[RedisTableChange]) -> Result<bool> {
        self.write_next(guard, version, Some(version.unwrap_or(0) + 1), changes)
    }

    fn write_next(
        &self,
        guard: &str,
        version: Option<u64>,
        next: Option<u64>,
        changes: &[RedisTableChange],
    ) -> Result<bool> {
        let text = |version: Option<u64>| version.map(|n| n.to_string()).unwrap_or_default();
        let mut call = self.nodes.nodes[self.place.node].call(Script::TablesWrite, self.place.shard, None);
        call.durability = self.durability;
        call.cmd.arg(FIRST).arg(guard).arg(text(version)).arg(text(next));
        for change in changes {
            match change {
                RedisTableChange::Set { table, field, value } => {
                    call.cmd.arg("set").arg(table).arg(field).arg(value)
                }
                RedisTableChange::Remove { table, field } => call.cmd.arg("remove").arg(table).arg(field),
                RedisTableChange::Drop { table } => call.cmd.arg("drop").arg(table),
            };
        }
        match self.run(&[call]).pop().unwrap_or(Ok(Value::Nil))? {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            Value::Int(_) => Err(self.gone()),
            goal => Err(StoreError::Moving(format!(
                "the registry is being moved from node {} to node {goal}: dq registry move {goal} finishes that",
                self.node(),
                goal = answer::text(goal)?
            ))),
        }
    }

    /// Returns the error for tables that are no longer on the node where they were found.
    pub fn gone(&self) -> StoreError {
        StoreError::Unavailable(format!("the registry is not on node {} any more", self.node()))
    }

    /// Moves the tables to another node. `others` finds the names of all tables except the first. It is called when the
    /// tables do not change any more. A run may end after any step. The move may be started again, even while another
    /// run works. Returns the handle to the tables on that node.
    pub fn move_to(
        self,
        name: &str,
        others: impl FnOnce(&RedisTables) -> Result<Vec<String>>,
    ) -> Result<RedisTables> {
        let goal = RedisTables::at(&self.nodes, position(&self.nodes, name)?);
        reports(&self.nodes).into_iter().collect::<Result<Vec<_>>>()?;
        let is_there = goal.place == self.place;
        let version = self.mark((!is_there).then_some(name))?;
        let others = others(&self)?;
        if !is_there {
            for table in &others {
                goal.fill(table, self.every_field(table)?)?;
            }
            let mut first = self.every_field(FIRST)?;
            first.remove(VERSION);
            first.remove(MOVES_TO);
            // The first table is written in one call, so no process sees only a part of it.
            let set = first.into_iter().map(|(field, value)| set(FIRST, field, value));
            goal.write_next(FIRST, None, Some(version), &set.collect::<Vec<_>>())?;
        }
        // The goal has the first table now. An earlier run may have left tables on a third node.
        for node in (0..goal.nodes.count()).filter(|node| *node != goal.place.node) {
            RedisTables::at(&goal.nodes, node).remove(&others)?;
        }
        goal.tell_the_others(&reports(&goal.nodes));
        Ok(goal)
    }

    /// Writes the mark of a move: from now on, changes of the tables are refused. Without a goal, removes the mark:
    /// changes are allowed again. Returns the version of the first table, which does not change.
    fn mark(&self, goal: Option<&str>) -> Result<u64> {
        let (table, field) = (FIRST.to_owned(), MOVES_TO.to_owned());
        let mark = match goal {
            Some(goal) => RedisTableChange::Set { table, field, value: goal.to_owned() },
            None => RedisTableChange::Remove { table, field },
        };
        loop {
            let version = self.version(FIRST)?.ok_or_else(|| self.gone())?;
            if self.write_next(FIRST, Some(version), None, std::slice::from_ref(&mark))? {
                return Ok(version);
            }
        }
    }

    /// Writes a whole table if this node does not have the first table yet. So a slow run does not overwrite the tables
    /// that another run has finished. The table is not removed first: only fields that do not belong there are
    /// removed. So if this run is killed, what another run has written is still there.
    fn fill(&self, table: &str, fields: BTreeMap<String, String>) -> Result<()> {
        let old = self.every_field(table)?.into_keys().filter(|field| !fields.contains_key(field));
        let remove = old.map(|field| RedisTableChange::Remove { table: table.to_owned(), field });
        let mut changes: Vec<RedisTableChange> = remove.collect();
        changes.extend(fields.into_iter().map(|(field, value)| set(table, field, value)));
        while !changes.is_empty() {
            let rest = changes.split_off(changes.len().min(FIELDS));
            if !self.write_next(FIRST, None, None, &changes)? {
                return Ok(());
            }
            changes = rest;
        }
        Ok(())
    }

    /// Removes the other tables, and then the table `FIRST`.
    fn remove(&self, others: &[String]) -> Result<()> {
        let tables = others.iter().map(String::as_str).chain([FIRST]);
        let calls: Vec<Call> = tables.map(|table| self.plain("DEL", table)).collect();
        self.run(&calls).into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Tells the other nodes where the tables are. A node that does not answer learns this the next time that a process
    /// finds the tables.
    fn tell_the_others(&self, reports: &[Result<TablesReport>]) {
        for (node, report) in reports.iter().enumerate().filter(|(node, _)| *node != self.place.node) {
            if report.as_ref().is_ok_and(|report| report.hint.as_deref() != Some(self.node())) {
                let mut call = self.nodes.nodes[node].plain("SET", 0, HINT);
                call.cmd.arg(self.node());
                if let Err(e) = self.nodes.nodes[node].run_one(call) {
                    log::debug!("node {}: {}", self.nodes.names[node], e.into_error());
                }
            }
        }
    }

    fn plain(&self, command: &str, table: &str) -> Call {
        self.nodes.nodes[self.place.node].plain(command, self.place.shard, table)
    }

    fn run(&self, calls: &[Call]) -> Vec<Result<Value>> {
        let answers = self.nodes.nodes[self.place.node].run(calls).into_iter();
        answers.map(|answer| answer.map_err(into_error)).collect()
    }
}

impl std::fmt::Debug for RedisTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisTables").field("node", &self.node()).finish_non_exhaustive()
    }
}

impl Nodes {
    /// Refuses to take a node out of the set while the node has the shared tables.
    pub(super) fn refuse_tables(&self, node: &str) -> Result<()> {
        match report(self, position(self, node)?) {
            Ok(report) if report.is_here => Err(StoreError::Unavailable(format!(
                "node {node} has the registry: dq registry move NODE takes it to another node first"
            ))),
            _ => Ok(()),
        }
    }
}

fn set(table: &str, field: String, value: String) -> RedisTableChange {
    RedisTableChange::Set { table: table.to_owned(), field, value }
}

fn position(nodes: &Nodes, name: &str) -> Result<usize> {
    nodes.names.iter().position(|n| n == name).ok_or_else(|| {
        let known = nodes.names.join(", ");
        StoreError::Unavailable(format!("the configuration names no node {name}; it names {known}"))
    })
}

fn lost(nodes: &Nodes, hint: &str) -> String {
    let why = match nodes.names.iter().any(|name| name == hint) {
        true => "and that node has lost it",
        false => "and the configuration does not name that node",
    };
    format!(
        "the registry is on node {hint}, {why}: bring the node back, or write a new registry from what this host knows (dq registry rebuild)"
    )
}

/// Asks all nodes at the same time.
fn reports(nodes: &Nodes) -> Vec<Result<TablesReport>> {
    std::thread::scope(|scope| {
        let ask = |node| scope.spawn(move || report(nodes, node));
        let asked: Vec<_> = (0..nodes.count()).map(ask).collect();
        let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<TablesReport>>| {
            thread.join().unwrap_or_else(|_| Err(answer::unexpected("a thread that ended")))
        };
        asked.into_iter().map(ended).collect()
    })
}

fn report(nodes: &Nodes, node: usize) -> Result<TablesReport> {
    let node = &nodes.nodes[node];
    let mut table = node.plain("HMGET", 0, FIRST);
    table.cmd.arg(VERSION).arg(MOVES_TO);
    let mut answers = node.run(&[table, node.plain("GET", 0, HINT)]).into_iter();
    let mut next = || answers.next().unwrap_or(Ok(Value::Nil)).map_err(into_error);
    let fields = answer::array(next()?)?.into_iter().map(answer::optional_text);
    let fields: Vec<String> = fields.collect::<Result<_>>()?;
    let hint = answer::optional_text(next()?)?;
    let given = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    Ok(TablesReport {
        is_here: given(fields.first()).is_some(),
        moves_to: given(fields.get(1)),
        hint: given(Some(&hint)),
    })
}

/// Returns the error of a call: [`StoreError::Unknown`] if the call may have been done.
fn into_error(failure: Failure) -> StoreError {
    match failure {
        Failure::Unknown(e @ StoreError::Unknown(_)) => e,
        Failure::Unknown(e) => StoreError::Unknown(e.to_string()),
        other => other.into_error(),
    }
}

//! The part of the settings that the master itself needs: the slots to fill, the sockets that each slot inherits, and
//! time limits. Pure. A master passes its plans to the next image in the hand-over. So a master never needs to
//! understand the settings of another release.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sockets::Socket;
use model::settings::{LogSettings, Settings, StoreSettings};
use model::slot::{Role, Slot};

/// What a master knows of the settings of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The name of this host (`instance`).
    pub instance: String,
    /// The folder of the daemon (`run_dir`).
    pub run_dir: PathBuf,
    /// The folder of the log files; none: the log goes to stderr.
    pub log_dir: Option<PathBuf>,
    /// How the log is written.
    #[serde(default, rename = "log_limits")]
    pub log: LogSettings,
    /// The store as text. A different text means another store, unless only nodes are added or removed.
    pub store: String,
    /// The spool's file; none: there is no spool, or the release that made the plan did not note it.
    #[serde(default)]
    pub spool: Option<PathBuf>,
    /// How long a drain may take on TERM.
    pub drain_timeout: Duration,
    /// How long a child may take to report that it is ready.
    pub start_timeout: Duration,
    /// How long a child may be silent; none: without a limit.
    pub watchdog: Option<Duration>,
    /// Whether a changed configuration file acts like HUP.
    pub watch_config: bool,
    /// How many more consumers there are than the settings say (negative: fewer). At least one consumer stays, so the
    /// number may differ from the number that was asked for. If the plan has no consumers, this is the number that was
    /// asked for.
    pub more_consumers: i32,
    /// The slots to fill, in the order in which they are started.
    pub slots: Vec<Slot>,
    /// The sockets that roles inherit.
    pub sockets: Vec<(Role, Socket)>,
}

fn spool_of(store: &StoreSettings) -> Option<PathBuf> {
    let StoreSettings::Redis(redis) = store else { return None };
    redis.used_spool().map(|spool| spool.path.clone())
}

impl Plan {
    /// Makes the plan for these settings. If `only` is not empty, other roles do not run. `more_consumers` is added to
    /// the number of consumers in the settings (negative: fewer). At least one consumer stays. If the settings say 0,
    /// the plan has no consumer.
    pub fn new(settings: &Settings, only: &[Role], more_consumers: i32) -> Plan {
        let slots = slots(settings, only, more_consumers);
        let runs = |role: Role| slots.iter().any(|slot| slot.role == role);
        let sockets = Role::ALL.into_iter().filter(|role| runs(*role));
        let sockets = sockets.flat_map(|role| sockets_of(role, settings).map(move |s| (role, s))).collect();
        Plan {
            instance: settings.instance.clone(),
            run_dir: settings.run_dir.clone(),
            log_dir: settings.log_dir.clone(),
            log: settings.log,
            store: settings.store.to_string(),
            spool: spool_of(&settings.store),
            drain_timeout: settings.drain_timeout,
            start_timeout: settings.start_timeout,
            watchdog: settings.watchdog,
            watch_config: settings.watch_config,
            more_consumers: match slots.iter().filter(|s| s.role == Role::Consume).count() {
                0 => more_consumers,
                n => n as i32 - settings.consume.processes as i32,
            },
            slots,
            sockets,
        }
    }

    /// Returns the sockets that a role inherits.
    pub fn sockets_of(&self, role: Role) -> impl Iterator<Item = &Socket> {
        self.sockets.iter().filter(move |(of, _)| *of == role).map(|(_, socket)| socket)
    }

    /// Adds one consumer, or removes the last one. Returns its slot; none: nothing was changed, because there is no
    /// consumer or only one is left.
    pub fn change_consumers(&mut self, more: bool) -> Option<Slot> {
        let of = |slot: &Slot| slot.role == Role::Consume;
        let last = self.slots.iter().rposition(of)?;
        if more {
            let slot = Slot { index: self.slots[last].index + 1, ..self.slots[last] };
            self.slots.insert(last + 1, slot);
            return Some(slot);
        }
        (self.slots.iter().filter(|s| of(s)).count() > 1).then(|| self.slots.remove(last))
    }
}

fn sockets_of(role: Role, settings: &Settings) -> impl Iterator<Item = Socket> {
    let sockets = match role {
        Role::Server => [settings.server.listen.map(Socket::Server), None, None, None],
        Role::HttpServer => {
            let unix = Socket::HttpUnix(settings.run_dir.join("http.sock"));
            [
                settings.http.listen.map(Socket::Http),
                Some(unix),
                settings.gmq.listen.map(Socket::Gmq),
                settings.beanstalk.listen.map(Socket::Beanstalk),
            ]
        }
        Role::Timer | Role::Consume | Role::RedisChecker => [None, None, None, None],
    };
    sockets.into_iter().flatten()
}

fn slots(settings: &Settings, only: &[Role], more_consumers: i32) -> Vec<Slot> {
    let count = |role| match role {
        Role::Server => u32::from(settings.server.listen.is_some()),
        Role::HttpServer => u32::from(settings.http.listen.is_some()),
        Role::Timer => settings.timer.processes,
        Role::Consume if settings.consume.processes == 0 => 0,
        Role::Consume => settings.consume.processes.saturating_add_signed(more_consumers).max(1),
        Role::RedisChecker => 1,
    };
    let wanted = |role: &Role| only.is_empty() || only.contains(role);
    Role::ALL
        .into_iter()
        .filter(wanted)
        .flat_map(|role| (0..count(role)).map(move |index| Slot { role, index }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &[(&str, &str)], only: &[Role], more: i32) -> Plan {
        let environment = text.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let settings = config::development(std::path::Path::new("/tmp"), environment).unwrap();
        Plan::new(&settings, only, more)
    }

    fn names(plan: &Plan) -> Vec<String> {
        plan.slots.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_defaults_fill_every_role() {
        let all = [
            "dq-timer-0",
            "dq-timer-1",
            "dq-consume-0",
            "dq-consume-1",
            "dq-server",
            "dq-http-server",
            "dq-redis-checker",
        ];
        let plan = plan(&[], &[], 0);
        assert_eq!(names(&plan), all);
        let sockets = |role| plan.sockets_of(role).map(Socket::name).collect::<Vec<_>>();
        assert_eq!(sockets(Role::Server), ["server"]);
        assert_eq!(sockets(Role::HttpServer), ["http", "http.unix"]);
        assert_eq!(sockets(Role::Timer), [""; 0]);
    }

    #[test]
    fn consumers_come_and_go_but_one_stays() {
        let consumers = |more| plan(&[], &[Role::Consume], more).slots.len();
        assert_eq!([-9, -1, 0, 3].map(consumers), [1, 1, 2, 5]);
        assert_eq!(plan(&[], &[], -9).more_consumers, -1, "what cannot be is not owed");
        let mut plan = plan(&[("DQ_CONSUME__PROCESSES", "2")], &[], 0);
        let before = plan.clone();
        let name = |slot: Option<Slot>| slot.map(|s| s.to_string()).unwrap_or_default();
        assert_eq!(name(plan.change_consumers(true)), "dq-consume-2");
        assert_eq!(names(&plan)[4], "dq-consume-2");
        assert_eq!(name(plan.change_consumers(false)), "dq-consume-2");
        assert_eq!(plan, before);
        assert_eq!(name(plan.change_consumers(false)), "dq-consume-1");
        assert_eq!(name(plan.change_consumers(false)), "");
    }

    #[test]
    fn a_count_of_0_an_empty_listen_and_only_switch_roles_off() {
        let off = [("DQ_CONSUME__PROCESSES", "0"), ("DQ_SERVER__LISTEN", ""), ("DQ_TIMER__PROCESSES", "1")];
        let mut without = plan(&off, &[], 0);
        assert_eq!(names(&without), ["dq-timer-0", "dq-http-server", "dq-redis-checker"]);
        assert_eq!([true, false].map(|more| without.change_consumers(more)), [None, None]);
        let only = plan(&[], &[Role::Server], 0);
        assert_eq!(names(&only), ["dq-server"]);
        assert_eq!(only.sockets.len(), 1, "nothing is bound for roles that do not run");
    }
}

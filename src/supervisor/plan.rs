//! From the settings to the slots that are to be filled, and what each of them is handed down. Pure.

use crate::settings::Settings;
use crate::slot::{Role, Slot};

/// A socket that the master binds for children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Socket {
    /// The TCP port.
    Server,
    /// The HTTP port.
    Http,
    /// The HTTP API's Unix socket.
    HttpUnix,
}

impl Socket {
    /// The name under which a child finds it.
    pub fn name(self) -> &'static str {
        match self {
            Socket::Server => "server",
            Socket::Http => "http",
            Socket::HttpUnix => "http.unix",
        }
    }
}

/// The sockets that a role is handed down.
pub fn sockets(role: Role) -> &'static [Socket] {
    match role {
        Role::Server => &[Socket::Server],
        Role::HttpServer => &[Socket::Http, Socket::HttpUnix],
        Role::Timer | Role::Consume | Role::RedisChecker => &[],
    }
}

/// The slots to fill, in the order in which they are started; `only` some roles, unless it is empty.
pub fn slots(settings: &Settings, only: &[Role]) -> Vec<Slot> {
    let count = |role| match role {
        Role::Server => u32::from(settings.server.listen.is_some()),
        Role::HttpServer => u32::from(settings.http.listen.is_some()),
        Role::Timer => settings.timer.processes,
        Role::Consume => settings.consume.processes,
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

    fn names(text: &[(&str, &str)], only: &[Role]) -> Vec<String> {
        let environment = text.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let settings = crate::config::development(std::path::Path::new("/tmp"), environment).unwrap();
        slots(&settings, only).iter().map(ToString::to_string).collect()
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
        assert_eq!(names(&[], &[]), all);
    }

    #[test]
    fn a_count_of_0_an_empty_listen_and_only_switch_roles_off() {
        let off = [("DQ_CONSUME__PROCESSES", "0"), ("DQ_SERVER__LISTEN", ""), ("DQ_TIMER__PROCESSES", "1")];
        assert_eq!(names(&off, &[]), ["dq-timer-0", "dq-http-server", "dq-redis-checker"]);
        assert_eq!(names(&[], &[Role::Server]), ["dq-server"]);
    }
}

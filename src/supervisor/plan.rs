//! From the settings to the slots that are to be filled, and what each of them is handed down. Pure.

use super::sockets::Socket;
use crate::settings::Settings;
use crate::slot::{Role, Slot};

/// The sockets that a role is handed down.
pub fn sockets(role: Role, settings: &Settings) -> Vec<Socket> {
    match role {
        Role::Server => settings.server.listen.map(Socket::Server).into_iter().collect(),
        Role::HttpServer => {
            let unix = Socket::HttpUnix(settings.run_dir.join("http.sock"));
            settings.http.listen.map(Socket::Http).into_iter().chain([unix]).collect()
        }
        Role::Timer | Role::Consume | Role::RedisChecker => Vec::new(),
    }
}

/// The slots to fill, in the order in which they are started; `only` some roles, unless it is empty. `more_consumers`
/// than the settings say (or fewer), but one at least, unless they say none.
pub fn slots(settings: &Settings, only: &[Role], more_consumers: i32) -> Vec<Slot> {
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

    fn names(text: &[(&str, &str)], only: &[Role]) -> Vec<String> {
        let environment = text.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let settings = crate::config::development(std::path::Path::new("/tmp"), environment).unwrap();
        slots(&settings, only, 0).iter().map(ToString::to_string).collect()
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
    fn consumers_come_and_go_but_one_stays() {
        let settings = crate::config::development(std::path::Path::new("/tmp"), std::iter::empty()).unwrap();
        let consumers = |more| slots(&settings, &[Role::Consume], more).len();
        assert_eq!([-9, -1, 0, 3].map(consumers), [1, 1, 2, 5]);
    }

    #[test]
    fn a_count_of_0_an_empty_listen_and_only_switch_roles_off() {
        let off = [("DQ_CONSUME__PROCESSES", "0"), ("DQ_SERVER__LISTEN", ""), ("DQ_TIMER__PROCESSES", "1")];
        assert_eq!(names(&off, &[]), ["dq-timer-0", "dq-http-server", "dq-redis-checker"]);
        assert_eq!(names(&[], &[Role::Server]), ["dq-server"]);
    }
}

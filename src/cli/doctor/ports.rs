//! Checks which processes use the ports of the configuration.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::judge::{self, CheckResult, PortUse};
use model::settings::Settings;
use model::status::DaemonStatus;

/// Checks the ports of the configuration.
pub(super) fn check(settings: &Settings, status: Option<&DaemonStatus>) -> Vec<CheckResult> {
    let all = [
        ("server", settings.server.listen),
        ("http", settings.http.listen),
        ("gmq", settings.gmq.listen),
        ("beanstalk", settings.beanstalk.listen),
    ];
    let line = |(name, address): (&str, Option<SocketAddr>)| {
        let address = address?;
        let ours = status.is_some_and(|status| {
            status.listening.iter().any(|(n, at)| n == name && at.parse() == Ok(address))
        });
        let port = if ours { PortUse::Ours } else { holder(address) };
        Some(judge::port(&format!("{name}.listen"), &address.to_string(), &port, status.is_some()))
    };
    all.into_iter().filter_map(line).collect()
}

/// Returns which process listens on an address.
fn holder(address: SocketAddr) -> PortUse {
    match TcpListener::bind(address) {
        Ok(_) => PortUse::Free,
        Err(e) if e.kind() == ErrorKind::AddrInUse => PortUse::Taken(owner(address.port())),
        Err(e) => PortUse::Unusable(e.to_string()),
    }
}

/// Returns the process that listens on a port, if this user may see it.
fn owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|t| listening(&t, port))
        .collect();
    let sockets: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name().into_string().unwrap_or_default();
        let is_pid = !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
        let Some(open) = is_pid.then(|| fs::read_dir(process.path().join("fd")).ok()).flatten() else {
            continue;
        };
        let holds = |fd: fs::DirEntry| {
            fs::read_link(fd.path())
                .is_ok_and(|to| sockets.iter().any(|socket| to.as_os_str() == socket.as_str()))
        };
        if open.flatten().any(holds) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", name.trim()));
        }
    }
    None
}

/// Returns the inodes of the sockets that listen on a port, from a table of /proc/net.
fn listening(table: &str, port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // These fields are the local address, the state (0A: it listens) and the inode.
        let listens = fields.get(1)?.ends_with(&port) && *fields.get(3)? == "0A";
        listens.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_or_its_holder_is_named() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let PortUse::Taken(Some(who)) = holder(address) else { panic!("it is taken, and by whom is seen") };
        assert!(who.contains(&format!("pid {}", std::process::id())), "{who}");
        drop(listener);
        assert_eq!(holder(address), PortUse::Free);
        assert!(matches!(holder("192.0.2.1:1".parse().unwrap()), PortUse::Unusable(_)));
    }
}

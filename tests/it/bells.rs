//! Somebody removes the bells: the sockets that wake the processes.

use std::path::PathBuf;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, takes, topic};

fn daemon(sink: &Sink) -> (Daemon, PathBuf) {
    let store = "[store]\nbackend = \"embedded\"\n";
    let daemon = Daemon::start(&(store.to_owned() + &topic("t", sink, "")));
    daemon.wait_all_up(SLOTS);
    assert!(takes(&daemon, "t", "before"));
    sink.wait_for(1, 5 * SECOND);
    let bells = daemon.dir.path().join("var/run/bells");
    assert!(bells.is_dir());
    (daemon, bells)
}

/// Checks that jobs that are due at once, and jobs that a timer must promote, still come.
fn comes(daemon: &Daemon, sink: &Sink, what: &str) {
    for (id, delay_ms) in [(format!("{what}-at-once"), 0), (format!("{what}-later"), 300)] {
        assert_eq!(daemon.client().ask(&add("t", &id, delay_ms)).unwrap()["code"], 1);
        eventually(3 * SECOND, &format!("{id}; log:\n{}", daemon.log()), || {
            sink.deliveries().contains_key(&id).then_some(())
        });
    }
}

#[test]
fn a_folder_of_bells_that_is_swept_away_is_made_again() {
    let sink = Sink::start();
    let (daemon, bells) = daemon(&sink);
    // (The removal fails if a process creates a bell in the folder at the same time.)
    let _ = std::fs::remove_dir_all(&bells);
    comes(&daemon, &sink, "removed");
    std::fs::rename(&bells, bells.with_extension("old")).unwrap();
    comes(&daemon, &sink, "renamed");
    // In one step, a file takes the place of the folder.
    let in_the_way = bells.with_extension("file");
    std::fs::write(&in_the_way, "").unwrap();
    renameat2(AT_FDCWD, &in_the_way, AT_FDCWD, &bells, RenameFlags::RENAME_EXCHANGE).unwrap();
    eventually(3 * SECOND, "a word in the log", || daemon.log().contains("cannot hang").then_some(()));
    std::fs::remove_file(&bells).unwrap();
    comes(&daemon, &sink, "in-the-way");
}

#[test]
fn a_bell_that_is_removed_or_replaced_is_hung_again() {
    let sink = Sink::start();
    let (daemon, bells) = daemon(&sink);
    let names = || std::fs::read_dir(&bells).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = names().collect();
    assert!(all.len() > 2, "consumers and a timer: {all:?}");
    all.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    comes(&daemon, &sink, "removed");
    for path in &all {
        let other = bells.join("other");
        std::fs::write(&other, "").unwrap();
        std::fs::rename(&other, path).unwrap();
    }
    comes(&daemon, &sink, "replaced");
}

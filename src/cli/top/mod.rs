//! `dq top`: shows the state of the daemon, once a second. A separate thread asks the daemon, so that keys work at once
//! even if the daemon is slow.

mod board;
mod screen;

use std::io::IsTerminal as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use self::board::{Board, Sort};
use super::daemon_snapshot::DaemonSnapshot;
use super::failure::Failure;
use super::target::{DaemonEndpoint, TargetOptions};
use host::{Signals, now_ms};

/// The pause between two requests to the daemon.
const REFRESH: Duration = Duration::from_secs(1);

/// The longest time until the program notices a signal that ends it.
const TICK: Duration = Duration::from_millis(100);

/// Watch the daemon: topics with their counts and rates, processes, nodes, and what is wrong, once a second
///
/// Keys: q quits. n, d, r, l, x, a, o, t sort the topics by name, delayed, ready, leased, dead, adds, deliveries,
/// lateness. The arrow keys scroll. Needs a terminal; scripts can use `dq status --json`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq top\n  dq top --url https://queue.example --token-file ~/dq.token")]
pub(super) struct TopArguments {
    #[command(flatten)]
    at: TargetOptions,
}

/// Runs until the user quits or a signal comes.
pub(super) fn run(arguments: &TopArguments) -> Result<()> {
    if arguments.at.json || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let message = "dq top needs a terminal; `dq status --json` tells a script the same";
        return Err(Failure::Usage(message.to_owned()).into());
    }
    let target = arguments.at.target()?;
    // If the daemon does not answer at the beginning, the command line is probably wrong, so the command fails. Later,
    // the screen shows that the daemon does not answer.
    let first = DaemonSnapshot::take(&target)?;
    let mut signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT])?;
    let mut board = Board::new(target.address.to_string());
    board.take(Ok(first), Instant::now());
    let pictures = watch(target)?;
    // ratatui restores the terminal on a panic as well.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let mut show = || -> Result<()> {
        loop {
            for (snapshot, at) in pictures.try_iter() {
                board.take(snapshot, at);
            }
            terminal.draw(|frame| screen::draw(frame, &mut board, now_ms())).context("cannot draw")?;
            if event::poll(TICK).context("cannot read the keys")? {
                // All keys that wait are handled before the next drawing, because keys may come faster than the screen
                // is drawn.
                while event::poll(Duration::ZERO).context("cannot read the keys")? {
                    let event = event::read().context("cannot read the keys")?;
                    if handle_key(&mut board, &event) {
                        return Ok(());
                    }
                }
            }
            if !signals.take()?.is_empty() {
                return Ok(());
            }
        }
    };
    let shown = show();
    let restored = ratatui::try_restore().context("cannot restore the terminal");
    shown.and(restored)
}

/// Starts a thread that reads the state of the daemon again and again, until the returned receiver is dropped.
fn watch(target: DaemonEndpoint) -> Result<Receiver<(Result<DaemonSnapshot>, Instant)>> {
    let (tell, events) = channel();
    let work = move || {
        loop {
            let begun = Instant::now();
            std::thread::sleep(REFRESH);
            let snapshot = DaemonSnapshot::take(&target);
            if tell.send((snapshot, Instant::now())).is_err() {
                return;
            }
            log::trace!("a picture took {:?}", begun.elapsed());
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(work).context("cannot start a thread")?;
    Ok(events)
}

/// Handles a key. Returns whether the key ends the program.
fn handle_key(board: &mut Board, event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char(letter) => {
            if let Some(sort) = Sort::from_key(letter) {
                board.sort_by(sort);
            }
        }
        KeyCode::Up => board.scroll(-1),
        KeyCode::Down => board.scroll(1),
        KeyCode::PageUp => board.scroll(-10),
        KeyCode::PageDown => board.scroll(10),
        KeyCode::Home => board.scroll(isize::MIN),
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_and_control_c_end_it_and_other_keys_do_not() {
        let mut board = Board::new(String::new());
        let mut key = |code, modifiers| handle_key(&mut board, &Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Char('d'), KeyModifiers::NONE) && !key(KeyCode::Up, KeyModifiers::NONE));
        assert_eq!(board.sort, Sort::Delayed);
    }
}

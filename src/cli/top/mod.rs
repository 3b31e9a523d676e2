//! `dq top`: the daemon as it is now, once a second. A thread asks, so that keys are heard at once whatever the daemon does.

mod board;
mod screen;

use std::io::IsTerminal as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use self::board::{Board, Sort};
use super::failure::Failure;
use super::picture::Picture;
use super::target::{Target, Where};
use crate::process::{Signals, now_ms};

/// How often the daemon is asked.
const REFRESH: Duration = Duration::from_secs(1);

/// How soon an end that is asked for by a signal is heard.
const TICK: Duration = Duration::from_millis(100);

/// Watch the daemon: topics with their counts and rates, processes, nodes, and what is wrong, once a second
///
/// Keys: q ends it; n, d, r, l, x, a, o, t sort the topics by name, delayed, ready, leased, dead, adds, deliveries, lateness; the arrows
/// scroll. Needs a terminal; for scripts there is `dq status --json`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq top\n  dq top --url https://queue.example --token-file ~/dq.token")]
pub(super) struct Arguments {
    #[command(flatten)]
    at: Where,
}

/// Runs until q.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.at.json || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let told = "dq top needs a terminal; `dq status --json` tells a script the same";
        return Err(Failure::Usage(told.to_owned()).into());
    }
    let target = arguments.at.target()?;
    // Who is not there at the beginning is a mistake in the command; later, it is something to watch.
    let first = Picture::of(&target)?;
    let mut signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT])?;
    let mut board = Board::new(target.door.to_string());
    board.take(Ok(first), Instant::now());
    let pictures = watch(target)?;
    // It gives the terminal back on a panic as well.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let mut show = || -> Result<()> {
        loop {
            for (picture, at) in pictures.try_iter() {
                board.take(picture, at);
            }
            terminal.draw(|frame| screen::draw(frame, &mut board, now_ms())).context("cannot draw")?;
            if event::poll(TICK).context("cannot hear the keys")? {
                // What is typed faster than it can be drawn is heard before the next drawing.
                while event::poll(Duration::ZERO).context("cannot hear the keys")? {
                    let event = event::read().context("cannot hear the keys")?;
                    if heed(&mut board, &event) {
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
    let restored = ratatui::try_restore().context("cannot give the terminal back");
    shown.and(restored)
}

/// Asks the daemon again and again, for as long as somebody listens.
fn watch(target: Target) -> Result<Receiver<(Result<Picture>, Instant)>> {
    let (tell, told) = channel();
    let work = move || {
        loop {
            let begun = Instant::now();
            std::thread::sleep(REFRESH);
            let picture = Picture::of(&target);
            if tell.send((picture, Instant::now())).is_err() {
                return;
            }
            log::trace!("a picture took {:?}", begun.elapsed());
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(work).context("cannot start a thread")?;
    Ok(told)
}

/// Does what a key says. Tells whether that is the end.
fn heed(board: &mut Board, event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char(letter) => {
            if let Some(sort) = Sort::of(letter) {
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
        let mut key = |code, modifiers| heed(&mut board, &Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Char('d'), KeyModifiers::NONE) && !key(KeyCode::Up, KeyModifiers::NONE));
        assert_eq!(board.sort, Sort::Delayed);
    }
}

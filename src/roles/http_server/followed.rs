//! The topics and tokens as they are now, for all handlers.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::role::LiveTopics;
use crate::token::Tokens;
use crate::topic::Topics;

/// The topics and tokens, as this process follows them.
pub(super) struct Followed {
    live: LiveTopics,
    told: watch::Sender<Topics>,
    tokens: watch::Sender<Tokens>,
    /// None: they never change, or nobody has waited yet.
    changes: Option<AsyncFd<OwnedFd>>,
}

impl Followed {
    pub(super) fn new(live: LiveTopics) -> Followed {
        let told = watch::Sender::new(live.now().clone());
        let tokens = watch::Sender::new(live.tokens().clone());
        Followed { live, told, tokens, changes: None }
    }

    /// Where handlers look.
    pub(super) fn now(&self) -> watch::Receiver<Topics> {
        self.told.subscribe()
    }

    /// Where those look who let others in.
    pub(super) fn tokens(&self) -> watch::Receiver<Tokens> {
        self.tokens.subscribe()
    }

    /// Begins to watch. Needs tokio.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if let Some(fd) = self.live.fd() {
            self.changes = Some(watched(fd.try_clone_to_owned()?)?);
        }
        Ok(())
    }

    /// Waits until they may have changed, and looks. Where they never do, for ever. It can be dropped while it waits.
    pub(super) async fn follow(&mut self) -> io::Result<()> {
        let Some(changes) = &self.changes else { return std::future::pending().await };
        let mut readable = changes.readable().await?;
        if let Some(topics) = self.live.look() {
            let _ = self.told.send_replace(topics.clone());
        }
        let tokens = self.live.tokens();
        self.tokens.send_if_modified(|known| {
            let changed = known != tokens;
            known.clone_from(tokens);
            changed
        });
        readable.clear_ready();
        Ok(())
    }
}

/// A descriptor that tokio watches.
pub(super) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays what it is until it is dropped, with its registration.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

//! The topics and tokens as they are now, for all handlers.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use model::token::Tokens;
use model::topic::Topics;
use role::RegistryView;

/// The topics and tokens of this process. [`TopicsWatch::follow`] updates them when they change.
pub(super) struct TopicsWatch {
    live: RegistryView,
    sender: watch::Sender<Topics>,
    tokens: watch::Sender<Tokens>,
    /// The descriptor that reports changes. None: the topics never change, or `watch` was not called.
    changes: Option<AsyncFd<OwnedFd>>,
}

impl TopicsWatch {
    pub(super) fn new(live: RegistryView) -> TopicsWatch {
        let sender = watch::Sender::new(live.now().clone());
        let tokens = watch::Sender::new(live.tokens().clone());
        TopicsWatch { live, sender, tokens, changes: None }
    }

    /// Returns the current topics, for handlers.
    pub(super) fn now(&self) -> watch::Receiver<Topics> {
        self.sender.subscribe()
    }

    /// Returns the current tokens, for access control.
    pub(super) fn tokens(&self) -> watch::Receiver<Tokens> {
        self.tokens.subscribe()
    }

    /// Begins to watch for changes. The function must be called in a tokio runtime.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if let Some(fd) = self.live.fd() {
            self.changes = Some(watched(fd.try_clone_to_owned()?)?);
        }
        Ok(())
    }

    /// Waits until there may be changes, and publishes them. If changes are impossible, waits forever. The future may
    /// be dropped while it waits.
    pub(super) async fn follow(&mut self) -> io::Result<()> {
        let Some(changes) = &self.changes else { return std::future::pending().await };
        let mut readable = changes.readable().await?;
        if let Some(topics) = self.live.reload() {
            let _ = self.sender.send_replace(topics.clone());
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

/// Lets tokio watch a descriptor.
pub(super) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor. The descriptor stays open and unchanged until the `AsyncFd` drops it
    // together with its registration.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

//! Checks that no job is still to be made from the outbox of a store.

use anyhow::{Result, bail};

use store::Store;

/// Warns of what [`check_outbox`] would refuse. For a dry run.
pub(super) fn warn_of_outbox(store: &mut dyn Store, name: &str) {
    if let Err(e) = check_outbox(store, name) {
        eprintln!("without --dry-run, this would be refused now: {e:#}");
    }
}

/// Fails if the outbox has entries. Only timers make jobs from these entries, and no timer runs while the command does.
pub(super) fn check_outbox(store: &mut dyn Store, name: &str) -> Result<()> {
    let entries = store.outbox()?.entries;
    if entries > 0 {
        bail!(
            "the outbox of {name} still has {entries} entries: jobs or events that follow ended jobs and are not added yet. Start dq, \
             and stop it with TERM (systemctl stop dq): it adds them before it ends, if all nodes answer"
        );
    }
    Ok(())
}

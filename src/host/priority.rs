//! How much a thread counts when the processor is short.

/// How much less a thread counts than others, in steps of `nice`. With ten steps, it gets about a tenth of what another
/// thread gets while both have work, and all of the processor while no other has.
const STEPS: i32 = 10;

/// Has all other threads of the machine go first, for the rest of this thread. On Linux, each thread has a priority of its
/// own.
pub fn let_others_first() {
    if let Err(e) = rustix::process::setpriority_process(None, STEPS) {
        log::debug!("cannot lower the priority of a thread: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_asks_counts_less() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        let other = std::thread::spawn(move || {
            let_others_first();
            own()
        });
        assert_eq!((other.join().unwrap(), own()), (STEPS.max(before), before));
    }
}

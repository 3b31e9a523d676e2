//! A limited resource, such as memory for bodies. No holder can take more than its share, except with `take_beyond`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::access::{Caller, Peer};
use model::failure_limiter::ClientSource;
use role::lock;

/// Who has a share of a pool. The holder is an extension of each request that access control has accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PoolHolder {
    /// A caller that has proved who it is.
    Caller(Caller),
    /// All callers from one source that have not proved who they are.
    Source(ClientSource),
}

impl PoolHolder {
    /// Returns the holder for a caller that connects from `peer`. None: the caller's share is not limited.
    pub(super) fn new(caller: &Caller, peer: Peer) -> Option<PoolHolder> {
        match caller {
            Caller::Local(_) => None,
            Caller::Anybody => Some(PoolHolder::Source(peer.source())),
            Caller::Token(_) | Caller::Account(_) => Some(PoolHolder::Caller(caller.clone())),
        }
    }
}

/// A limited amount, and how much of the amount each holder has. The value is cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ResourcePool {
    most: usize,
    share: usize,
    held: Arc<Mutex<PoolUsage>>,
}

#[derive(Debug, Default)]
struct PoolUsage {
    all: usize,
    by_holder: HashMap<PoolHolder, usize>,
}

/// A part of a pool. The part goes back to the pool when it is dropped.
#[derive(Debug)]
pub(super) struct PoolAllocation {
    pool: ResourcePool,
    holder: Option<PoolHolder>,
    amount: usize,
}

impl ResourcePool {
    /// Makes a pool in which each holder may have up to `share`.
    pub(super) fn new(most: usize, share: usize) -> ResourcePool {
        ResourcePool { most, share, held: Arc::default() }
    }

    /// Takes `amount` from the pool, if it is free and fits into the share of `holder`. Without a holder, only the
    /// limit of the whole pool applies. Returns none if nothing was taken.
    pub(super) fn take(&self, holder: Option<PoolHolder>, amount: usize) -> Option<PoolAllocation> {
        let mut part = PoolAllocation { pool: self.clone(), holder, amount: 0 };
        part.grow(amount).then_some(part)
    }

    /// Takes `amount` from the pool, even if the amount is not free. Then nothing is free until enough is given back.
    pub(super) fn take_beyond(&self, holder: Option<PoolHolder>, amount: usize) -> PoolAllocation {
        let mut held = lock(&self.held);
        held.all += amount;
        if let Some(holder) = &holder {
            *held.by_holder.entry(holder.clone()).or_default() += amount;
        }
        PoolAllocation { pool: self.clone(), holder, amount }
    }
}

impl PoolAllocation {
    /// Takes `amount` more from the pool. Returns whether the amount was free.
    pub(super) fn grow(&mut self, amount: usize) -> bool {
        let mut held = lock(&self.pool.held);
        if held.all + amount > self.pool.most {
            return false;
        }
        if let Some(holder) = &self.holder {
            let own = held.by_holder.get(holder).copied().unwrap_or(0);
            if own + amount > self.pool.share {
                return false;
            }
            held.by_holder.insert(holder.clone(), own + amount);
        }
        held.all += amount;
        self.amount += amount;
        true
    }
}

impl PoolAllocation {
    /// Gives back everything beyond `amount`.
    pub(super) fn shrink_to(&mut self, amount: usize) {
        self.give_back(self.amount.saturating_sub(amount));
    }

    fn give_back(&mut self, amount: usize) {
        let mut held = lock(&self.pool.held);
        held.all -= amount;
        self.amount -= amount;
        if let Some(holder) = &self.holder
            && let Some(own) = held.by_holder.get_mut(holder)
        {
            *own -= amount;
            if *own == 0 {
                held.by_holder.remove(holder);
            }
        }
    }
}

impl Drop for PoolAllocation {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_holder_takes_more_than_its_share_and_all_is_given_back() {
        let holder = |text: &str| Some(PoolHolder::Source(ClientSource::address(text.parse().unwrap())));
        let pool = ResourcePool::new(10, 6);
        let mut a = pool.take(holder("::"), 4).unwrap();
        assert!(a.grow(2) && !a.grow(1));
        a.shrink_to(1);
        assert!(a.grow(5) && !a.grow(1));
        a.shrink_to(9);
        assert!(!a.grow(1));
        assert!(pool.take(holder("::"), 1).is_none());
        let b = pool.take(holder("10.0.0.1"), 4).unwrap();
        assert!(pool.take(holder("10.0.0.2"), 1).is_none() && pool.take(None, 1).is_none());
        drop(a);
        let rest = pool.take(None, 6).unwrap();
        drop((b, rest));
        let held = lock(&pool.held);
        assert_eq!((held.all, held.by_holder.len()), (0, 0));
    }
}

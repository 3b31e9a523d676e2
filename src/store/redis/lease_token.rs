//! The tokens of leases. A token proves a lease, and names the shard of the lease.

use super::RedisStore;
use super::nodes::{Nodes, Place};
use crate::{Result, StoreError, Token};

/// The length of the part of a lease token that the script knows. The token: this part (20 bytes), the shard (2), the
/// node's name.
pub(super) const SCRIPT_TOKEN: usize = 20;

/// The first bytes of the tokens of a lease call: random, and never used twice.
pub(super) type LeaseCallPrefix = [u8; 16];

impl Nodes {
    /// Returns the shard of a token's lease. None: the token does not belong to these nodes.
    pub(super) fn place_of(&self, token: &Token) -> Option<Place> {
        let parts =
            token.0.split_at_checked(SCRIPT_TOKEN).and_then(|(_, rest)| rest.split_first_chunk::<2>());
        parts.and_then(|(shard, name)| {
            let node = self.nodes.iter().position(|n| n.name.as_bytes() == name)?;
            let shard = usize::from(u16::from_be_bytes(*shard));
            (shard < self.nodes[node].bases.len()).then_some(Place { node, shard })
        })
    }

    /// Returns the node of a token's lease.
    pub fn lane_of_token(&self, token: &Token) -> Option<usize> {
        self.place_of(token).map(|place| place.node)
    }
}

/// Returns random bytes for the tokens of a lease call.
pub(super) fn new_prefix() -> Result<LeaseCallPrefix> {
    let mut prefix = [0; 16];
    getrandom::fill(&mut prefix).map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
    Ok(prefix)
}

impl RedisStore {
    /// Returns the token of a lease.
    pub(super) fn token(&self, place: Place, prefix: &LeaseCallPrefix, number: u32) -> Token {
        let shard = (place.shard as u16).to_be_bytes();
        let name = self.nodes.nodes[place.node].name.as_bytes();
        Token([&prefix[..], &number.to_be_bytes(), &shard, name].concat().into())
    }
}

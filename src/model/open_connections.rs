//! Counts the open connections of a port, so that no source can take all places of the port. Pure.

use std::collections::HashMap;

use crate::failure_limiter::ClientSource;

/// The open connections of a port, by source.
#[derive(Debug)]
pub struct OpenConnections {
    by_source: HashMap<ClientSource, usize>,
    open: usize,
    most: usize,
    most_per_source: usize,
}

/// Why a port has no place for another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionRefusal {
    /// There are no more places. Holds how many connections are open.
    #[error("{0} connections are open (max_connections)")]
    Port(usize),
    /// The source has taken all the places that it may have. Holds the number of these places.
    #[error("it has {0} open connections (max_connections_per_source)")]
    Source(usize),
}

impl OpenConnections {
    /// Makes the count of a port that has `most` places, and `most_per_source` for each source.
    pub fn new(most: usize, most_per_source: usize) -> OpenConnections {
        OpenConnections { by_source: HashMap::new(), open: 0, most, most_per_source }
    }

    /// Checks whether there is a place for a connection from this source. `more`: how many further connections are open
    /// and not counted here yet. These connections count for the port, but not for the source.
    pub fn check(&self, source: ClientSource, more: usize) -> Result<(), ConnectionRefusal> {
        let open = self.open + more;
        let of_source = self.by_source.get(&source).copied().unwrap_or(0);
        match () {
            () if open >= self.most => Err(ConnectionRefusal::Port(open)),
            () if of_source >= self.most_per_source => Err(ConnectionRefusal::Source(of_source)),
            () => Ok(()),
        }
    }

    /// Counts a new connection.
    pub fn opened(&mut self, source: ClientSource) {
        self.open += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    /// Counts a connection that has ended.
    pub fn closed(&mut self, source: ClientSource) {
        self.open = self.open.saturating_sub(1);
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_leaves_places_for_the_others() {
        let source = |text: &str| ClientSource::address(text.parse().unwrap());
        let (a, b) = (source("127.0.0.1"), source("2001:db8::1"));
        let mut open = OpenConnections::new(3, 2);
        for source in [a, a, b] {
            open.check(source, 0).unwrap();
            open.opened(source);
        }
        assert_eq!(open.check(b, 0), Err(ConnectionRefusal::Port(3)));
        open.closed(b);
        assert_eq!(open.check(a, 0), Err(ConnectionRefusal::Source(2)));
        assert_eq!(open.check(source("2001:db8::2"), 1), Err(ConnectionRefusal::Port(3)));
        open.check(source("2001:db8::2"), 0).unwrap();
        open.closed(a);
        open.check(a, 0).unwrap();
        assert_eq!(open.by_source.len(), 1);
    }
}

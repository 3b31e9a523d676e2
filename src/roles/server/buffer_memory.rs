//! Counts the memory that the buffers of connections take: requests that are not complete, and answers that nobody has
//! read. Pure.
//!
//! All buffers together have a limit. If they take more, connections of the client with the most bytes are closed, so
//! that many connections of one client cannot push out the connections of another client.

use std::collections::HashMap;

use model::failure_limiter::ClientSource;

/// The bytes of all buffers, by client.
#[derive(Debug)]
pub(super) struct BufferMemory {
    by_source: HashMap<ClientSource, usize>,
    all: usize,
    most: usize,
}

impl BufferMemory {
    /// `most` is the limit for all clients together, in bytes.
    pub(super) fn new(most: usize) -> BufferMemory {
        BufferMemory { by_source: HashMap::new(), all: 0, most }
    }

    /// Returns the bytes of all clients.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Notes that the buffers of a connection took `before` bytes, and take `now` bytes.
    pub(super) fn changed(&mut self, source: ClientSource, before: usize, now: usize) {
        if before == now {
            return;
        }
        self.all = self.all - before + now;
        let of_source = self.by_source.entry(source).or_default();
        *of_source = *of_source - before + now;
        if *of_source == 0 {
            self.by_source.remove(&source);
        }
    }

    /// Returns the client with the most bytes, if all clients together have more than the limit.
    pub(super) fn client_over_limit(&self) -> Option<ClientSource> {
        let largest = || self.by_source.iter().max_by_key(|(_, bytes)| **bytes).map(|(source, _)| *source);
        (self.all > self.most).then(largest).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_with_the_most_bytes_is_limited_first() {
        let source = |text: &str| ClientSource::address(text.parse().unwrap());
        let (hostile, honest) = (source("10.0.0.1"), source("10.0.0.2"));
        let mut memory = BufferMemory::new(100);
        memory.changed(honest, 0, 40);
        for _ in 0..6 {
            memory.changed(hostile, 0, 10);
        }
        assert_eq!((memory.all(), memory.client_over_limit()), (100, None));
        memory.changed(honest, 40, 50);
        assert_eq!(memory.client_over_limit(), Some(hostile), "although its connections are smaller");
        for _ in 0..6 {
            memory.changed(hostile, 10, 0);
        }
        memory.changed(honest, 50, 50);
        assert_eq!((memory.all(), memory.by_source.len(), memory.client_over_limit()), (50, 1, None));
    }
}

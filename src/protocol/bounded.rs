//! A buffer for the part of a request that has arrived. The memory of the buffer never exceeds its limit, and grows
//! only with the bytes that really arrived. So a client that announces a large body and sends nothing uses no memory.

/// The bytes of a request that have arrived so far.
#[derive(Debug)]
pub(crate) struct RequestBuffer {
    bytes: Vec<u8>,
    limit: usize,
}

impl RequestBuffer {
    /// Makes an empty buffer. It allocates nothing yet.
    pub(crate) fn new(limit: usize) -> RequestBuffer {
        RequestBuffer { bytes: Vec::new(), limit }
    }

    /// Moves bytes from `input` until the buffer has `length` bytes, or `input` is empty. Returns true if the buffer
    /// then has `length` bytes, or is full.
    pub(crate) fn fill(&mut self, input: &mut &[u8], length: usize) -> bool {
        let length = length.min(self.limit);
        let count = length.saturating_sub(self.bytes.len()).min(input.len());
        let (taken, rest) = input.split_at(count);
        let needed = self.bytes.len() + count;
        if needed > self.bytes.capacity() {
            let capacity = needed.max(self.bytes.capacity() * 2).min(self.limit);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(taken);
        *input = rest;
        self.bytes.len() >= length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the buffer, and gives its memory to the caller.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_the_bytes_and_ends_at_the_limit() {
        let mut buffer = RequestBuffer::new(1000);
        let mut input: &[u8] = b"abc";
        assert!(!buffer.fill(&mut input, 1000));
        assert!(input.is_empty() && buffer.capacity() < 10);
        let more = [b'x'; 2000];
        for piece in more.chunks(7) {
            let mut piece = piece;
            buffer.fill(&mut piece, usize::MAX);
            assert!(buffer.capacity() <= 1000);
        }
        assert_eq!(buffer.len(), 1000);
        let mut rest: &[u8] = b"rest";
        assert!(buffer.fill(&mut rest, 2000));
        assert_eq!(rest, b"rest");
    }
}

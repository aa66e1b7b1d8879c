//! Buffer pool of a shard. Buffers are taken to receive or send and returned after use, so steady
//! traffic allocates nothing.

use forebay_base::limits::{
    AHEAD_BYTES_MAX, CHUNKS_AHEAD_MAX, FIRST_READ_BYTES, POOLED_BUFFERS_MAX, READ_BYTES,
    STREAM_READ_BYTES,
};
use std::cell::{Cell, RefCell};

/// A chunk up to this length is copied to a small buffer, so that its read buffer is reusable at
/// once.
const COPIED_BYTES_MAX: usize = FIRST_READ_BYTES;

/// Free buffers of `READ_BYTES` and `STREAM_READ_BYTES` capacity.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    free_small: RefCell<Vec<Vec<u8>>>,
    /// Capacity of the chunks that wait in sockets.
    ahead_bytes: Cell<usize>,
    is_tight: Cell<bool>,
}

impl BufferPool {
    /// An empty buffer with room for a read.
    #[must_use]
    pub fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    /// An empty buffer with room for the events of a stream.
    #[must_use]
    pub fn take_small(&self) -> Vec<u8> {
        let free = self.free_small.borrow_mut().pop();
        free.unwrap_or_else(|| Vec::with_capacity(STREAM_READ_BYTES))
    }

    /// An empty buffer with room for that many bytes.
    #[must_use]
    pub fn take_for(&self, bytes: usize) -> Vec<u8> {
        if bytes <= STREAM_READ_BYTES {
            self.take_small()
        } else if bytes <= READ_BYTES {
            self.take()
        } else {
            Vec::with_capacity(bytes)
        }
    }

    /// Returns a buffer. Odd sizes, and buffers beyond `POOLED_BUFFERS_MAX`, are freed.
    pub fn give(&self, mut buffer: Vec<u8>) {
        let free = match buffer.capacity() {
            READ_BYTES => &self.free,
            STREAM_READ_BYTES => &self.free_small,
            _ => return,
        };
        let mut free = free.borrow_mut();
        if free.len() < POOLED_BUFFERS_MAX {
            buffer.clear();
            free.push(buffer);
        }
    }

    /// Appends a received chunk to `input`. An empty `input` is swapped with the chunk instead.
    pub fn append(&self, input: &mut Vec<u8>, chunk: Vec<u8>) {
        if input.capacity() == 0 || input.is_empty() && input.capacity() <= chunk.capacity() {
            self.give(std::mem::replace(input, chunk));
        } else {
            input.extend_from_slice(&chunk);
            self.give(chunk);
        }
    }

    /// Counts a chunk that begins to wait in a socket.
    pub(crate) fn waits(&self, chunk: &Vec<u8>) {
        self.ahead_bytes.set(self.ahead_bytes.get() + chunk.capacity());
        if self.ahead_bytes.get() > AHEAD_BYTES_MAX {
            self.is_tight.set(true);
        }
    }

    /// Counts a chunk that was taken from a socket.
    pub(crate) fn is_taken(&self, chunk: &Vec<u8>) {
        self.ahead_bytes.set(self.ahead_bytes.get().saturating_sub(chunk.capacity()));
        if self.ahead_bytes.get() < AHEAD_BYTES_MAX / 2 {
            self.is_tight.set(false);
        }
    }

    /// True if too many bytes wait in sockets: then no socket reads before its owner asks for
    /// bytes, or more than a chunk ahead.
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.get()
    }

    /// Most chunks that may wait in a socket.
    pub(crate) fn chunks_ahead_max(&self) -> usize {
        if self.is_tight() { 1 } else { CHUNKS_AHEAD_MAX }
    }

    /// Moves the received bytes out of `read`, which is then empty with room for another read.
    pub(crate) fn chunk_of(&self, read: &mut Vec<u8>) -> Vec<u8> {
        if read.len() > COPIED_BYTES_MAX {
            return std::mem::replace(read, self.take());
        }
        let mut chunk = self.take_small();
        chunk.extend_from_slice(read);
        read.clear();
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_in_order_and_reuses() {
        let pool = BufferPool::default();
        let mut input = Vec::new();
        for part in [&b"ab"[..], b"cd", b"e"] {
            let mut chunk = pool.take();
            chunk.extend_from_slice(part);
            pool.append(&mut input, chunk);
        }
        assert_eq!(input, b"abcde");
        assert_eq!(input.capacity(), READ_BYTES, "the first read's buffer became the input");
        assert_eq!(pool.free.borrow().len(), 1, "the others came back");
    }

    #[test]
    fn a_small_chunk_leaves_the_read_buffer_where_it_is() {
        let pool = BufferPool::default();
        let mut read = pool.take();
        read.extend_from_slice(b"event");
        assert_eq!(pool.chunk_of(&mut read), b"event");
        assert!(read.is_empty() && read.capacity() == READ_BYTES);
        read.resize(COPIED_BYTES_MAX + 1, b'x');
        let start = read.as_ptr();
        let chunk = pool.chunk_of(&mut read);
        assert_eq!((chunk.len(), chunk.as_ptr()), (COPIED_BYTES_MAX + 1, start), "not copied");
        assert!(read.is_empty() && read.capacity() == READ_BYTES);
    }
}

//! Read buffers of one shard. Taken when a read starts, given back when its bytes are used up, so that steady
//! traffic allocates nothing.

use crate::base::limits::{POOLED_BUFFERS_MAX, READ_BYTES, STREAM_READ_BYTES};
use std::cell::RefCell;

/// Free buffers of `READ_BYTES` and of `STREAM_READ_BYTES` capacity.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    free_small: RefCell<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// An empty buffer with room for one read.
    #[must_use]
    pub fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    /// The same, with room for the events of a stream.
    #[must_use]
    pub fn take_small(&self) -> Vec<u8> {
        let free = self.free_small.borrow_mut().pop();
        free.unwrap_or_else(|| Vec::with_capacity(STREAM_READ_BYTES))
    }

    /// Takes a buffer back. Odd sizes, and more than `POOLED_BUFFERS_MAX`, are freed.
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

    /// Appends what a read brought to `input`. An empty `input` trades places with the read's buffer instead.
    pub fn append(&self, input: &mut Vec<u8>, chunk: Vec<u8>) {
        if input.is_empty() {
            self.give(std::mem::replace(input, chunk));
        } else {
            input.extend_from_slice(&chunk);
            self.give(chunk);
        }
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
}

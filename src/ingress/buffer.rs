//! Read buffers of one shard. Taken when a read starts, given back when its bytes are used up, so
//! that steady traffic allocates nothing.

use forebay_base::limits::{
    DISCARD_READ_BYTES, DISCARD_READS_MAX, POOLED_BUFFERS_MAX, READ_BYTES, STREAM_READ_BYTES,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Free buffers of `READ_BYTES`, `STREAM_READ_BYTES` and `DISCARD_READ_BYTES` capacity.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    free_small: RefCell<Vec<Vec<u8>>>,
    free_large: RefCell<Vec<Vec<u8>>>,
    large_reads: Rc<Cell<usize>>,
}

/// One of the `DISCARD_READS_MAX` reads into a large buffer; given back on drop.
#[derive(Debug)]
pub struct LargeRead(Rc<Cell<usize>>);

impl Drop for LargeRead {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
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

    /// The same, with room for much of a body that nobody wants; none while too many such reads
    /// wait.
    #[must_use]
    pub fn take_large(&self) -> Option<(Vec<u8>, LargeRead)> {
        let reads = self.large_reads.get();
        if reads >= DISCARD_READS_MAX {
            return None;
        }
        self.large_reads.set(reads + 1);
        let free = self.free_large.borrow_mut().pop();
        let buffer = free.unwrap_or_else(|| Vec::with_capacity(DISCARD_READ_BYTES));
        Some((buffer, LargeRead(Rc::clone(&self.large_reads))))
    }

    /// Takes a buffer back. Odd sizes, and more than `POOLED_BUFFERS_MAX`, are freed.
    pub fn give(&self, mut buffer: Vec<u8>) {
        let (free, free_max) = match buffer.capacity() {
            READ_BYTES => (&self.free, POOLED_BUFFERS_MAX),
            STREAM_READ_BYTES => (&self.free_small, POOLED_BUFFERS_MAX),
            DISCARD_READ_BYTES => (&self.free_large, DISCARD_READS_MAX),
            _ => return,
        };
        let mut free = free.borrow_mut();
        if free.len() < free_max {
            buffer.clear();
            free.push(buffer);
        }
    }

    /// Appends what a read brought to `input`. An empty `input` trades places with the read's
    /// buffer instead.
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

    #[test]
    fn large_reads_are_bounded_while_they_wait() {
        let pool = BufferPool::default();
        let mut reads: Vec<_> =
            (0..DISCARD_READS_MAX).map(|_| pool.take_large().unwrap()).collect();
        assert!(pool.take_large().is_none());
        let (buffer, read) = reads.pop().unwrap();
        drop(read);
        pool.give(buffer);
        let (buffer, _) = pool.take_large().unwrap();
        assert_eq!(buffer.capacity(), DISCARD_READ_BYTES);
        assert!(pool.free_large.borrow().is_empty(), "the one that came back was taken");
    }
}

//! The ring of provided buffers, shared with the kernel, which picks from it for received bytes.

use crate::BufferPool;
use forebay_base::limits::PROVIDED_BUFFERS;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// `struct io_uring_buf` of the kernel. The tail of the ring lies in the first entry.
#[derive(Default)]
#[repr(C)]
struct BufferEntry {
    address: AtomicU64,
    length: AtomicU32,
    id: AtomicU16,
    tail: AtomicU16,
}

/// A page, the alignment that the kernel requires.
#[repr(C, align(4096))]
struct Entries([BufferEntry; PROVIDED_BUFFERS]);

/// Entries that the kernel may take, and their buffers.
pub(crate) struct ProvidedBuffers {
    entries: Box<Entries>,
    /// By the entry's id. The kernel may write into the spare room of each.
    buffers: Vec<Vec<u8>>,
    tail: u16,
}

impl ProvidedBuffers {
    pub(crate) fn new(pool: &BufferPool) -> Self {
        let mut provided = Self::empty();
        provided.buffers = (0..PROVIDED_BUFFERS).map(|_| pool.take()).collect();
        for id in 0..PROVIDED_BUFFERS {
            provided.offer(id);
        }
        provided.publish();
        provided
    }

    pub(crate) fn empty() -> Self {
        let entries = Box::new(Entries(std::array::from_fn(|_| BufferEntry::default())));
        Self { entries, buffers: Vec::new(), tail: 0 }
    }

    /// Address of the entries for the kernel, valid for this value's lifetime.
    pub(crate) fn address(&self) -> u64 {
        (&raw const *self.entries).addr() as u64
    }

    /// Moves received bytes out of a buffer, and offers the buffer (or a replacement) again; see
    /// [`Self::publish`].
    pub(crate) fn receive(&mut self, id: usize, bytes: usize, pool: &BufferPool) -> Vec<u8> {
        let Some(buffer) = self.buffers.get_mut(id) else { return Vec::new() };
        if bytes <= buffer.capacity() {
            // SAFETY: the kernel reports in the completion that it has written that many bytes from
            // the buffer's start, and it has consumed the entry: it no longer writes there.
            unsafe { buffer.set_len(bytes) };
        }
        let chunk = pool.chunk_of(buffer);
        self.offer(id);
        chunk
    }

    fn offer(&mut self, id: usize) {
        let place = usize::from(self.tail) % PROVIDED_BUFFERS;
        let (Some(entry), Some(buffer)) = (self.entries.0.get(place), self.buffers.get_mut(id))
        else {
            return;
        };
        let spare = buffer.spare_capacity_mut();
        // ordering: Relaxed, published by the store of the tail.
        entry.address.store(spare.as_mut_ptr().expose_provenance() as u64, Ordering::Relaxed);
        entry.length.store(u32::try_from(spare.len()).unwrap_or(0), Ordering::Relaxed);
        entry.id.store(u16::try_from(id).unwrap_or(0), Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes the offered entries visible to the kernel.
    pub(crate) fn publish(&self) {
        if let Some(first) = self.entries.0.first() {
            // ordering: Release, pairs with the kernel's acquiring load of the tail: it sees the
            // entries before it.
            first.tail.store(self.tail, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::limits::READ_BYTES;

    #[test]
    fn an_entry_that_was_used_is_offered_again_behind_the_others() {
        let pool = BufferPool::default();
        let mut provided = ProvidedBuffers::new(&pool);
        assert_eq!(size_of::<BufferEntry>(), 16);
        assert_eq!(provided.address() % 4096, 0);
        let tail = |provided: &ProvidedBuffers| {
            // ordering: one thread.
            provided.entries.0[0].tail.load(Ordering::Relaxed)
        };
        assert_eq!(usize::from(tail(&provided)), PROVIDED_BUFFERS);
        provided.buffers[7].extend_from_slice(b"from the kernel");
        provided.buffers[7].clear();
        assert_eq!(provided.receive(7, 4, &pool), b"from");
        let entry = &provided.entries.0[0];
        // ordering: one thread.
        let id = entry.id.load(Ordering::Relaxed);
        let length = entry.length.load(Ordering::Relaxed);
        assert_eq!((id, length), (7, u32::try_from(READ_BYTES).unwrap()));
        assert_eq!(usize::from(tail(&provided)), PROVIDED_BUFFERS, "not published yet");
        provided.publish();
        assert_eq!(usize::from(tail(&provided)), PROVIDED_BUFFERS + 1);
    }
}

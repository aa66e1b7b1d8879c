//! Bounded queue from a thread to another. Push and pop are wait-free: each side owns its position
//! and caches a copy of the other's, so that it touches the other's cache line only when the copy
//! shows a full (or empty) queue. Full: [`Producer::push`] gives the value back, the caller
//! decides.

use super::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::mem::MaybeUninit;

/// Makes a queue that holds at most `capacity` values (at least 1).
///
/// The values still queued are dropped with the handle that goes last.
#[must_use]
pub fn spsc<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1);
    let slot_count = capacity.next_power_of_two();
    let shared = Arc::new(RingSlots {
        slots: (0..slot_count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        capacity,
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
    });
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, head_seen: 0 };
    (producer, Consumer { shared, head: 0, tail_seen: 0 })
}

pub struct Producer<T> {
    shared: Arc<RingSlots<T>>,
    /// INVARIANT: equals `shared.tail`, which only this handle writes.
    tail: usize,
    /// INVARIANT: a value that `shared.head` had, so never past the real head.
    head_seen: usize,
}

pub struct Consumer<T> {
    shared: Arc<RingSlots<T>>,
    /// INVARIANT: equals `shared.head`, which only this handle writes.
    head: usize,
    /// INVARIANT: a value that `shared.tail` had, so never past the real tail.
    tail_seen: usize,
}

/// Positions count up for ever and wrap; the slot of position `p` is `p & (slots.len() - 1)`.
///
/// INVARIANT: `tail - head <= capacity <= slots.len()`, a power of two.
/// INVARIANT: exactly the slots of positions `head..tail` are initialised.
/// INVARIANT: only the producer writes a slot, at `tail`; only the consumer reads a slot, at
/// `head`.
struct RingSlots<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    capacity: usize,
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
}

// SAFETY: values move from thread to thread, hence `T: Send`. Only the single producer and the
// single consumer reach the slots. By the invariants above they never touch the same slot at once,
// so sharing the queue never shares a `T`.
unsafe impl<T: Send> Sync for RingSlots<T> {}
// SAFETY: as above; the thread that drops the queue last drops the values left in it, hence `T:
// Send`.
unsafe impl<T: Send> Send for RingSlots<T> {}

impl<T> Producer<T> {
    /// Appends a value; gives it back when the queue is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let capacity = self.shared.capacity;
        if self.tail.wrapping_sub(self.head_seen) >= capacity {
            // ordering: Acquire pairs with the Release store of `head` in `Consumer::pop`: the
            // consumer has moved the value out of the slot before we write the next value into it.
            self.head_seen = self.shared.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head_seen) >= capacity {
                return Err(value);
            }
        }
        let Some(slot) = self.shared.slot(self.tail) else { return Err(value) };
        slot.with_mut(|slot| {
            // SAFETY: `tail - head < capacity` was checked above, so no position in `head..tail`
            // shares this slot: it is uninitialised and the consumer stays off it until the Release
            // store below. The pointer comes from a live cell, hence is valid and aligned.
            unsafe { (*slot).write(value) };
        });
        self.tail = self.tail.wrapping_add(1);
        // ordering: Release pairs with the Acquire load of `tail` in
        // `Consumer::{pop, is_empty, len}`: the value is in its slot before the consumer can see
        // the position.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Values queued now; may already be fewer.
    #[must_use]
    pub fn len(&self) -> usize {
        // ordering: Relaxed; a hint, no slot is accessed because of it.
        self.tail.wrapping_sub(self.shared.head.load(Ordering::Relaxed))
    }

    /// True when the consumer has taken everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most values the queue holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }
}

impl<T> Consumer<T> {
    /// True when the producer is gone. Values that it pushed before may still be queued.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Takes the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            // ordering: Acquire pairs with the Release store of `tail` in `Producer::push`: the
            // value is in its slot before we read it.
            self.tail_seen = self.shared.tail.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let slot = self.shared.slot(self.head)?;
        let value = slot.with_mut(|slot| {
            // SAFETY: the pointer comes from a live cell, hence is valid and aligned, and by the
            // check above (`head < tail`) the producer stays off this slot until the Release store
            // below.
            unsafe { slot.read() }
        });
        // SAFETY: `head < tail`, so the slot was initialised; `head` moves past it now, so only
        // this copy of the value is ever used.
        let value = unsafe { value.assume_init() };
        self.head = self.head.wrapping_add(1);
        // ordering: Release pairs with the Acquire load of `head` in `Producer::push`: the value is
        // out of the slot before the producer may fill it again.
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Values queued now; may already be more.
    #[must_use]
    pub fn len(&self) -> usize {
        // ordering: Acquire pairs with the Release store of `tail` in `Producer::push`; after
        // `Bell::park` the SeqCst fences of the bell decide which store it sees at the earliest.
        self.shared.tail.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// True when nothing is queued. A shard checks this between [`super::Bell::park`] and its
    /// sleep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> RingSlots<T> {
    /// Always `Some`: the mask keeps the index below the length.
    #[inline]
    fn slot(&self, position: usize) -> Option<&UnsafeCell<MaybeUninit<T>>> {
        self.slots.get(position & (self.slots.len() - 1))
    }
}

impl<T> Drop for RingSlots<T> {
    fn drop(&mut self) {
        // ordering: Relaxed; `&mut self` proves that both handles are gone, and dropping the `Arc`
        // synchronised.
        let mut head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        while head != tail {
            if let Some(slot) = self.slot(head) {
                let value = slot.with_mut(|slot| {
                    // SAFETY: the pointer comes from a live cell, and no other thread can reach the
                    // slots any more.
                    unsafe { slot.read() }
                });
                // SAFETY: positions `head..tail` are initialised, and each is visited once.
                drop(unsafe { value.assume_init() });
            }
            head = head.wrapping_add(1);
        }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.shared.capacity).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("capacity", &self.shared.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use std::sync::Arc as StdArc;
    use std::thread;

    #[test]
    fn holds_exactly_its_capacity() {
        for capacity in [1, 2, 3, 5, 8] {
            let (mut producer, mut consumer) = spsc(capacity);
            for round in 0..20 {
                for value in 0..capacity {
                    assert_eq!(producer.push(round * 100 + value), Ok(()));
                }
                assert_eq!(producer.push(7), Err(7), "capacity {capacity}");
                assert_eq!((producer.len(), consumer.len()), (capacity, capacity));
                for value in 0..capacity {
                    assert_eq!(consumer.pop(), Some(round * 100 + value));
                }
                assert_eq!(consumer.pop(), None);
                assert!(consumer.is_empty() && producer.is_empty());
            }
        }
    }

    #[test]
    fn a_zero_capacity_holds_one() {
        let (mut producer, _consumer) = spsc(0);
        assert_eq!((producer.push(1), producer.push(2), producer.capacity()), (Ok(()), Err(2), 1));
    }

    #[test]
    fn positions_may_wrap() {
        let (mut producer, mut consumer) = spsc(3);
        let near_end = usize::MAX - 2;
        producer.tail = near_end;
        producer.head_seen = near_end;
        consumer.head = near_end;
        consumer.tail_seen = near_end;
        producer.shared.head.store(near_end, Ordering::Relaxed);
        producer.shared.tail.store(near_end, Ordering::Relaxed);
        for value in 0..20 {
            assert_eq!(producer.push(value), Ok(()));
            assert_eq!(producer.push(value + 100), Ok(()));
            assert_eq!((consumer.pop(), consumer.pop()), (Some(value), Some(value + 100)));
        }
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let counted = StdArc::new(());
        let (mut producer, mut consumer) = spsc(4);
        for _ in 0..4 {
            assert!(producer.push(StdArc::clone(&counted)).is_ok());
        }
        drop(consumer.pop());
        drop(producer);
        assert_eq!(StdArc::strong_count(&counted), 4);
        drop(consumer);
        assert_eq!(StdArc::strong_count(&counted), 1);
    }

    #[test]
    fn order_is_kept_across_threads() {
        let (mut producer, mut consumer) = spsc(16);
        let pushing = thread::spawn(move || {
            for mut value in 0..100_000_u64 {
                while let Err(back) = producer.push(value) {
                    value = back;
                    thread::yield_now();
                }
            }
        });
        let mut next = 0_u64;
        while next < 100_000 {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
        pushing.join().expect("the producer ends");
    }
}

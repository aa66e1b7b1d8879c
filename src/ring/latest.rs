//! A cell between two threads for snapshots: the newest value wins. Writing and taking are a single
//! atomic swap each. Cannot be full: an unread value is handed back to the writer, so that large
//! snapshots are freed on the writer's thread and not on a shard.

use super::sync::{Arc, AtomicPtr, Ordering};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;

/// Makes an empty cell.
#[must_use]
pub fn latest<T: Send>() -> (LatestWriter<T>, LatestReader<T>) {
    let shared =
        Arc::new(LatestCell { unread: AtomicPtr::new(ptr::null_mut()), owns: PhantomData });
    (LatestWriter { shared: Arc::clone(&shared) }, LatestReader { shared })
}

pub struct LatestWriter<T> {
    shared: Arc<LatestCell<T>>,
}

pub struct LatestReader<T> {
    shared: Arc<LatestCell<T>>,
}

/// INVARIANT: `unread` is null or a `Box` turned raw that the cell owns; the thread that swaps it
/// out owns it then.
struct LatestCell<T> {
    unread: AtomicPtr<T>,
    owns: PhantomData<T>,
}

// SAFETY: a swap moves the whole value to one side; no two threads ever hold a reference to the
// same `T`.
unsafe impl<T: Send> Sync for LatestCell<T> {}
// SAFETY: as above; dropping the cell drops the value on that thread, hence `T: Send`.
unsafe impl<T: Send> Send for LatestCell<T> {}

impl<T> LatestWriter<T> {
    /// Stores a value; returns the value before, if the reader has not taken it.
    pub fn write(&self, value: T) -> Option<T> {
        self.shared.swap(Box::into_raw(Box::new(value)))
    }
}

impl<T> LatestReader<T> {
    /// Takes the value written last, if it was not taken yet. A single load of a shared line if
    /// there is none.
    #[inline]
    pub fn take(&self) -> Option<T> {
        // The plain load avoids claiming the line for writing in the common case of no new value.
        if self.is_empty() { None } else { self.shared.swap(ptr::null_mut()) }
    }

    /// True when nothing is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // ordering: Relaxed; a hint, the swap that follows reads the value. After `Bell::park` the
        // SeqCst fences of the bell decide which store it sees at the earliest.
        self.shared.unread.load(Ordering::Relaxed).is_null()
    }
}

impl<T> LatestCell<T> {
    fn swap(&self, new: *mut T) -> Option<T> {
        // ordering: AcqRel; Release pairs with the Acquire of the next swap (the other side's, or
        // our own in a later write): the target of `new` is complete before it can be taken.
        let old = self.unread.swap(new, Ordering::AcqRel);
        if old.is_null() {
            return None;
        }
        // SAFETY: a non-null pointer in the cell came from `Box::into_raw`, and the swap took it
        // out, so no other thread has it: ownership passes to us exactly once.
        let boxed = unsafe { Box::from_raw(old) };
        Some(*boxed)
    }
}

impl<T> Drop for LatestCell<T> {
    fn drop(&mut self) {
        drop(self.swap(ptr::null_mut()));
    }
}

impl<T> fmt::Debug for LatestWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatestWriter").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LatestReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatestReader").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use std::sync::Arc as StdArc;
    use std::thread;

    #[test]
    fn the_newest_wins_and_the_unread_comes_back() {
        let (writer, reader) = latest();
        assert!(reader.is_empty());
        assert_eq!((reader.take(), writer.write(1), writer.write(2)), (None, None, Some(1)));
        assert!(!reader.is_empty());
        assert_eq!((reader.take(), reader.take(), writer.write(3)), (Some(2), None, None));
    }

    #[test]
    fn an_unread_value_is_dropped_with_the_cell() {
        let counted = StdArc::new(());
        let (writer, reader) = latest();
        assert!(writer.write(StdArc::clone(&counted)).is_none());
        drop(writer);
        assert_eq!(StdArc::strong_count(&counted), 2);
        drop(reader);
        assert_eq!(StdArc::strong_count(&counted), 1);
    }

    #[test]
    fn a_reader_never_goes_back() {
        let (writer, reader) = latest();
        let writing = thread::spawn(move || {
            for value in 1..=20_000_u64 {
                let _ = writer.write(value);
            }
        });
        let mut newest = 0;
        while newest < 20_000 {
            match reader.take() {
                Some(value) => {
                    assert!(value > newest, "{value} after {newest}");
                    newest = value;
                }
                None => thread::yield_now(),
            }
        }
        writing.join().expect("the writer ends");
    }
}

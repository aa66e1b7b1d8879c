//! The doorbell of a shard: other threads wake the shard while it sleeps in its I/O ring.
//!
//! A sender pushes its whole batch, then calls [`Bell::ring`]. The shard, having found its rings
//! empty, calls [`Bell::park`], **checks all its rings again**, and only then waits for a read of
//! the descriptor:
//! ```text
//! sender                          shard
//! push ...                        park            (parked = true; fence)
//! ring   (fence; parked?)         rings empty?    no  -> unpark, drain
//!                                                 yes -> read the descriptor, unpark, drain
//! ```
//! Each side writes its own word, fences, and reads the other's: with both fences at least one side
//! sees the other, so no wake is lost. A spurious wake is possible and harmless. While the shard is
//! awake `ring` costs a fence and a load.

use super::sync::{AtomicBool, Ordering, fence};
use crossbeam_utils::CachePadded;
use std::os::fd::OwnedFd;

/// Wakes the shard of a bell.
pub trait Wake {
    /// Makes the shard's wait end. Called from any thread, at most once per [`Bell::park`].
    fn wake(&self);
}

/// A doorbell, shared by the shard and all threads that post to it. Any thread may ring; only the
/// shard parks.
#[derive(Debug)]
pub struct Bell<W = OwnedFd> {
    parked: CachePadded<AtomicBool>,
    wake: W,
}

impl<W: Wake> Bell<W> {
    /// A bell of a shard that is awake.
    #[must_use]
    pub fn new(wake: W) -> Self {
        Self { parked: CachePadded::new(AtomicBool::new(false)), wake }
    }

    /// After a push: wakes the shard if it sleeps. Makes a system call only then.
    #[inline]
    pub fn ring(&self) {
        // ordering: the SeqCst fence pairs with the fence in `park`. We have pushed and now load
        // `parked`; the shard has stored `parked` and then loads the rings. Without both fences
        // each may read the old value and the shard sleeps on a full ring. Models:
        // tests/loom/doorbell.rs, `doorbell_never_loses_a_wake`.
        fence(Ordering::SeqCst);
        // ordering: Relaxed load, ordered by the fence above; it saves a write to the line of an
        // awake shard. The AcqRel swap pairs with the other senders' swap and with `unpark`: a
        // single sender wins and wakes.
        if self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    /// Shard only: announces sleep. After this, check every ring again, then sleep or
    /// [`Bell::unpark`].
    #[inline]
    pub fn park(&self) {
        // ordering: Relaxed store, ordered before the later loads of the rings by the SeqCst fence,
        // which pairs with the fence in `ring`.
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Shard only: withdraws the announcement. False when a sender was faster: then a wake has been
    /// sent, or is about to be, and the next wait may end at once without work.
    #[inline]
    pub fn unpark(&self) -> bool {
        // ordering: AcqRel pairs with the swap in `ring`: exactly one side takes the announcement.
        self.parked.swap(false, Ordering::AcqRel)
    }

    #[must_use]
    pub fn wake_action(&self) -> &W {
        &self.wake
    }
}

/// Writes 8 bytes: an eventfd counts up by 1, a socket or pipe gets 8 bytes to read and discard.
impl Wake for OwnedFd {
    fn wake(&self) {
        // The descriptor should be non-blocking. WouldBlock means that unread wakes are already
        // waiting there; any other error means that the shard closed its end and is gone. Neither
        // leaves a sleeper behind.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(self, &1_u64.to_ne_bytes()));
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::super::spsc;
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    fn eventfd_bell() -> Bell {
        Bell::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"))
    }

    fn wakes(bell: &Bell) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(bell.wake_action(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn only_a_parked_shard_is_woken_and_only_once() {
        let bell = eventfd_bell();
        bell.ring();
        assert_eq!(wakes(&bell), 0, "awake");
        bell.park();
        bell.ring();
        bell.ring();
        assert_eq!(wakes(&bell), 1, "parked");
        assert!(!bell.unpark(), "the sender took it");
        bell.park();
        assert!(bell.unpark(), "nobody rang");
        bell.ring();
        assert_eq!(wakes(&bell), 0, "awake again");
    }

    #[test]
    fn a_full_socket_does_not_block_the_sender() {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("non-blocking");
        let bell: Bell = Bell::new(ours.into());
        for _ in 0..100_000 {
            bell.park();
            bell.ring();
        }
        drop(theirs);
        bell.park();
        bell.ring();
    }

    /// A sleeper that loses a wake hangs here: the read blocks and nothing else ends it.
    #[test]
    fn a_sleeping_consumer_gets_everything() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let bell = Arc::new(Bell::<OwnedFd>::new(fd));
        let (mut producer, mut consumer) = spsc(8);
        let ringer = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            for mut value in 0..20_000_u32 {
                while let Err(back) = producer.push(value) {
                    value = back;
                    thread::yield_now();
                }
                ringer.ring();
            }
        });
        let mut next = 0;
        while next < 20_000 {
            while let Some(value) = consumer.pop() {
                assert_eq!(value, next);
                next += 1;
            }
            bell.park();
            if next == 20_000 || !consumer.is_empty() {
                bell.unpark();
            } else {
                let mut count = [0; 8];
                rustix::io::read(bell.wake_action(), &mut count).expect("a wake");
                bell.unpark();
            }
        }
        sending.join().expect("the sender ends");
    }
}

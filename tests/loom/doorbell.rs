//! Models of the doorbell of a shard, and of the same protocol without its fences.

use forebay_ring::sync::{Arc, AtomicBool, AtomicUsize, Ordering, fence};
use forebay_ring::{Bell, Wake, latest, spsc};
use loom::thread;

/// Stands for the descriptor: a wake stays until the sleeper reads it.
struct Flag(Arc<AtomicBool>);

impl Wake for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn doorbell_never_loses_a_wake() {
    loom::model(|| {
        let rung = Arc::new(AtomicBool::new(false));
        let bell = Arc::new(Bell::new(Flag(Arc::clone(&rung))));
        let (mut producer, mut consumer) = spsc(2);
        let ringer = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            producer.push(7).unwrap();
            ringer.ring();
        });
        bell.park();
        let sleeps = consumer.is_empty();
        if !sleeps {
            assert_eq!(consumer.pop(), Some(7));
            bell.unpark();
        }
        sending.join().unwrap();
        if sleeps {
            assert!(rung.load(Ordering::Acquire), "lost wake-up");
            assert_eq!(consumer.pop(), Some(7));
        }
    });
}

#[test]
fn doorbell_never_loses_a_snapshot() {
    loom::model(|| {
        let rung = Arc::new(AtomicBool::new(false));
        let bell = Arc::new(Bell::new(Flag(Arc::clone(&rung))));
        let (writer, reader) = latest();
        let ringer = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            let _ = writer.write(7);
            ringer.ring();
        });
        bell.park();
        let sleeps = reader.is_empty();
        sending.join().unwrap();
        assert!(!sleeps || rung.load(Ordering::Acquire), "lost wake-up");
        assert_eq!(reader.take(), Some(7));
    });
}

#[test]
fn doorbell_with_two_senders_wakes_once() {
    struct Count(Arc<AtomicUsize>);
    impl Wake for Count {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    loom::model(|| {
        let wakes = Arc::new(AtomicUsize::new(0));
        let bell = Arc::new(Bell::new(Count(Arc::clone(&wakes))));
        let pushed = Arc::new(AtomicUsize::new(0));
        let sending: Vec<_> = (0..2)
            .map(|_| {
                let bell = Arc::clone(&bell);
                let pushed = Arc::clone(&pushed);
                thread::spawn(move || {
                    pushed.fetch_add(1, Ordering::Release);
                    bell.ring();
                })
            })
            .collect();
        bell.park();
        let seen = pushed.load(Ordering::Acquire);
        for sender in sending {
            sender.join().unwrap();
        }
        let wakes = wakes.load(Ordering::Acquire);
        assert!(seen == 2 || wakes == 1, "saw {seen} of 2 and was woken {wakes} times");
        assert!(wakes <= 1, "one park, {wakes} wakes");
    });
}

/// The same protocol with the fences left out loses a wake: they are needed, and loom can see
/// it.
#[test]
#[should_panic(expected = "lost wake-up")]
fn doorbell_without_fences_loses_a_wake() {
    unfenced(false, false);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn doorbell_with_the_sender_fence_alone_loses_a_wake() {
    unfenced(true, false);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn doorbell_with_the_shard_fence_alone_loses_a_wake() {
    unfenced(false, true);
}

fn unfenced(sender_fence: bool, shard_fence: bool) {
    loom::model(move || {
        let parked = Arc::new(AtomicBool::new(false));
        let rung = Arc::new(AtomicBool::new(false));
        let (mut producer, consumer) = spsc(2);
        let their_parked = Arc::clone(&parked);
        let their_rung = Arc::clone(&rung);
        let sending = thread::spawn(move || {
            producer.push(7).unwrap();
            if sender_fence {
                fence(Ordering::SeqCst);
            }
            if their_parked.load(Ordering::Acquire) {
                their_rung.store(true, Ordering::Release);
            }
        });
        parked.store(true, Ordering::Release);
        if shard_fence {
            fence(Ordering::SeqCst);
        }
        let sleeps = consumer.is_empty();
        sending.join().unwrap();
        assert!(!sleeps || rung.load(Ordering::Acquire), "lost wake-up");
    });
}

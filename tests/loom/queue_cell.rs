//! Models of the counts of a queue: its waiters, and the shares of its tenants.

use forebay_board::{QueueCell, QueueDemand, QueueLimits};
use forebay_ring::sync::{Arc, AtomicU32, Ordering};
use loom::thread;

/// A request without a place joins the queue while the only place is given back. Either the owner
/// of the queue, which looks once after the message, finds the place, or the lease that gave it
/// back sees the waiter and wakes the owner.
#[test]
fn nobody_waits_beside_a_free_place() {
    loom::model(|| {
        let limits = QueueLimits { depth_max: 1, bytes_max: 0, tokens_max: 0 };
        let cell = Arc::new(QueueCell::default());
        let place_taken = Arc::new(AtomicU32::new(1));
        let queue = Arc::clone(&cell);
        let place = Arc::clone(&place_taken);
        let ending = thread::spawn(move || {
            place.fetch_sub(1, Ordering::Relaxed);
            queue.room_made()
        });
        cell.join(limits, QueueDemand::default()).unwrap();
        // Here the message goes to the home: its ring is Release and Acquire, and may as well
        // be one thread.
        let seen = cell.look();
        let found = place_taken.load(Ordering::Relaxed) == 0;
        let rung = ending.join().unwrap();
        assert!(found || rung, "the place is free and the waiter sleeps");
        // Rung after the look: the count has changed, so the home looks again.
        assert!(!rung || found || cell.look() != seen, "rung, and the home sees nothing new");
    });
}

/// The tenant that has a full queue asks for more while another one comes: that one gets its
/// share, the first no more, and nothing is left of either.
#[test]
fn shares_of_a_full_queue_are_exact() {
    loom::model(|| {
        let limits = QueueLimits { depth_max: 1, bytes_max: 0, tokens_max: 0 };
        let wanted = |tenant| QueueDemand { tenant, weight: 1, ..QueueDemand::default() };
        let cell = Arc::new(QueueCell::default());
        cell.join(limits, wanted(0)).unwrap();
        let queue = Arc::clone(&cell);
        let greedy = thread::spawn(move || {
            assert!(queue.join(limits, wanted(0)).is_err(), "it has all, or twice its share");
        });
        cell.join(limits, wanted(1)).unwrap();
        greedy.join().unwrap();
        assert_eq!((cell.waiting(), cell.waiting_of(0), cell.waiting_of(1)), (2, 1, 1));
        cell.leave(wanted(0));
        assert!(!cell.is_below_share(limits, 1, 1), "no other tenant is left");
    });
}

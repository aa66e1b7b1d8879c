//! Places for bodies that are read. A new body never waits and is never refused: without a free
//! place the oldest unfinished body gives way, so that slow senders cannot shut the mirror out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;

/// The places of a listener.
#[derive(Debug)]
pub(crate) struct BodyPlaces {
    /// In the order of arrival.
    open: RefCell<VecDeque<(u64, Rc<Notify>)>>,
    next: Cell<u64>,
    places_max: usize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyPlace {
    places: Rc<BodyPlaces>,
    number: u64,
    evicted: Rc<Notify>,
}

impl BodyPlaces {
    pub(crate) fn new(places_max: usize) -> Rc<Self> {
        let open = RefCell::new(VecDeque::with_capacity(places_max));
        Rc::new(Self { open, next: Cell::new(0), places_max })
    }

    /// Takes a place, if need be that of the oldest body.
    pub(crate) fn take(self: &Rc<Self>) -> BodyPlace {
        let mut open = self.open.borrow_mut();
        if open.len() >= self.places_max
            && let Some((_, oldest)) = open.pop_front()
        {
            oldest.notify_one();
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let evicted = Rc::new(Notify::new());
        open.push_back((number, Rc::clone(&evicted)));
        BodyPlace { places: Rc::clone(self), number, evicted }
    }
}

impl BodyPlace {
    /// Ends when another body needs the place.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for BodyPlace {
    fn drop(&mut self) {
        self.places.open.borrow_mut().retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn the_oldest_body_gives_way_and_no_other() {
        let places = BodyPlaces::new(3);
        let is_evicted = |place: &BodyPlace| {
            pin!(place.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        let mut held: Vec<_> = (0..3).map(|_| places.take()).collect();
        assert!(!held.iter().any(is_evicted));
        held.push(places.take());
        let evicted: Vec<bool> = held.iter().map(is_evicted).collect();
        assert_eq!(evicted, [true, false, false, false]);
        // A body that has ended leaves its place to the next.
        drop(held.remove(2));
        held.push(places.take());
        assert!(!held.iter().any(is_evicted));
        assert!(places.open.borrow().len() == 3);
        drop(held);
        assert!(places.open.borrow().is_empty());
    }
}

//! An array that grows at its end without ever moving: what is set stays where it is, for readers
//! that hold on to it. Two levels, so that a large limit costs next to nothing before it is used.

use forebay_ring::sync;
use std::sync::OnceLock;

/// Places of one shelf; few in models.
const SHELF_PLACES: usize = if cfg!(feature = "loom") { 8 } else { 512 };

/// Places for up to as many `T` as it was made for.
#[derive(Debug)]
pub(super) struct Shelves<T> {
    shelves: Box<[OnceLock<Shelf<T>>]>,
}

/// Loom follows the places alone. A shelf is made by who sets its first place.
type Shelf<T> = Box<[sync::OnceLock<T>]>;

impl<T> Shelves<T> {
    /// Nothing yet, for at least `places_max`.
    pub(super) fn new(places_max: usize) -> Self {
        let shelves = places_max.div_ceil(SHELF_PLACES).max(1);
        Self { shelves: (0..shelves).map(|_| OnceLock::new()).collect() }
    }

    /// Places that there can be.
    pub(super) fn places_max(&self) -> usize {
        self.shelves.len() * SHELF_PLACES
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.shelves.get(place / SHELF_PLACES)?.get()?.get(place % SHELF_PLACES)?.get()
    }

    /// Fills a place; false when it is filled or past the end.
    pub(super) fn set(&self, place: usize, value: T) -> bool {
        let Some(shelf) = self.shelves.get(place / SHELF_PLACES) else { return false };
        let shelf =
            shelf.get_or_init(|| (0..SHELF_PLACES).map(|_| sync::OnceLock::new()).collect());
        shelf.get(place % SHELF_PLACES).is_some_and(|place| place.set(value).is_ok())
    }
}

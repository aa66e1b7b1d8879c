//! An array that grows at its end without ever moving its elements, since readers keep references
//! to them. Two levels, so that a large limit costs almost nothing before it is used.

use forebay_ring::sync;
use std::sync::OnceLock;

/// Places of a shelf; few under loom.
const SHELF_PLACES: usize = if cfg!(feature = "loom") { 8 } else { 512 };

/// Places for up to `places_max` values of `T`.
#[derive(Debug)]
pub(super) struct Shelves<T> {
    shelves: Box<[OnceLock<Shelf<T>>]>,
}

/// Loom tracks only the places. The first `set` in a shelf allocates it.
type Shelf<T> = Box<[sync::OnceLock<T>; SHELF_PLACES]>;

impl<T> Shelves<T> {
    /// Empty, for at least `places_max`.
    pub(super) fn new(places_max: usize) -> Self {
        let shelves = places_max.div_ceil(SHELF_PLACES).max(1);
        Self { shelves: (0..shelves).map(|_| OnceLock::new()).collect() }
    }

    /// Upper limit of places.
    pub(super) fn places_max(&self) -> usize {
        self.shelves.len() * SHELF_PLACES
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.shelves.get(place / SHELF_PLACES)?.get()?.get(place % SHELF_PLACES)?.get()
    }

    /// Fills a place; false if it is already filled or past the end.
    pub(super) fn set(&self, place: usize, value: T) -> bool {
        let Some(shelf) = self.shelves.get(place / SHELF_PLACES) else { return false };
        let shelf = shelf.get_or_init(|| Box::new(std::array::from_fn(|_| sync::OnceLock::new())));
        shelf.get(place % SHELF_PLACES).is_some_and(|place| place.set(value).is_ok())
    }
}

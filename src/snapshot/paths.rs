//! All links of a snapshot: finds a block by its key, and the blocks between it and its root. 24
//! bytes a block.

use super::Link;
use forebay_base::ShardIndex;
use forebay_index::BlockKey;

/// The parent is a root, or unknown.
const NO_PLACE: u32 = u32::MAX;
/// The slice of the block is unknown.
const NO_SLICE: u16 = u16::MAX;

/// The links, ascending by key.
#[derive(Debug, Default)]
pub struct Paths {
    places: Vec<PathLink>,
}

#[derive(Clone, Copy, Debug)]
struct PathLink {
    key: BlockKey,
    parent: BlockKey,
    parent_at: u32,
    block_bytes: u16,
    slice: u16,
}

const _: () = assert!(size_of::<PathLink>() == 24);

impl Paths {
    /// Sorts the links. Of several links with the same key, the first counts.
    #[must_use]
    pub fn new(mut links: Vec<Link>) -> Self {
        links.sort_by_key(|link| link.key.to_word());
        links.dedup_by_key(|link| link.key);
        links.truncate(usize::try_from(NO_PLACE).unwrap_or(usize::MAX));
        let of_link = |link: Link| {
            let Link { parent, key, block_bytes, slice } = link;
            PathLink { key, parent, parent_at: NO_PLACE, block_bytes, slice: slice.0 }
        };
        let mut paths = Self { places: links.into_iter().map(of_link).collect() };
        for at in 0..paths.places.len() {
            let parent = paths.places.get(at).and_then(|place| paths.find(place.parent));
            if let (Some(parent), Some(place)) = (parent, paths.places.get_mut(at)) {
                place.parent_at = u32::try_from(parent).unwrap_or(NO_PLACE);
            }
        }
        paths
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The place of the block with that key.
    #[must_use]
    pub fn find(&self, key: BlockKey) -> Option<usize> {
        self.places.binary_search_by_key(&key.to_word(), |place| place.key.to_word()).ok()
    }

    /// The block at a place; `None` if its slice is unknown.
    #[must_use]
    pub fn link(&self, at: usize) -> Option<Link> {
        let &PathLink { key, parent, block_bytes, slice, .. } = self.places.get(at)?;
        let slice = Some(slice).filter(|slice| *slice != NO_SLICE).map(ShardIndex)?;
        Some(Link { parent, key, block_bytes, slice })
    }

    /// The place of the parent; `None` for the first known block of a path.
    #[must_use]
    pub fn before(&self, at: usize) -> Option<usize> {
        let place = self.places.get(at)?;
        usize::try_from(place.parent_at).ok().filter(|_| place.parent_at != NO_PLACE)
    }

    /// Number of known blocks before each block of its path.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<Option<u32>> = vec![None; self.places.len()];
        let mut path = Vec::new();
        for from in 0..self.places.len() {
            let mut next = Some(from);
            let mut depth = 0;
            while let Some(at) = next {
                if let Some(known) = depths.get(at).copied().flatten() {
                    depth = known.saturating_add(1);
                    break;
                }
                path.push(at);
                if let Some(depth) = depths.get_mut(at) {
                    // Ends a circle of keys.
                    *depth = Some(0);
                }
                next = self.before(at);
            }
            for at in path.drain(..).rev() {
                if let Some(place) = depths.get_mut(at) {
                    *place = Some(depth);
                }
                depth = depth.saturating_add(1);
            }
        }
        depths.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// Gives every block the slice of its path in an index with another number of slices. A path is
    /// not whole if another slice would have owned its first known block before; then its new slice
    /// is unknown.
    pub fn reassign_slices(
        &mut self,
        slice_of: fn(BlockKey, usize) -> ShardIndex,
        count_before: usize,
        count: usize,
    ) {
        let mut done = vec![false; self.places.len()];
        let mut path = Vec::new();
        for from in 0..self.places.len() {
            let mut next = Some(from);
            let mut slice = None;
            while let Some(at) = next {
                if done.get(at).copied().unwrap_or(true) {
                    // Also ends a circle of keys, which only a forged snapshot can contain.
                    slice = self.link(at).map(|link| link.slice);
                    break;
                }
                if let Some(done) = done.get_mut(at) {
                    *done = true;
                }
                path.push(at);
                next = self.before(at);
                if next.is_none() {
                    let first = self.link(at);
                    let whole = first.filter(|link| slice_of(link.key, count_before) == link.slice);
                    slice = whole.map(|first| slice_of(first.key, count));
                }
            }
            let slice = slice.filter(|slice| slice.index() < count);
            for at in path.drain(..) {
                if let Some(place) = self.places.get_mut(at) {
                    place.slice = slice.map_or(NO_SLICE, |slice| slice.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(word: u64) -> BlockKey {
        BlockKey::from_word(word).unwrap()
    }

    fn link(parent: u64, word: u64, slice: u16) -> Link {
        Link { parent: key(parent), key: key(word), block_bytes: 7, slice: ShardIndex(slice) }
    }

    /// Of two slices the last digit's parity, of more the last digit.
    fn slice_of(key: BlockKey, count: usize) -> ShardIndex {
        ShardIndex(u16::try_from(key.to_word() % 10 % count as u64).unwrap())
    }

    #[test]
    fn blocks_are_found_and_lead_to_their_root() {
        let paths = Paths::new(vec![link(20, 30, 0), link(1, 20, 0), link(20, 30, 1)]);
        assert_eq!((paths.len(), paths.find(key(1)), paths.is_empty()), (2, None, false));
        let last = paths.find(key(30)).unwrap();
        assert_eq!(paths.link(last), Some(link(20, 30, 0)));
        let first = paths.before(last).unwrap();
        assert_eq!((paths.depths()[first], paths.depths()[last]), (0, 1));
        assert_eq!((paths.link(first), paths.before(first)), (Some(link(1, 20, 0)), None));
        assert!(paths.link(9).is_none() && paths.before(9).is_none());
    }

    #[test]
    fn whole_paths_are_placed_anew() {
        let circle = [link(61, 62, 0), link(62, 61, 0)];
        let mut paths = Paths::new(vec![
            link(1, 13, 1),
            link(13, 20, 1),
            link(20, 35, 1),
            link(1, 12, 0),
            // What was before it is not there.
            link(99, 44, 1),
            link(44, 45, 1),
            circle[0],
            circle[1],
        ]);
        paths.reassign_slices(slice_of, 2, 5);
        assert_eq!(paths.depths().iter().max(), Some(&2));
        let slice = |word| paths.link(paths.find(key(word)).unwrap()).map(|link| link.slice.0);
        assert_eq!([13, 20, 35].map(slice), [Some(3); 3]);
        assert_eq!((slice(12), slice(44), slice(45)), (Some(2), None, None));
        assert_eq!((slice(61), slice(62)), (Some(0), Some(0)), "ends at all");
    }
}

//! The blocks that a rank holds, in rows of consecutive numbers: most blocks of a path are
//! consecutive, so a walk along a path stays in the CPU caches. Blocks without a user form an LRU
//! list.

use ahash::AHashMap;

/// Blocks of a row.
const ROW_BLOCKS: u32 = u32::BITS;
/// Marks the absence of a block.
const NONE: u32 = u32::MAX;

/// Place of a held block. The place is reused after an eviction, which cannot happen while a
/// sequence uses the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSlot(u32);

#[derive(Clone, Debug)]
pub(crate) struct CacheBlocks {
    /// By the number of the first block over [`ROW_BLOCKS`]: the place of the row.
    places: AHashMap<u32, u32>,
    rows: Vec<BlockRow>,
    /// Places of rows without a block.
    free: Vec<u32>,
    count: usize,
    idle: IdleBlocks,
}

#[derive(Clone, Debug)]
struct BlockRow {
    /// The number of its first block over [`ROW_BLOCKS`].
    number: u32,
    /// A bit for each held block.
    held: u32,
    blocks: [HeldBlock; ROW_BLOCKS as usize],
}

#[derive(Clone, Copy, Debug)]
struct HeldBlock {
    users: u32,
    /// Neighbors in the list of blocks without a user.
    older: u32,
    newer: u32,
}

/// Ends and length of the LRU list.
#[derive(Clone, Debug)]
struct IdleBlocks {
    oldest: u32,
    newest: u32,
    count: usize,
}

impl CacheBlocks {
    pub(crate) fn new() -> Self {
        let idle = IdleBlocks { oldest: NONE, newest: NONE, count: 0 };
        Self { places: AHashMap::new(), rows: Vec::new(), free: Vec::new(), count: 0, idle }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// The blocks, in no order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.places.iter().flat_map(|(&number, &place)| {
            let row = &self.rows[place as usize];
            (0..ROW_BLOCKS)
                .filter(|bit| row.held & (1 << bit) != 0)
                .map(move |bit| number * ROW_BLOCKS + bit)
        })
    }

    /// Blocks without a user.
    pub(crate) const fn idle_count(&self) -> usize {
        self.idle.count
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        let row = self.places.get(&(block / ROW_BLOCKS)).map(|&place| &self.rows[place as usize]);
        row.is_some_and(|row| row.has(block))
    }

    /// Appends the leading blocks of a path that are held.
    pub(crate) fn prefix(&self, path: impl Iterator<Item = u32>, found: &mut Vec<BlockSlot>) {
        let mut near: Option<(u32, &BlockRow)> = None;
        for block in path {
            if near.is_none_or(|(_, row)| row.number != block / ROW_BLOCKS) {
                let place = self.places.get(&(block / ROW_BLOCKS)).copied();
                near = place.map(|place| (place, &self.rows[place as usize]));
            }
            let Some((place, _)) = near.filter(|(_, row)| row.has(block)) else { return };
            found.push(BlockSlot::of(place, block));
        }
    }

    pub(crate) fn is_idle(&self, slot: BlockSlot) -> bool {
        self.at(slot).users == 0
    }

    /// The block at a place.
    pub(crate) fn block(&self, slot: BlockSlot) -> u32 {
        self.rows[(slot.0 / ROW_BLOCKS) as usize].number * ROW_BLOCKS + slot.0 % ROW_BLOCKS
    }

    /// Adds a user to the block.
    pub(crate) fn acquire(&mut self, slot: BlockSlot) {
        let held = self.at_mut(slot);
        held.users += 1;
        if held.users == 1 {
            self.unlink(slot);
        }
    }

    /// Removes a user from the block.
    pub(crate) fn release(&mut self, slot: BlockSlot) {
        let held = self.at_mut(slot);
        held.users -= 1;
        if held.users == 0 {
            self.link_newest(slot);
        }
    }

    /// Adds a user to a block, and the block if it is not held; true if it is new.
    pub(crate) fn hold(&mut self, block: u32) -> (BlockSlot, bool) {
        let place = self.row_of(block);
        let row = &mut self.rows[place as usize];
        let slot = BlockSlot::of(place, block);
        if row.has(block) {
            self.acquire(slot);
            return (slot, false);
        }
        row.held |= 1 << (block % ROW_BLOCKS);
        row.blocks[(block % ROW_BLOCKS) as usize].users = 1;
        self.count += 1;
        (slot, true)
    }

    /// Removes and returns the block that was released longest ago.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let slot = BlockSlot(self.idle.oldest);
        if slot.0 == NONE {
            return None;
        }
        self.unlink(slot);
        self.count -= 1;
        let place = slot.0 / ROW_BLOCKS;
        let index = slot.0 % ROW_BLOCKS;
        let row = &mut self.rows[place as usize];
        row.held &= !(1 << index);
        let block = row.number * ROW_BLOCKS + index;
        if row.held == 0 {
            self.places.remove(&row.number);
            self.free.push(place);
        }
        Some(block)
    }

    /// The place of a block's row, made if need be.
    fn row_of(&mut self, block: u32) -> u32 {
        let Self { places, rows, free, .. } = self;
        let number = block / ROW_BLOCKS;
        *places.entry(number).or_insert_with(|| {
            if let Some(place) = free.pop() {
                rows[place as usize].number = number;
                return place;
            }
            let nobody = HeldBlock { users: 0, older: NONE, newer: NONE };
            rows.push(BlockRow { number, held: 0, blocks: [nobody; ROW_BLOCKS as usize] });
            rows.len() as u32 - 1
        })
    }

    fn at(&self, slot: BlockSlot) -> &HeldBlock {
        &self.rows[(slot.0 / ROW_BLOCKS) as usize].blocks[(slot.0 % ROW_BLOCKS) as usize]
    }

    fn at_mut(&mut self, slot: BlockSlot) -> &mut HeldBlock {
        &mut self.rows[(slot.0 / ROW_BLOCKS) as usize].blocks[(slot.0 % ROW_BLOCKS) as usize]
    }

    fn link_newest(&mut self, slot: BlockSlot) {
        let before = std::mem::replace(&mut self.idle.newest, slot.0);
        let held = self.at_mut(slot);
        held.older = before;
        held.newer = NONE;
        match before {
            NONE => self.idle.oldest = slot.0,
            before => self.at_mut(BlockSlot(before)).newer = slot.0,
        }
        self.idle.count += 1;
    }

    fn unlink(&mut self, slot: BlockSlot) {
        let HeldBlock { older, newer, .. } = *self.at(slot);
        match older {
            NONE => self.idle.oldest = newer,
            older => self.at_mut(BlockSlot(older)).newer = newer,
        }
        match newer {
            NONE => self.idle.newest = older,
            newer => self.at_mut(BlockSlot(newer)).older = older,
        }
        self.idle.count -= 1;
    }
}

impl BlockSlot {
    const fn of(place: u32, block: u32) -> Self {
        Self(place * ROW_BLOCKS + block % ROW_BLOCKS)
    }
}

impl BlockRow {
    const fn has(&self, block: u32) -> bool {
        self.held >> (block % ROW_BLOCKS) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random uses and releases, compared with a simple reference model.
    #[test]
    fn what_was_released_longest_ago_goes_first() {
        let mut held = CacheBlocks::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut used: Vec<(u32, BlockSlot)> = Vec::new();
        let mut idle: Vec<u32> = Vec::new();
        for _ in 0..20_000 {
            match random.u32(..5) {
                0 => assert_eq!(held.evict(), (!idle.is_empty()).then(|| idle.remove(0))),
                1 | 2 if !used.is_empty() => {
                    let (block, slot) = used.swap_remove(random.usize(..used.len()));
                    held.release(slot);
                    if used.iter().all(|(other, _)| *other != block) {
                        idle.push(block);
                    }
                }
                _ => {
                    let block = random.u32(..200);
                    let was_held = idle.contains(&block) || used.iter().any(|u| u.0 == block);
                    assert_eq!(held.contains(block), was_held);
                    let (slot, is_new) = held.hold(block);
                    assert_eq!((held.block(slot), is_new), (block, !was_held));
                    idle.retain(|other| *other != block);
                    used.push((block, slot));
                }
            }
            let mut all: Vec<u32> = used.iter().map(|(block, _)| *block).collect();
            all.extend(&idle);
            all.sort_unstable();
            all.dedup();
            assert_eq!((held.count(), held.idle_count()), (all.len(), idle.len()));
            let mut found = Vec::new();
            held.prefix(all.iter().copied().chain([1_000]), &mut found);
            let found: Vec<u32> = found.into_iter().map(|slot| held.block(slot)).collect();
            assert_eq!(found, all);
        }
    }
}

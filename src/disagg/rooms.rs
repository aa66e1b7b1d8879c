//! Rooms that connect the two legs of an SGLang request.
//!
//! A room is the number of a transfer at both engines (SGLang 0.5.23,
//! `disaggregation/common/conn.py`). The engine computes the prefill worker's data-parallel rank as
//! `room % dp_size`. Room 0 means "not assigned yet", and SGLang's Rust server refuses numbers from
//! 2^63 on. A decode worker has a single table of rooms for all prefill workers, so a room must be
//! free everywhere, not only at its prefill worker.
//!
//! Rooms are drawn in slots of [`SLOT_ROOMS`] numbers. A shard has 2^47 slots of its own, starts at
//! a random slot, and takes the next slot for each draw. So a process repeats a number only after
//! 2^47 draws, whatever the workers' sizes. Replicas and later processes start at other slots.

use forebay_base::ShardIndex;
use forebay_base::limits::{SHARDS_MAX, SPLIT_ITEMS_MAX};

/// Numbers in a slot: the largest number of ranks, so that every slot has a room for each rank.
const SLOT_ROOMS: u64 = 1_024;
/// Number of slots of a shard.
const SHARD_SLOTS: u64 = 1 << 47;

const _: () = assert!((SHARDS_MAX as u64) * SHARD_SLOTS * SLOT_ROOMS == 1 << 63);

/// Kind of a request's rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomShape {
    /// The first room; the engine counts up from it for further samples.
    Range,
    /// A room for each prompt, all of the same rank.
    List,
}

/// Number and kind of the rooms that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomRequest {
    /// From 1 to [`SPLIT_ITEMS_MAX`], inclusive.
    pub count: u32,
    pub shape: RoomShape,
}

/// The rooms of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomSet {
    first: u64,
    step: u64,
    count: u32,
    shape: RoomShape,
}

impl RoomSet {
    /// The first or only room.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How the body specifies the rooms.
    #[must_use]
    pub fn shape(&self) -> RoomShape {
        self.shape
    }

    /// All rooms that the engines may use.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { first, step, count, .. } = *self;
        (0..u64::from(count)).map(move |item| first + item * step)
    }
}

/// Draws the rooms of a shard.
#[derive(Debug)]
pub struct Rooms {
    /// First slot of the shard.
    base: u64,
    /// Next slot of the shard, below [`SHARD_SLOTS`].
    next: u64,
}

impl Rooms {
    /// Rooms of a shard, from a random `start`.
    #[must_use]
    pub fn new(shard: ShardIndex, start: u64) -> Self {
        forebay_base::invariant!(
            shard.index() < SHARDS_MAX,
            Self { base: 0, next: start % SHARD_SLOTS }
        );
        Self { base: u64::from(shard.0) * SHARD_SLOTS, next: start % SHARD_SLOTS }
    }

    /// Draws rooms for rank `dp_rank` of a prefill worker with `dp_size` ranks. The first room, and
    /// in a list every room, has `room % dp_size == dp_rank`. All rooms are from 1 to 2^63 - 1.
    pub fn draw(&mut self, dp_size: u32, dp_rank: u32, wanted: RoomRequest) -> RoomSet {
        let dp_size = u64::from(dp_size.max(1));
        let count = wanted.count.clamp(1, SPLIT_ITEMS_MAX);
        let step = match wanted.shape {
            RoomShape::Range => 1,
            RoomShape::List => dp_size,
        };
        // The first room of the rank is at most `dp_size - 1` behind the start of the slot.
        let slots = (dp_size + u64::from(count - 1) * step).div_ceil(SLOT_ROOMS);
        let begins = (self.base + self.take(slots)) * SLOT_ROOMS;
        let ahead = (u64::from(dp_rank) % dp_size + dp_size - begins % dp_size) % dp_size;
        RoomSet { first: begins + ahead, step, count, shape: wanted.shape }
    }

    /// Takes slots in a row, and returns the number of the first. Slot 0 of a shard is never taken,
    /// because it contains room 0.
    fn take(&mut self, slots: u64) -> u64 {
        let first = if self.next == 0 || self.next + slots > SHARD_SLOTS { 1 } else { self.next };
        self.next = (first + slots) % SHARD_SLOTS;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const ONE: RoomRequest = RoomRequest { count: 1, shape: RoomShape::Range };

    fn list(count: u32) -> RoomRequest {
        RoomRequest { count, shape: RoomShape::List }
    }

    /// Figure of row D2: a million draws, each of the right rank, and no room twice.
    #[test]
    fn a_million_rooms_are_of_their_rank_and_of_nobody_else() {
        let mut shards: Vec<Rooms> =
            (0..4).map(|shard| Rooms::new(ShardIndex(shard), 77 + u64::from(shard))).collect();
        let mut live = HashSet::with_capacity(1_500_000);
        for draw in 0..1_000_000_u32 {
            let dp_size = draw % 64 + 1;
            let dp_rank = draw / 64 % dp_size;
            let wanted = match draw % 16 {
                5 => RoomRequest { count: draw % 7 + 1, shape: RoomShape::Range },
                9 => list(draw % 5 + 1),
                _ => ONE,
            };
            let shard = &mut shards[(draw % 4) as usize];
            let rooms = shard.draw(dp_size, dp_rank, wanted);
            assert_eq!(rooms.first() % u64::from(dp_size), u64::from(dp_rank));
            assert_eq!(rooms.iter().count(), wanted.count as usize);
            for room in rooms.iter() {
                assert!(live.insert(room), "room {room} is given out twice");
            }
        }
    }

    #[test]
    fn a_list_is_all_of_one_rank_and_a_range_is_in_a_row() {
        let mut rooms = Rooms::new(ShardIndex(1), 9);
        let listed: Vec<u64> = rooms.draw(3, 2, list(5)).iter().collect();
        assert!(listed.iter().all(|room| room % 3 == 2));
        assert!(listed.windows(2).all(|pair| pair[1] == pair[0] + 3));
        let wanted = RoomRequest { count: 3, shape: RoomShape::Range };
        let range: Vec<u64> = rooms.draw(8, 5, wanted).iter().collect();
        assert_eq!(range, [range[0], range[0] + 1, range[0] + 2]);
        assert_eq!(range[0] % 8, 5);
    }

    #[test]
    fn the_end_of_the_slots_leads_to_their_beginning_and_not_to_room_0() {
        for start in [SHARD_SLOTS - 2, SHARD_SLOTS - 1, 0, 1, u64::MAX] {
            for shard in [0, SHARDS_MAX - 1] {
                let shard = ShardIndex(u16::try_from(shard).unwrap());
                let mut rooms = Rooms::new(shard, start);
                let mut seen = HashSet::new();
                for draw in 0..6 {
                    let wanted = if draw == 1 { list(SPLIT_ITEMS_MAX) } else { ONE };
                    let drawn = rooms.draw(1_024, 1_023, wanted);
                    for room in drawn.iter() {
                        assert!((1..1 << 63).contains(&room), "{room}");
                        assert_eq!(room / SLOT_ROOMS / SHARD_SLOTS, u64::from(shard.0));
                        assert!(seen.insert(room));
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn rooms_are_in_bounds_and_of_their_rank(
            shard in 0..u16::try_from(SHARDS_MAX).unwrap(),
            start: u64,
            draws in proptest::collection::vec(
                (0_u32..=1_024, 0_u32..=1_024, 0_u32..6_000, any::<bool>()),
                1..40,
            ),
        ) {
            let mut rooms = Rooms::new(ShardIndex(shard), start);
            let mut seen = HashSet::new();
            for (dp_size, dp_rank, count, listed) in draws {
                let shape = if listed { RoomShape::List } else { RoomShape::Range };
                let drawn = rooms.draw(dp_size, dp_rank, RoomRequest { count, shape });
                let dp_size = u64::from(dp_size.max(1));
                let dp_rank = u64::from(dp_rank);
                prop_assert_eq!(drawn.first() % dp_size, dp_rank % dp_size);
                for room in drawn.iter() {
                    prop_assert!((1..1 << 63).contains(&room));
                    prop_assert!(!listed || room % dp_size == dp_rank % dp_size);
                    prop_assert!(seen.insert(room));
                }
            }
        }

        /// Sizes that no fleet has: nothing overflows.
        #[test]
        fn any_numbers_are_taken(start: u64, dp_size: u32, dp_rank: u32, count: u32) {
            let mut rooms = Rooms::new(ShardIndex(63), start);
            for shape in [RoomShape::List, RoomShape::Range] {
                let drawn = rooms.draw(dp_size, dp_rank, RoomRequest { count, shape });
                prop_assert!(drawn.iter().all(|room| (1..1 << 63).contains(&room)));
            }
        }
    }
}

//! A rank that is there, and is given nothing for now.

use super::load::RoomLimits;

impl RoomLimits {
    /// Of a rank that is given nothing for now, for which requests wait: -1 places, as it were.
    pub const CLOSED: Self = Self { places_max: u32::MAX, kv_tokens_max: 0, prefill_tokens_max: 0 };

    /// Most places of a rank that is not closed.
    pub const PLACES_MAX: u32 = u32::MAX >> 1;

    /// Do these limits give nothing for now?
    #[must_use]
    pub const fn is_closed(self) -> bool {
        self.places_max == u32::MAX
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::RoomLimits;
    use crate::worker::{RankLoad, RoomWanted};
    use forebay_base::{ModelIndex, NanosSinceStart};

    #[test]
    fn a_closed_room_takes_nobody_and_the_widest_takes_all() {
        let (load, wanted) = (RankLoad::default(), RoomWanted::default());
        assert!(!load.has_room(RoomLimits::CLOSED, wanted));
        assert_eq!(load.try_acquire(RoomLimits::CLOSED, wanted), None);
        load.refused(ModelIndex(0), NanosSinceStart(0));
        assert_eq!(load.room_at(RoomLimits::CLOSED, None, NanosSinceStart(1)), RoomLimits::CLOSED);
        let widest = RoomLimits { places_max: RoomLimits::PLACES_MAX, ..RoomLimits::default() };
        assert!(load.try_acquire(widest, wanted).is_some());
        assert!(load.has_room(widest, wanted) && !load.has_room(RoomLimits::CLOSED, wanted));
    }
}

//! How much a rank may be given, and what a request takes of it.

use forebay_config::QueueMode;

/// How much a rank may be given. In all three 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomLimits {
    /// Requests in flight.
    pub places_max: u32,
    /// Tokens that they hold in the KV cache. A request that wants more than this in all takes what
    /// is left of it.
    pub kv_tokens_max: u64,
    /// Prompt tokens yet to be computed; reached, no further request comes. See
    /// [`Self::PREFILL_BY_SPEED`].
    pub prefill_tokens_max: u64,
}

/// What a request takes of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomWanted {
    /// Tokens that it adds to the KV cache.
    pub kv_tokens: u64,
    /// Prompt tokens to compute.
    pub prefill_tokens: u64,
}

impl RoomLimits {
    /// As many prompt tokens as [`RankPast::prefill_room`](super::RankPast::prefill_room) says.
    pub const PREFILL_BY_SPEED: u64 = u64::MAX;

    /// The limit of prompt tokens as people see it; 0: none, also while a speed is not known.
    #[must_use]
    pub const fn prefill_tokens_shown(self) -> u64 {
        if self.prefill_tokens_max == Self::PREFILL_BY_SPEED { 0 } else { self.prefill_tokens_max }
    }

    /// Limit of the prompt tokens yet to be computed: the configured one, else by the rank's speed.
    /// Where no queue keeps what the limit holds up, there is none by default.
    #[must_use]
    pub fn prefill_tokens_max(configured: Option<u32>, mode: QueueMode) -> u64 {
        let default = if mode == QueueMode::Off { 0 } else { Self::PREFILL_BY_SPEED };
        configured.map_or(default, u64::from)
    }

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
        let load = RankLoad::default();
        let wanted = RoomWanted::default();
        assert!(!load.has_room(RoomLimits::CLOSED, wanted));
        assert_eq!(load.try_acquire(RoomLimits::CLOSED, wanted), None);
        load.refused(ModelIndex(0), NanosSinceStart(0));
        assert_eq!(load.room_at(RoomLimits::CLOSED, None, NanosSinceStart(1)), RoomLimits::CLOSED);
        let widest = RoomLimits { places_max: RoomLimits::PLACES_MAX, ..RoomLimits::default() };
        assert!(load.try_acquire(widest, wanted).is_some());
        assert!(load.has_room(widest, wanted) && !load.has_room(RoomLimits::CLOSED, wanted));
    }
}

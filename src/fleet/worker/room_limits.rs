//! Limits of a rank, and the room that a request takes of them.

use forebay_config::QueueMode;

/// Limits of a rank. In all three, 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomLimits {
    /// Most requests in flight.
    pub places_max: u32,
    /// Tokens that these requests hold in the KV cache. A request that needs more than this limit
    /// takes the tokens that are left.
    pub kv_tokens_max: u64,
    /// Prompt tokens yet to be computed; at the limit, the rank gets no further request. See
    /// [`Self::PREFILL_BY_SPEED`].
    pub prefill_tokens_max: u64,
}

/// Room that a request takes on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomDemand {
    /// Tokens that the request adds to the KV cache.
    pub kv_tokens: u64,
    /// Prompt tokens to compute.
    pub prefill_tokens: u64,
}

impl RoomLimits {
    /// The limit is `RankPast::prefill_room` of `forebay_board`.
    pub const PREFILL_BY_SPEED: u64 = u64::MAX;

    /// The limit of prompt tokens for people; 0: none, or the speed is not known.
    #[must_use]
    pub const fn prefill_tokens_shown(self) -> u64 {
        if self.prefill_tokens_max == Self::PREFILL_BY_SPEED { 0 } else { self.prefill_tokens_max }
    }

    /// Limit of the prompt tokens yet to be computed: the configured limit, else by the rank's
    /// speed. Without a queue to hold requests back, there is no default limit.
    #[must_use]
    pub fn prefill_tokens_max(configured: Option<u32>, mode: QueueMode) -> u64 {
        let default = if mode == QueueMode::Off { 0 } else { Self::PREFILL_BY_SPEED };
        configured.map_or(default, u64::from)
    }

    /// Limits of a rank that gets no requests for now, but has a queue: -1 places, in effect.
    pub const CLOSED: Self = Self { places_max: u32::MAX, kv_tokens_max: 0, prefill_tokens_max: 0 };

    /// Most places of a rank that is not closed.
    pub const PLACES_MAX: u32 = u32::MAX >> 1;

    /// Does the rank get no requests for now?
    #[must_use]
    pub const fn is_closed(self) -> bool {
        self.places_max == u32::MAX
    }
}

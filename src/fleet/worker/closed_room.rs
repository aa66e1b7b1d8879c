//! A rank that is there, and is given nothing for now.

use super::load::RoomLimits;

impl RoomLimits {
    /// Of a rank that is given nothing for now, for which requests wait.
    pub const CLOSED: Self = Self { places_max: u32::MAX, kv_tokens_max: 0, prefill_tokens_max: 0 };

    /// Do these limits give nothing for now?
    #[must_use]
    pub const fn is_closed(self) -> bool {
        self.places_max == u32::MAX
    }
}

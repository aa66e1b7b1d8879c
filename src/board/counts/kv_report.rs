//! KV tokens in use on a rank, as its engine reports. Replicas compare the figure with the tokens
//! that they count together.

use crate::LoadReading;
use forebay_base::NanosSinceStart;
use forebay_ring::sync::{AtomicU64, Ordering};

/// The last report of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvReport {
    /// Tokens that live requests hold. What requests share counts once.
    pub used_tokens: u64,
    pub at: NanosSinceStart,
}

/// The cell of a rank. Only the control plane's thread writes and reads it.
#[derive(Debug, Default)]
pub(crate) struct KvReportCell {
    used_tokens: AtomicU64,
    /// Time of the report; 0: none yet.
    at_ns: AtomicU64,
}

impl KvReportCell {
    /// Stores a reading, if it has the tokens in use.
    pub(crate) fn take(&self, reading: &LoadReading, now: NanosSinceStart) {
        let Some(used_tokens) = reading.used_tokens else { return };
        // ordering: the same thread reads both words; pairs with nothing.
        self.used_tokens.store(used_tokens, Ordering::Relaxed);
        // ordering: as above.
        self.at_ns.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn newest(&self) -> Option<KvReport> {
        // ordering: as in `take`.
        let at = NanosSinceStart(self.at_ns.load(Ordering::Relaxed));
        // ordering: as in `take`.
        let used_tokens = self.used_tokens.load(Ordering::Relaxed);
        (at.0 > 0).then_some(KvReport { used_tokens, at })
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    #[test]
    fn a_reading_without_tokens_leaves_the_last_report() {
        let cell = KvReportCell::default();
        assert_eq!(cell.newest(), None);
        let reading = LoadReading { used_tokens: Some(700), ..LoadReading::default() };
        cell.take(&reading, NanosSinceStart(5));
        cell.take(&LoadReading::default(), NanosSinceStart(9));
        assert_eq!(cell.newest(), Some(KvReport { used_tokens: 700, at: NanosSinceStart(5) }));
    }
}

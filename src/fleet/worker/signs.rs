//! What shards see of a worker on the way of its answers, for the control plane. Each sign stands
//! until it is taken.

use forebay_ring::sync::{AtomicU32, Ordering};

const SUSPECT: u32 = 1;
const ALIVE: u32 = 1 << 1;

/// Signs of one worker.
#[derive(Debug, Default)]
pub struct WorkerSigns(AtomicU32);

impl WorkerSigns {
    /// A connection to the worker broke, or the worker does not know a model: it may have been
    /// restarted.
    pub fn suspect(&self) {
        self.give(SUSPECT);
    }

    /// True once after [`Self::suspect`].
    #[must_use]
    pub fn take_suspicion(&self) -> bool {
        self.take(SUSPECT)
    }

    /// Bytes of answers have come from the worker.
    pub fn show_life(&self) {
        self.give(ALIVE);
    }

    /// True once after [`Self::show_life`].
    #[must_use]
    pub fn take_life(&self) -> bool {
        self.take(ALIVE)
    }

    fn give(&self, sign: u32) {
        // ordering: a hint; pairs with `take` on the same word only. The load spares the line a
        // write where the sign stands already.
        if self.0.load(Ordering::Relaxed) & sign == 0 {
            // ordering: as above.
            self.0.fetch_or(sign, Ordering::Relaxed);
        }
    }

    fn take(&self, sign: u32) -> bool {
        // ordering: as in `give`.
        let stands = self.0.load(Ordering::Relaxed) & sign != 0;
        // ordering: as above.
        stands && self.0.fetch_and(!sign, Ordering::Relaxed) & sign != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_is_taken_once_and_by_itself() {
        let signs = WorkerSigns::default();
        assert!(!signs.take_life() && !signs.take_suspicion());
        signs.show_life();
        signs.show_life();
        signs.suspect();
        assert!(signs.take_life() && !signs.take_life());
        assert!(signs.take_suspicion() && !signs.take_suspicion());
    }
}

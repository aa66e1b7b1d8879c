//! Signs of a rank's and its worker's state that shards see in answers, for the control plane. A
//! sign stays set until the control plane takes it.

use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};

const SUSPECT: u32 = 1;
const ALIVE: u32 = 1 << 1;
const ANSWERS: u32 = 1 << 2;
const AWAITED: u32 = 1 << 3;
const SERVED: u32 = 1 << 4;
const SERVED_BEFORE: u32 = 1 << 5;

/// Signs of a rank.
#[derive(Debug, Default)]
pub struct RankSigns {
    signs: AtomicU32,
    /// The words of [`FirstBytes`].
    first_byte_count: AtomicU32,
    first_byte_us: AtomicU64,
    first_byte_tokens: AtomicU64,
}

/// First bytes of streams, and their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstBytes {
    /// Streams with a first byte.
    pub count: u32,
    /// Sum of the times from the request sent to the first byte of the answer's body.
    pub waited_us: u64,
    /// Prompt tokens that the rank had yet to compute when each was sent, its own included.
    pub tokens: u64,
}

impl FirstBytes {
    /// The sum of both.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            count: self.count.saturating_add(more.count),
            waited_us: self.waited_us.saturating_add(more.waited_us),
            tokens: self.tokens.saturating_add(more.tokens),
        }
    }
}

impl RankSigns {
    /// A connection to the worker broke, or the worker does not list a model: it may have been
    /// restarted.
    pub fn suspect(&self) {
        self.give(SUSPECT);
    }

    /// True once after [`Self::suspect`].
    #[must_use]
    pub fn take_suspicion(&self) -> bool {
        self.take(SUSPECT)
    }

    /// Bytes of answers have arrived from the worker.
    pub fn show_life(&self) {
        self.give(ALIVE);
    }

    /// True once after [`Self::show_life`].
    #[must_use]
    pub fn take_life(&self) -> bool {
        self.take(ALIVE)
    }

    /// The rank's engine has answered: bytes of bodies have arrived.
    pub fn show_answers(&self) {
        self.give(ANSWERS);
    }

    /// True once after [`Self::show_answers`].
    #[must_use]
    pub fn take_answers(&self) -> bool {
        self.take(ANSWERS)
    }

    /// The rank has served a request after failures.
    pub fn show_served(&self) {
        self.give(SERVED);
    }

    /// True once after [`Self::show_served`].
    #[must_use]
    pub fn take_served(&self) -> bool {
        self.take(SERVED)
    }

    /// The rank has served a request, with or without failures before it.
    #[inline]
    pub fn show_service(&self) {
        self.give(SERVED_BEFORE);
    }

    /// Has the rank served a request since its engine began?
    #[must_use]
    pub fn has_served(&self) -> bool {
        // ordering: as in `give`.
        self.signs.load(Ordering::Relaxed) & SERVED_BEFORE != 0
    }

    /// Another engine may answer at the address.
    pub fn forget_service(&self) {
        let _ = self.take(SERVED_BEFORE);
    }

    /// Streams wait for the first byte of their body. Called repeatedly while they wait.
    pub fn show_awaited(&self) {
        self.give(AWAITED);
    }

    /// True once after [`Self::show_awaited`].
    #[must_use]
    pub fn take_awaited(&self) -> bool {
        self.take(AWAITED)
    }

    /// Adds first bytes that have arrived.
    pub fn add_first_bytes(&self, more: FirstBytes) {
        // ordering: three sums that publish nothing; pair with `take_first_bytes`.
        self.first_byte_us.fetch_add(more.waited_us, Ordering::Relaxed);
        // ordering: as above.
        self.first_byte_tokens.fetch_add(more.tokens, Ordering::Relaxed);
        // ordering: as above. A first byte that is taken between two stores counts in two takes.
        self.first_byte_count.fetch_add(more.count, Ordering::Relaxed);
    }

    /// First bytes that have arrived since the last call.
    #[must_use]
    pub fn take_first_bytes(&self) -> FirstBytes {
        // ordering: as in `add_first_bytes`. The load avoids a write to the line if there were
        // none.
        if self.first_byte_count.load(Ordering::Relaxed) == 0 {
            return FirstBytes::default();
        }
        FirstBytes {
            // ordering: as above.
            count: self.first_byte_count.swap(0, Ordering::Relaxed),
            // ordering: as above.
            waited_us: self.first_byte_us.swap(0, Ordering::Relaxed),
            // ordering: as above.
            tokens: self.first_byte_tokens.swap(0, Ordering::Relaxed),
        }
    }

    fn give(&self, sign: u32) {
        // ordering: a hint; pairs with `take` on the same word only. The load avoids a write to the
        // line if the sign is set already.
        if self.signs.load(Ordering::Relaxed) & sign == 0 {
            // ordering: as above.
            self.signs.fetch_or(sign, Ordering::Relaxed);
        }
    }

    fn take(&self, sign: u32) -> bool {
        // ordering: as in `give`.
        let stands = self.signs.load(Ordering::Relaxed) & sign != 0;
        // ordering: as above.
        stands && self.signs.fetch_and(!sign, Ordering::Relaxed) & sign != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_is_taken_once_and_by_itself() {
        let signs = RankSigns::default();
        assert!(!signs.take_life() && !signs.take_suspicion());
        signs.show_life();
        signs.show_life();
        signs.suspect();
        signs.show_awaited();
        assert!(signs.take_life() && !signs.take_life());
        assert!(signs.take_suspicion() && !signs.take_suspicion());
        assert!(!signs.take_answers() && signs.take_awaited() && !signs.take_awaited());
    }

    #[test]
    fn first_bytes_are_taken_once() {
        let signs = RankSigns::default();
        let one = FirstBytes { count: 1, waited_us: 20, tokens: 300 };
        signs.add_first_bytes(one);
        signs.add_first_bytes(one);
        assert_eq!(signs.take_first_bytes(), one.plus(one));
        assert_eq!(signs.take_first_bytes(), FirstBytes::default());
    }
}

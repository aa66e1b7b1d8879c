//! Prompts of answers without a stream, by rank: the router cannot see their first tokens. A prompt
//! is stored here from its departure until it counts as computed. Shards enter and remove their
//! prompts; shards and the control plane pass the oldest. No lock: each slot is a word, and the
//! thread that clears a slot subtracts its tokens from the rank's sum.

use forebay_ring::sync::{AtomicU32, AtomicU64, Ordering};
use std::num::NonZeroU64;

/// Prompts of a rank that can be passed. Further prompts count until their answers.
const SLOTS: u32 = if cfg!(feature = "loom") { 2 } else { 256 };
const _: () = assert!(SLOTS.is_power_of_two());
/// Marks a taken slot. Below it are the prompt's number, and below that its tokens.
const TAKEN: NonZeroU64 = match NonZeroU64::new(1 << 63) {
    Some(bit) => bit,
    None => NonZeroU64::MIN,
};
/// Bits of a prompt number.
const NUMBER_BITS: u32 = 23;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const TOKEN_BITS: u32 = 40;
const TOKENS_MASK: u64 = (1 << TOKEN_BITS) - 1;
const _: () = assert!(TOKEN_BITS + NUMBER_BITS < u64::BITS && SLOTS < 1 << NUMBER_BITS);

/// The prompts of a rank.
#[derive(Debug)]
pub struct UnstreamedPrompts {
    slots: [AtomicU64; SLOTS as usize],
    /// No prompt in a slot has a lower number, except a prompt that was entered late.
    oldest: AtomicU32,
}

/// The number of a prompt of its rank, in the order of sending. It wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptNumber(u32);

/// A slot that a prompt has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSlot(NonZeroU64);

/// Prompts that were passed: they count as computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedPrompts {
    pub count: u32,
    /// Their tokens that the rank had to compute.
    pub tokens: u64,
}

impl Default for UnstreamedPrompts {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| AtomicU64::new(0)), oldest: AtomicU32::new(0) }
    }
}

impl PromptNumber {
    /// The number of the next prompt after `count` prompts.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
    pub const fn new(count: u64) -> Self {
        Self(count as u32 & NUMBER_MASK)
    }

    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & NUMBER_MASK)
    }

    const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & NUMBER_MASK)
    }

    /// Distance from an earlier number.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & NUMBER_MASK
    }
}

impl PromptSlot {
    fn new(number: PromptNumber, tokens: u64) -> Self {
        Self(TAKEN | u64::from(number.0) << TOKEN_BITS | tokens & TOKENS_MASK)
    }

    const fn number(self) -> PromptNumber {
        PromptNumber::new(self.0.get() >> TOKEN_BITS)
    }

    const fn tokens(self) -> u64 {
        self.0.get() & TOKENS_MASK
    }
}

impl UnstreamedPrompts {
    /// Enters a prompt. Numbers of a rank rise by 1. `None`: there is no room.
    pub fn enter(&self, number: PromptNumber, tokens: u64) -> Option<PromptSlot> {
        let slot = PromptSlot::new(number, tokens);
        let place = self.slot(slot.number())?;
        // ordering: a hint where to begin; pairs with nothing.
        let oldest = PromptNumber(self.oldest.load(Ordering::Relaxed));
        if number.since(oldest) > SLOTS {
            // ordering: as above.
            self.oldest.store(number.minus(SLOTS).0, Ordering::Relaxed);
        }
        // ordering: Release; pairs with the exchange in `remove`: the tokens were added to the sums
        // of the rank before another thread subtracts them. Model: tests/loom/unstreamed.rs,
        // `tokens_of_a_passed_prompt_are_taken_off_once`.
        let taken = place.compare_exchange(0, slot.0.get(), Ordering::Release, Ordering::Relaxed);
        taken.is_ok().then_some(slot)
    }

    /// Clears the slot of a prompt. False: the prompt was passed.
    pub fn remove(&self, slot: PromptSlot) -> bool {
        // ordering: Acquire; pairs with the exchange in `enter`. Of several threads that clear a
        // slot, only the first succeeds.
        self.slot(slot.number()).is_some_and(|place| {
            place.compare_exchange(slot.0.get(), 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Is the prompt still waiting, and not passed?
    #[must_use]
    pub fn waits(&self, slot: PromptSlot) -> bool {
        // ordering: a hint; pairs with nothing.
        self.slot(slot.number()).is_some_and(|place| place.load(Ordering::Relaxed) == slot.0.get())
    }

    /// Passes the oldest prompts with numbers below `end`, at most `count_max`. A prompt that was
    /// sent more than [`SLOTS`] before `end` is not passed.
    pub fn pass(&self, end: PromptNumber, count_max: u32) -> PassedPrompts {
        let mut passed = PassedPrompts::default();
        // ordering: a hint where to begin; pairs with nothing.
        let oldest = PromptNumber(self.oldest.load(Ordering::Relaxed));
        let distance = end.since(oldest);
        if distance > NUMBER_MASK / 2 {
            // Later prompts have been passed.
            return passed;
        }
        let mut left = distance.min(SLOTS);
        while left > 0 && passed.count < count_max {
            let number = end.minus(left);
            left -= 1;
            let Some(place) = self.slot(number) else { break };
            // ordering: as in `enter`.
            let slot = NonZeroU64::new(place.load(Ordering::Relaxed)).map(PromptSlot);
            if let Some(slot) = slot.filter(|slot| slot.number() == number && self.remove(*slot)) {
                passed.count += 1;
                passed.tokens += slot.tokens();
            }
        }
        let next = end.minus(left);
        if next != oldest {
            // ordering: a hint; of two simultaneous passes the lower number may stay, and its slots
            // are read again.
            self.oldest.store(next.0, Ordering::Relaxed);
        }
        passed
    }

    fn slot(&self, number: PromptNumber) -> Option<&AtomicU64> {
        self.slots.get((number.0 % SLOTS) as usize)
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    fn number(count: u64) -> PromptNumber {
        PromptNumber::new(count)
    }

    #[test]
    fn the_oldest_are_passed_once() {
        let prompts = UnstreamedPrompts::default();
        let slots = [3, 5, 6].map(|at| prompts.enter(number(at), at * 10).unwrap());
        assert_eq!(prompts.pass(number(5), 9), PassedPrompts { count: 1, tokens: 30 });
        assert!(!prompts.remove(slots[0]) && prompts.waits(slots[1]));
        assert_eq!(prompts.pass(number(3), 9), PassedPrompts::default(), "it came late");
        assert!(prompts.remove(slots[1]) && !prompts.remove(slots[1]), "its answer has come");
        let last = prompts.enter(number(7), 70).unwrap();
        assert_eq!(prompts.pass(number(8), 1), PassedPrompts { count: 1, tokens: 60 });
        assert!(prompts.waits(last));
        assert_eq!(prompts.pass(number(8), 0), PassedPrompts::default());
        assert_eq!(prompts.pass(number(8), 1), PassedPrompts { count: 1, tokens: 70 });
    }

    #[test]
    fn numbers_wrap_and_streams_between_do_not_matter() {
        let prompts = UnstreamedPrompts::default();
        for begin in [5_000_000_u64, (1 << NUMBER_BITS) - 2, 1 << 40] {
            for at in begin..begin + 4 {
                prompts.enter(number(at), 1).unwrap();
            }
            assert_eq!(prompts.pass(number(begin + 4), 9).count, 4, "{begin}");
        }
        assert_eq!(number(1 << NUMBER_BITS), number(0));
        assert_eq!(number(1).since(number((1 << NUMBER_BITS) - 1)), 2);
    }

    /// A prompt without a slot, or an older prompt, is passed when its answer comes.
    #[test]
    fn what_finds_no_slot_is_not_passed() {
        let prompts = UnstreamedPrompts::default();
        let all = u64::from(SLOTS);
        let first = prompts.enter(number(0), 1).unwrap();
        assert_eq!(prompts.enter(number(all), 1), None, "the slot is taken");
        let later = prompts.enter(number(all + 1), 1).unwrap();
        assert_eq!(prompts.pass(number(all + 2), 9).count, 1);
        assert!(prompts.waits(first) && !prompts.waits(later));
        assert!(prompts.remove(first));
        assert!(prompts.enter(number(2 * all), 1).is_some());
    }

    #[test]
    fn threads_pass_each_prompt_once() {
        let prompts = UnstreamedPrompts::default();
        let count = 20_000_u64;
        let passed: u64 = std::thread::scope(|scope| {
            let pass = |_| {
                scope.spawn(|| (0..count).map(|at| prompts.pass(number(at), 3).tokens).sum::<u64>())
            };
            let threads: Vec<_> = (0..2).map(pass).collect();
            let own: u64 = (0..count)
                .filter_map(|at| prompts.enter(number(at), 1))
                .filter(|slot| slot.tokens() == 1 && slot.0.get() & 1 << TOKEN_BITS == 0)
                .map(|slot| u64::from(prompts.remove(slot)))
                .sum();
            own + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        let left = prompts.slots.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0).count();
        assert!(passed + left as u64 <= count && passed > 0, "{passed} {left}");
    }
}

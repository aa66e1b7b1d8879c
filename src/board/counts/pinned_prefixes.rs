//! Prefixes that requests in flight on a rank hold in its KV cache. Several requests with a common
//! prefix share it: its tokens count once, from the start of the first request to the end of the
//! last.
//!
//! Each prefix has a slot with a name, a count of requests, and the tokens between it and the next
//! shorter prefix. A prefix without a slot is not shared: each request counts its tokens
//! separately.

use forebay_index::{MARKS_MAX, PrefixMarks};
use forebay_ring::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// A loom model has few slots.
const SLOTS: usize = if cfg!(feature = "loom") { 2 } else { 1 << 13 };
/// Slots that a name may use.
const WINDOW: usize = if cfg!(feature = "loom") { 2 } else { 4 };
/// Bits of a slot's number in its window.
const PLACE_BITS: usize = 2;
const _: () = assert!(WINDOW <= 1 << PLACE_BITS && MARKS_MAX * PLACE_BITS <= 128);
const _: () = assert!(MARKS_MAX <= 64);
const COUNT_BITS: u32 = 12;
const TOKENS_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const TOKENS_MAX: u64 = (1 << TOKENS_BITS) - 1;
/// Lost races for a slot before a prefix counts as not shared.
const TRIES: usize = 64;

/// The prefixes in use on a rank.
#[derive(Debug, Default)]
pub struct PinnedPrefixes {
    /// Allocated with the first prefix: most ranks of a board are never used.
    slots: OnceLock<Box<[AtomicU64]>>,
}

/// Prefixes that a request has pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixPins {
    /// A bit for each prefix that has a slot.
    slots: u64,
    /// Number of each prefix's slot in its window, in [`PLACE_BITS`].
    places: u128,
    /// Tokens of these prefixes.
    pub tokens: u64,
    /// Tokens of these prefixes that no other request had pinned.
    pub new_tokens: u64,
}

impl PrefixPins {
    /// Is no prefix pinned?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots == 0
    }
}

/// The word of a slot.
#[derive(Clone, Copy)]
struct PrefixSlot(u64);

impl PrefixSlot {
    const FREE: Self = Self(0);

    const fn first(name: u64, tokens: u64) -> Self {
        Self(name_bits(name) | tokens << COUNT_BITS | 1)
    }

    const fn is_of(self, name: u64) -> bool {
        self.count() > 0 && name_bits(self.0) == name_bits(name)
    }

    const fn count(self) -> u64 {
        self.0 & COUNT_MAX
    }

    const fn tokens(self) -> u64 {
        self.0 >> COUNT_BITS & TOKENS_MAX
    }

    const fn one_less(self) -> Self {
        if self.count() > 1 { Self(self.0 - 1) } else { Self::FREE }
    }
}

/// The part of a name that a slot stores.
const fn name_bits(name: u64) -> u64 {
    name >> (COUNT_BITS + TOKENS_BITS) << (COUNT_BITS + TOKENS_BITS)
}

impl PinnedPrefixes {
    /// Tokens of the prompt's longest prefix that is in use.
    #[must_use]
    pub fn shared_tokens(&self, marks: &PrefixMarks) -> u64 {
        let Some(slots) = self.slots.get() else { return 0 };
        let mut tokens = 0;
        for &name in marks.names() {
            // A hint; taking the lease decides.
            let mut found = window(slots, name).map(|slot| PrefixSlot(load(slot)));
            let Some(found) = found.find(|slot| slot.is_of(name)) else { break };
            tokens += found.tokens();
        }
        tokens
    }

    /// Pins the prefixes of a new request. `tokens` returns the tokens between a prefix, by number,
    /// and the prefix before.
    pub fn pin(&self, marks: &PrefixMarks, tokens: impl Fn(usize) -> u64) -> PrefixPins {
        let mut pinned = PrefixPins::default();
        let names = marks.names();
        if names.is_empty() {
            return pinned;
        }
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        for (number, &name) in names.iter().enumerate().take(MARKS_MAX) {
            let own_tokens = tokens(number).min(TOKENS_MAX);
            if let Some(PinnedSlot { place, tokens, is_new }) = pin_one(slots, name, own_tokens) {
                pinned.slots |= 1 << number;
                pinned.places |= u128::from(place) << (number * PLACE_BITS);
                pinned.tokens += tokens;
                pinned.new_tokens += if is_new { tokens } else { 0 };
            }
        }
        pinned
    }

    /// Unpins the prefixes of an ended request. Returns the tokens that no other request has
    /// pinned.
    pub fn unpin(&self, marks: &PrefixMarks, pinned: PrefixPins) -> u64 {
        let Some(slots) = self.slots.get() else { return 0 };
        let names = marks.names().iter().enumerate().take(MARKS_MAX);
        let own = names.filter(|(number, _)| pinned.slots >> number & 1 == 1);
        own.map(|(number, name)| {
            let place = pinned.places >> (number * PLACE_BITS) & ((1 << PLACE_BITS) - 1);
            let slot = u64::try_from(place).ok().and_then(|place| slot_at(slots, *name, place));
            slot.map_or(0, |slot| {
                debug_assert!(
                    PrefixSlot(load(slot)).is_of(*name),
                    "a prefix that nothing has pinned"
                );
                unpin_one(slot)
            })
        })
        .sum()
    }
}

fn window(slots: &[AtomicU64], name: u64) -> impl Iterator<Item = &AtomicU64> {
    (0..WINDOW as u64).filter_map(move |place| slot_at(slots, name, place))
}

/// The slot of that number in the window of a name.
#[inline]
fn slot_at(slots: &[AtomicU64], name: u64, place: u64) -> Option<&AtomicU64> {
    slots.get(usize::try_from(name.wrapping_add(place) % SLOTS as u64).ok()?)
}

/// A slot that a request has pinned.
struct PinnedSlot {
    /// Number of the slot in the window of the name.
    place: u64,
    tokens: u64,
    /// No other request has pinned the prefix.
    is_new: bool,
}

/// A slot of a window, with its word.
struct FoundSlot<'a> {
    slot: &'a AtomicU64,
    place: u64,
    word: u64,
}

impl<'a> FoundSlot<'a> {
    /// The slot of a name, else the first free slot of its window.
    #[inline]
    fn of(slots: &'a [AtomicU64], name: u64) -> Option<Self> {
        let mut free = None;
        for (slot, place) in window(slots, name).zip(0..) {
            let word = load(slot);
            if PrefixSlot(word).is_of(name) {
                return Some(Self { slot, place, word });
            }
            if free.is_none() && word == PrefixSlot::FREE.0 {
                free = Some(Self { slot, place, word });
            }
        }
        free
    }
}

fn load(slot: &AtomicU64) -> u64 {
    // ordering: a hint, or a compare-exchange decides.
    slot.load(Ordering::Relaxed)
}

/// Adds a request to the slot of a name.
fn pin_one(slots: &[AtomicU64], name: u64, tokens: u64) -> Option<PinnedSlot> {
    for _ in 0..TRIES {
        let FoundSlot { slot, place, word: before } = FoundSlot::of(slots, name)?;
        let after = match PrefixSlot(before).count() {
            0 => PrefixSlot::first(name, tokens),
            COUNT_MAX => return None,
            _ => PrefixSlot(before + 1),
        };
        // ordering: AcqRel; pairs with the exchange in `unpin_one`: the last request takes the
        // tokens off the rank's sum after the first has added them. Model: tests/loom/prefixes.rs,
        // `a_shared_prefix_counts_once`.
        let exchanged = slot.compare_exchange(before, after.0, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_ok() {
            return Some(PinnedSlot { place, tokens: after.tokens(), is_new: after.count() == 1 });
        }
    }
    None
}

/// Removes a request from a slot. Returns the tokens of the slot if it is free now. The request
/// keeps the number of its slot: two simultaneous requests may have pinned two slots of the same
/// name.
fn unpin_one(slot: &AtomicU64) -> u64 {
    let less = |word| Some(PrefixSlot(word).one_less().0);
    // ordering: AcqRel; pairs with the exchange in `pin_one`.
    let before = slot
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
        .map_or(PrefixSlot::FREE, PrefixSlot);
    if before.count() == 1 { before.tokens() } else { 0 }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use forebay_index::{BlockKey, KeySeed, RootName};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Distance of the first prefixes, in bytes.
    const STEP_BYTES: usize = 512;

    /// Marks of a prompt of such blocks: each gives a prefix.
    fn marks(blocks: &[u32]) -> PrefixMarks {
        let text: Vec<u8> =
            blocks.iter().flat_map(|block| block.to_le_bytes().repeat(STEP_BYTES / 4)).collect();
        PrefixMarks::of(BlockKey::root(KeySeed(1), &RootName::default()), &text)
    }

    /// Each prefix has a different number of tokens.
    fn tokens(number: usize) -> u64 {
        100 + number as u64
    }

    #[test]
    fn a_common_prefix_counts_from_the_first_start_to_the_last_end() {
        let pinned = PinnedPrefixes::default();
        let one = marks(&[1, 2, 3]);
        let other = marks(&[1, 2, 9, 9]);
        assert_eq!(pinned.shared_tokens(&one), 0);
        let first = pinned.pin(&one, tokens);
        assert_eq!((first.tokens, first.new_tokens), (303, 303));
        assert_eq!((pinned.shared_tokens(&one), pinned.shared_tokens(&other)), (303, 201));
        let second = pinned.pin(&other, tokens);
        assert_eq!((second.tokens, second.new_tokens), (406, 205));
        assert_eq!(pinned.unpin(&one, first), 102, "the rest is held by the other");
        assert_eq!(pinned.shared_tokens(&one), 201);
        assert_eq!(pinned.unpin(&other, second), 406);
        assert_eq!(pinned.shared_tokens(&other), 0);
    }

    #[test]
    fn what_has_no_name_is_not_shared() {
        let pinned = PinnedPrefixes::default();
        let none = pinned.pin(&PrefixMarks::NONE, tokens);
        assert_eq!((none, pinned.unpin(&PrefixMarks::NONE, none)), (PrefixPins::default(), 0));
        assert!(pinned.slots.get().is_none(), "a rank without prefixes has no slots");
    }

    /// More names than a window has slots: names without a slot count for each request.
    #[test]
    fn a_prefix_without_a_slot_counts_for_each_request() {
        let pinned = PinnedPrefixes::default();
        let first_slot = |marks: &PrefixMarks| marks.names()[0] & (SLOTS as u64 - 1);
        let colliding = (0..).map(|block| marks(&[block])).filter(|marks| first_slot(marks) == 7);
        let all: Vec<PrefixMarks> = colliding.take(WINDOW + 1).collect();
        let held: Vec<PrefixPins> = all.iter().map(|marks| pinned.pin(marks, tokens)).collect();
        let news: Vec<u64> = held.iter().map(|pinned| pinned.new_tokens).collect();
        assert_eq!(news, [100, 100, 100, 100, 0]);
        let again = pinned.pin(&all[WINDOW], tokens);
        assert_eq!((again, pinned.shared_tokens(&all[WINDOW])), (PrefixPins::default(), 0));
        let back = all.iter().zip(held).map(|(marks, held)| pinned.unpin(marks, held));
        assert_eq!(back.sum::<u64>(), 400);
    }

    #[test]
    fn a_full_count_shares_no_further() {
        let pinned = PinnedPrefixes::default();
        let one = marks(&[1]);
        let held: Vec<PrefixPins> = (0..=COUNT_MAX).map(|_| pinned.pin(&one, tokens)).collect();
        assert_eq!(held.iter().map(|pinned| pinned.new_tokens).sum::<u64>(), 100);
        assert_eq!(held.iter().filter(|pinned| pinned.tokens == 0).count(), 1);
        let back = held.into_iter().map(|held| pinned.unpin(&one, held));
        assert_eq!(back.sum::<u64>(), 100);
        assert_eq!(pinned.shared_tokens(&one), 0);
    }

    #[test]
    fn a_step_that_no_slot_can_count_is_counted_as_the_longest() {
        let pinned = PinnedPrefixes::default();
        let one = marks(&[1]);
        let held = pinned.pin(&one, |_| u64::MAX);
        assert_eq!((held.tokens, pinned.unpin(&one, held)), (TOKENS_MAX, TOKENS_MAX));
    }

    proptest! {
        /// Requests come and end in any order.
        #[test]
        fn the_sum_is_that_of_the_distinct_prefixes(
            prompts in proptest::collection::vec(proptest::collection::vec(0_u32..3, 0..7), 1..12),
            steps in proptest::collection::vec(0_usize..12, 0..60),
        ) {
            let pinned = PinnedPrefixes::default();
            let prompts: Vec<PrefixMarks> = prompts.iter().map(|blocks| marks(blocks)).collect();
            let mut held: Vec<Option<PrefixPins>> = vec![None; prompts.len()];
            let mut sum = 0_u64;
            for step in steps {
                let at = step % prompts.len();
                let prompt = &prompts[at];
                match held[at].take() {
                    Some(own) => sum -= pinned.unpin(prompt, own),
                    None => {
                        let shared = pinned.shared_tokens(prompt);
                        let own = pinned.pin(prompt, tokens);
                        prop_assert_eq!(own.tokens - own.new_tokens, shared);
                        let all: u64 = (0..prompt.names().len()).map(tokens).sum();
                        prop_assert_eq!(own.tokens, all);
                        sum += own.new_tokens;
                        held[at] = Some(own);
                    }
                }
                let running = prompts.iter().zip(&held).filter(|(_, held)| held.is_some());
                let distinct: BTreeMap<u64, u64> = running
                    .flat_map(|(prompt, _)| prompt.names().iter().copied().zip((0..).map(tokens)))
                    .collect();
                prop_assert_eq!(sum, distinct.values().sum::<u64>());
            }
            for (prompt, held) in prompts.iter().zip(held) {
                sum -= held.map_or(0, |held| pinned.unpin(prompt, held));
            }
            prop_assert_eq!(sum, 0);
            prop_assert!(prompts.iter().all(|prompt| pinned.shared_tokens(prompt) == 0));
        }
    }
}

//! Prefixes that requests in flight on one rank hold in its KV cache. Several requests with a
//! common prefix hold it together: its tokens count once, from the start of the first of them to
//! the end of the last.
//!
//! Each prefix has a slot with a name, a count of requests, and the tokens that lie between it and
//! the next shorter prefix. A prefix that finds no slot is not shared: each request counts its
//! tokens for itself.

use forebay_index::PrefixMarks;
use forebay_ring::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// A model under loom has few slots.
const SLOTS: usize = if cfg!(feature = "loom") { 2 } else { 1 << 13 };
/// Slots that a name may be in.
const WINDOW: usize = if cfg!(feature = "loom") { 2 } else { 4 };
const COUNT_BITS: u32 = 12;
const TOKENS_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const TOKENS_MAX: u64 = (1 << TOKENS_BITS) - 1;
/// Lost races for one slot before a prefix is left alone.
const TRIES: usize = 64;

/// The prefixes that are in use on one rank.
#[derive(Debug, Default)]
pub struct PinnedPrefixes {
    /// Allocated with the first prefix: most ranks of a board are never used.
    slots: OnceLock<Box<[AtomicU64]>>,
}

/// What one request has pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// A bit for each of its prefixes that has a slot.
    slots: u64,
    /// Tokens of these prefixes.
    pub tokens: u64,
    /// The part of them that no other request had pinned.
    pub new_tokens: u64,
}

/// A slot's word.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
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

/// The part of a name that a slot keeps.
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
            // ordering: a hint; taking the lease decides.
            let slot = |slot: &AtomicU64| Slot(slot.load(Ordering::Relaxed));
            let Some(found) = window(slots, name).map(slot).find(|slot| slot.is_of(name)) else {
                break;
            };
            tokens += found.tokens();
        }
        tokens
    }

    /// A request starts. `tokens` gives the tokens between the prefix of a number and the one
    /// before.
    pub fn pin(&self, marks: &PrefixMarks, tokens: impl Fn(usize) -> u64) -> Pinned {
        let mut pinned = Pinned::default();
        let names = marks.names();
        if names.is_empty() {
            return pinned;
        }
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        for (number, &name) in names.iter().enumerate().take(64) {
            let own_tokens = tokens(number).min(TOKENS_MAX);
            if let Some((tokens, is_new)) = pin_one(slots, name, own_tokens) {
                pinned.slots |= 1 << number;
                pinned.tokens += tokens;
                pinned.new_tokens += if is_new { tokens } else { 0 };
            }
        }
        pinned
    }

    /// The request has ended. Returns the tokens that no other request has pinned.
    pub fn unpin(&self, marks: &PrefixMarks, pinned: Pinned) -> u64 {
        let Some(slots) = self.slots.get() else { return 0 };
        let names = marks.names().iter().enumerate().take(64);
        let own = names.filter(|(number, _)| pinned.slots >> number & 1 == 1);
        own.map(|(_, name)| unpin_one(slots, *name)).sum()
    }
}

fn window(slots: &[AtomicU64], name: u64) -> impl Iterator<Item = &AtomicU64> {
    let first = usize::try_from(name & (SLOTS as u64 - 1)).unwrap_or(0);
    (0..WINDOW).filter_map(move |step| slots.get((first + step) % SLOTS))
}

/// Counts one request more. The tokens of the slot, and whether the request is the first.
fn pin_one(slots: &[AtomicU64], name: u64, tokens: u64) -> Option<(u64, bool)> {
    for _ in 0..TRIES {
        // ordering: the exchange below decides.
        let load = |slot: &AtomicU64| Slot(slot.load(Ordering::Relaxed));
        let of_name = window(slots, name).find(|slot| load(slot).is_of(name));
        let free = || window(slots, name).find(|slot| load(slot).0 == Slot::FREE.0);
        let slot = of_name.or_else(free)?;
        let before = load(slot);
        let after = match before.count() {
            0 if before.0 == Slot::FREE.0 => Slot::first(name, tokens),
            COUNT_MAX => return None,
            _ if before.is_of(name) => Slot(before.0 + 1),
            // Another name took the slot meanwhile.
            _ => continue,
        };
        // ordering: AcqRel; pairs with the exchange in `unpin_one`: the last request takes the
        // tokens off the rank's sum after the first has added them. Model: tests/loom/models.rs,
        // `a_shared_prefix_counts_once`.
        let exchanged =
            slot.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_ok() {
            return Some((after.tokens(), after.count() == 1));
        }
    }
    None
}

/// Counts one request less. The tokens of a slot that is free now.
fn unpin_one(slots: &[AtomicU64], name: u64) -> u64 {
    loop {
        // ordering: the exchange below decides.
        let load = |slot: &AtomicU64| Slot(slot.load(Ordering::Relaxed));
        let Some(slot) = window(slots, name).find(|slot| load(slot).is_of(name)) else {
            debug_assert!(false, "a prefix that nothing has pinned");
            return 0;
        };
        let before = load(slot);
        if !before.is_of(name) {
            continue;
        }
        let after = before.one_less();
        // ordering: AcqRel; pairs with the exchange in `pin_one`.
        let exchanged =
            slot.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_ok() {
            return if after.count() == 0 { before.tokens() } else { 0 };
        }
    }
}

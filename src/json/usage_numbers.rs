//! The numbers of a `usage`, by the names of all engines.

use forebay_base::TokenUsage;
use forebay_base::limits::USAGE_TOKENS_MAX;
use std::num::NonZeroU32;

/// Members that are read, each at its place of [`UsageNumbers`].
const NAMES: [&[u8]; 9] = [
    b"prompt_tokens",
    b"input_tokens",
    b"cached_tokens",
    b"cache_read_input_tokens",
    b"cache_creation_input_tokens",
    b"completion_tokens",
    b"output_tokens",
    b"prompt_tokens_details",
    b"input_tokens_details",
];
const CACHED_NAME: &[u8] = b"cached_tokens";
/// Places of the tokens of the answer.
const OUTPUT: std::ops::Range<usize> = 5..7;
/// From this place on the members are objects, of which `cached_tokens` is read.
const DETAILS: u8 = 7;
/// The shortest and the longest of [`NAMES`].
const NAME_BYTES: std::ops::RangeInclusive<usize> = 12..=27;

/// The numbers of an object, where the engine reports them. A number is stored plus 1 in four
/// bytes, because open streams hold the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageNumbers([Option<NonZeroU32>; NAMES.len()]);

/// The place of a member in [`UsageNumbers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberIndex(u8);

impl MemberIndex {
    /// Of a member of the object itself.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        if !NAME_BYTES.contains(&name.len()) || !name.ends_with(b"s") {
            return None;
        }
        let position = NAMES.iter().position(|known| *known == name)?;
        u8::try_from(position).ok().map(Self)
    }

    /// Of a member of the details at this place.
    pub(crate) fn within(self, name: &[u8]) -> Option<Self> {
        (self.is_details() && name == CACHED_NAME).then_some(self)
    }

    /// Is the member an object with `cached_tokens`?
    pub(crate) const fn is_details(self) -> bool {
        self.0 >= DETAILS
    }
}

impl UsageNumbers {
    pub(crate) const NONE: Self = Self([None; NAMES.len()]);

    /// Prompt, cached and output tokens; `None` if no member has any.
    pub(crate) fn usage(&self) -> Option<TokenUsage> {
        let [prompt, input, _, cache_read, cache_creation, completion, output, ..] = self.0;
        let output = completion.or(output);
        prompt.or(input).or(output)?;
        let number = |stored: Option<NonZeroU32>| stored.map_or(0, count);
        // Anthropic does not count cached tokens as input.
        let apart = number(cache_read) + number(cache_creation);
        let prompt = prompt.map_or_else(|| number(input) + apart, count);
        let cached = self.cached().unwrap_or(0);
        Some(TokenUsage { prompt, cached, output: number(output) })
    }

    /// Cached tokens, where a member has them.
    pub(crate) fn cached(&self) -> Option<u64> {
        let [_, _, cached, cache_read, _, _, _, prompt_details, input_details] = self.0;
        cached.or(prompt_details).or(input_details).or(cache_read).map(count)
    }

    /// The numbers of a later object replace earlier numbers, or are added to them.
    pub(crate) fn joined(self, later: Self, adds: bool) -> Self {
        // Some answers repeat objects of the client, and the engine's own comes last: an earlier
        // object leaves only its output in a later object that has the prompt.
        let is_anew = !adds && (later.0[0].is_some() || later.0[1].is_some());
        let mut joined = later;
        for (member, (now, before)) in joined.0.iter_mut().zip(self.0).enumerate() {
            *now = match (before, *now) {
                (Some(before), Some(now)) if adds => stored(Some(count(before) + count(now))),
                (_, None) if is_anew && !OUTPUT.contains(&member) => None,
                (before, now) => now.or(before),
            };
        }
        joined
    }

    pub(crate) fn set(&mut self, member: MemberIndex, number: Option<u64>) {
        if let Some(place) = self.0.get_mut(usize::from(member.0)) {
            *place = stored(number.map(|number| number.min(USAGE_TOKENS_MAX)));
        }
    }
}

fn count(stored: NonZeroU32) -> u64 {
    u64::from(stored.get()) - 1
}

fn stored(number: Option<u64>) -> Option<NonZeroU32> {
    let more = number?.saturating_add(1);
    NonZeroU32::new(u32::try_from(more).unwrap_or(u32::MAX))
}

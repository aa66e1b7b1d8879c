//! The small object in which an engine tells what an answer has cost, read byte by byte as it
//! comes. Nothing of it is kept but the numbers. Lists are passed over, however long.

use crate::usage_text::TextReader;
use forebay_base::TokenUsage;
use forebay_base::limits::{USAGE_BYTES_MAX, USAGE_TOKENS_MAX};
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
const CACHED: usize = 2;
/// The members that tell of the answer.
const OUTPUT: std::ops::Range<usize> = 5..7;
/// From here on the members are objects, of which `cached_tokens` is read.
const DETAILS: usize = 7;

/// The numbers of one object, where told; each is kept as one more, in four bytes: every open
/// stream holds them.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageNumbers([Option<NonZeroU32>; NAMES.len()]);

/// One object on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsageObject {
    numbers: UsageNumbers,
    depth: u32,
    /// Lists that are open; what they hold tells nothing.
    lists: u32,
    /// Bytes so far, those in lists aside.
    read: usize,
    text: TextReader,
    member: OpenMember,
}

/// Whose value is being read.
#[derive(Clone, Copy, Debug)]
struct OpenMember {
    place: Option<usize>,
    /// The object of details that is open.
    within: Option<usize>,
    value: MemberValue,
}

#[derive(Clone, Copy, Debug)]
enum MemberValue {
    Empty,
    Number(u64),
    /// A text, a fraction, or whatever else.
    Other,
}

/// What became of bytes that an object was fed.
pub(super) enum Fed {
    /// It ended after so many.
    Whole(usize),
    /// Its end has not come.
    NotAll,
    /// It is no object, or too long: what follows so many is searched.
    None(usize),
}

impl UsageNumbers {
    /// What they say together; `None` if nothing.
    pub fn usage(&self) -> Option<TokenUsage> {
        let [prompt, input, _, cache_read, cache_creation, completion, output, ..] = self.all();
        let output = completion.or(output);
        prompt.or(input).or(output)?;
        // Anthropic counts cached tokens apart from the others.
        let apart = cache_read.unwrap_or(0).saturating_add(cache_creation.unwrap_or(0));
        let prompt = prompt.unwrap_or_else(|| input.unwrap_or(0).saturating_add(apart));
        let cached = self.cached_told().unwrap_or(0);
        Some(TokenUsage { prompt, cached, output: output.unwrap_or(0) })
    }

    /// Cached tokens, where told.
    pub fn cached_told(&self) -> Option<u64> {
        let [_, _, cached, cache_read, _, _, _, by, more] = self.all();
        cached.or(by).or(more).or(cache_read)
    }

    /// What a later object says replaces what an earlier one said, or adds to it.
    pub(super) fn joined(self, later: Self, adds: bool) -> Self {
        // Some answers repeat objects of the client's own, and the engine's word comes last: an
        // earlier object leaves nothing but its output in a later one that tells of the prompt.
        let is_anew = !adds && (later.0[0].is_some() || later.0[1].is_some());
        let mut joined = later.all();
        for (member, (now, before)) in joined.iter_mut().zip(self.all()).enumerate() {
            *now = match (before, *now) {
                (Some(before), Some(now)) if adds => Some(before.saturating_add(now)),
                (_, None) if is_anew && !OUTPUT.contains(&member) => None,
                (before, now) => now.or(before),
            };
        }
        Self(joined.map(kept))
    }

    fn all(&self) -> [Option<u64>; NAMES.len()] {
        self.0.map(|kept| Some(u64::from(kept?.get()) - 1))
    }

    /// Takes a member by its name, if it is a number that is read. Engines begin with the prompt:
    /// what came before belongs to another object, which may be the client's own.
    pub fn take(&mut self, name: &[u8], number: u64) {
        let mut numbers = NAMES.iter().take(DETAILS);
        if let Some(member) = numbers.position(|known| *known == name) {
            if member < CACHED {
                *self = Self::default();
            }
            self.set(member, Some(number));
        }
    }

    fn set(&mut self, member: usize, number: Option<u64>) {
        if let Some(place) = self.0.get_mut(member) {
            *place = kept(number.map(|number| number.min(USAGE_TOKENS_MAX)));
        }
    }
}

fn kept(number: Option<u64>) -> Option<NonZeroU32> {
    let more = number?.saturating_add(1);
    NonZeroU32::new(u32::try_from(more).unwrap_or(u32::MAX))
}

impl Default for UsageObject {
    fn default() -> Self {
        Self {
            numbers: UsageNumbers::default(),
            depth: 0,
            lists: 0,
            read: 0,
            text: TextReader::new(),
            member: OpenMember { place: None, within: None, value: MemberValue::Empty },
        }
    }
}

impl UsageObject {
    pub(super) const fn numbers(&self) -> &UsageNumbers {
        &self.numbers
    }

    /// Has its beginning come?
    pub(super) const fn is_begun(&self) -> bool {
        self.depth > 0
    }

    pub(super) fn feed(&mut self, data: &[u8]) -> Fed {
        let mut rest = data;
        while let Some((&byte, behind)) = rest.split_first() {
            let position = data.len() - rest.len();
            if self.depth == 0 && byte.is_ascii_whitespace() {
                rest = behind;
                continue;
            }
            if self.depth == 0 && byte != b'{' || self.read >= USAGE_BYTES_MAX {
                return Fed::None(position);
            }
            if self.text.is_open() {
                // In a list nothing is kept, and nothing counts.
                let left = if self.lists == 0 { USAGE_BYTES_MAX - self.read } else { rest.len() };
                let taken = self.text.read(rest.get(..left).unwrap_or(rest));
                self.read += if self.lists == 0 { taken } else { 0 };
                rest = rest.get(taken..).unwrap_or_default();
                continue;
            }
            self.read += usize::from(self.lists == 0);
            rest = behind;
            if !self.step(byte) {
                return Fed::None(position);
            }
            if self.depth == 0 {
                return Fed::Whole(position + 1);
            }
        }
        Fed::NotAll
    }

    /// A byte outside of texts; false where no object goes on so.
    fn step(&mut self, byte: u8) -> bool {
        match byte {
            b'"' => {
                self.text.begin();
                self.spoil();
            }
            b'[' => {
                self.spoil();
                self.lists += 1;
            }
            b']' if self.lists == 0 => return false,
            b']' => self.lists -= 1,
            _ if self.lists > 0 => {}
            b':' => self.begin_member(),
            b'{' => self.open(),
            b',' => self.end_member(),
            b'}' => {
                self.end_member();
                self.depth -= 1;
                if self.depth == 1 {
                    self.member.within = None;
                }
            }
            b'0'..=b'9' => self.member.value = self.member.value.with(byte - b'0'),
            byte if byte.is_ascii_whitespace() => {}
            _ => self.spoil(),
        }
        true
    }

    /// The value is no number.
    fn spoil(&mut self) {
        if self.lists == 0 {
            self.member.value = MemberValue::Other;
        }
    }

    fn open(&mut self) {
        let OpenMember { place, within, .. } = self.member;
        let within = if self.depth == 1 { place.filter(|&place| place >= DETAILS) } else { within };
        self.member = OpenMember { place: None, within, value: MemberValue::Other };
        self.depth += 1;
    }

    fn begin_member(&mut self) {
        let name = self.text.name();
        let OpenMember { within, .. } = self.member;
        let place = match self.depth {
            1 => NAMES.iter().position(|known| *known == name),
            2 => within.filter(|_| name == NAMES[CACHED]),
            _ => None,
        };
        if let Some(place) = place {
            // Of members with one name the last counts, whatever it holds.
            self.numbers.set(place, None);
        }
        self.member = OpenMember { place, within, value: MemberValue::Empty };
    }

    fn end_member(&mut self) {
        let OpenMember { place, within, value } = self.member;
        let of_details = self.depth == 2;
        let place = place.filter(|place| of_details || *place < DETAILS);
        if let (Some(place), MemberValue::Number(number)) = (place, value) {
            self.numbers.set(place, Some(number));
        }
        self.member = OpenMember { place: None, within, value: MemberValue::Empty };
    }
}

impl MemberValue {
    fn with(self, digit: u8) -> Self {
        let before = match self {
            Self::Empty => Some(0),
            Self::Number(number) => Some(number),
            Self::Other => None,
        };
        let now = before.and_then(|number: u64| number.checked_mul(10)?.checked_add(digit.into()));
        now.map_or(Self::Other, Self::Number)
    }
}

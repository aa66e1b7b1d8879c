//! The small object in which an engine reports the tokens of an answer, read byte by byte as the
//! object comes. Only its numbers are stored. Lists are skipped, however long.

use crate::short_text::ShortText;
use crate::usage_numbers::{MemberIndex, UsageNumbers};
use forebay_base::limits::USAGE_BYTES_MAX;

/// An object of which a part has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageObject {
    numbers: UsageNumbers,
    depth: u32,
    /// Lists that are open. No member counts inside.
    lists: u32,
    /// Bytes so far, without digits and without lists.
    read: usize,
    text: ShortText,
    member: OpenMember,
}

/// The member at the place of the next byte.
#[derive(Clone, Copy, Debug)]
struct OpenMember {
    place: Option<MemberIndex>,
    /// The details that are open.
    details: Option<MemberIndex>,
    value: MemberValue,
}

#[derive(Clone, Copy, Debug)]
enum MemberValue {
    Empty,
    Number(u64),
    /// A string, a fraction, or any other value.
    Other,
}

/// How far an object has come with the bytes of a read.
pub(crate) enum ObjectEnd {
    /// The object ended behind this byte.
    Whole(usize),
    /// The object has not ended.
    Open,
    /// The value is no object, or the object is too long. The search goes on at this byte.
    Not(usize),
}

impl Default for UsageObject {
    fn default() -> Self {
        Self {
            numbers: UsageNumbers::default(),
            depth: 0,
            lists: 0,
            read: 0,
            text: ShortText::new(),
            member: OpenMember { place: None, details: None, value: MemberValue::Empty },
        }
    }
}

impl UsageObject {
    pub(crate) const fn numbers(&self) -> &UsageNumbers {
        &self.numbers
    }

    /// Has the opening brace come?
    pub(crate) const fn has_begun(&self) -> bool {
        self.depth > 0
    }

    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, data: &[u8]) -> ObjectEnd {
        let mut at = 0;
        if self.depth == 0 {
            at = data.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            match data.get(at) {
                None => return ObjectEnd::Open,
                Some(b'{') => {}
                Some(_) => return ObjectEnd::Not(at),
            }
        }
        while let Some(&byte) = data.get(at) {
            if self.text.is_open() {
                let taken = self.text.read(data.get(at..).unwrap_or_default());
                self.read += if self.lists == 0 { taken } else { 0 };
                at += taken;
                continue;
            }
            // Only between strings, so that the end of a read changes nothing.
            if self.read >= USAGE_BYTES_MAX {
                return ObjectEnd::Not(at);
            }
            if self.lists > 0 {
                at += self.skip_list(data.get(at..).unwrap_or_default());
                continue;
            }
            if byte == b'"'
                && let Some(taken) = self.read_name(data.get(at..).unwrap_or_default())
            {
                at += taken;
                continue;
            }
            if byte.is_ascii_digit() {
                at += self.member.value.read(data.get(at..).unwrap_or_default());
                continue;
            }
            at += 1;
            self.read += 1;
            if !self.step(byte) {
                return ObjectEnd::Not(at - 1);
            }
            if self.depth == 0 {
                return ObjectEnd::Whole(at);
            }
        }
        ObjectEnd::Open
    }

    /// Reads a name with its quotes and its colon, if `data` begins with all of it. Returns its
    /// bytes. Any other string, and a name that is cut, is read by [`ShortText`].
    fn read_name(&mut self, data: &[u8]) -> Option<usize> {
        let text = data.get(1..)?;
        let (name, end) = text.split_at_checked(memchr::memchr2(b'"', b'\\', text)?)?;
        let taken = name.len() + 3;
        if !end.starts_with(b"\":") || self.read + taken > USAGE_BYTES_MAX {
            return None;
        }
        self.read += taken;
        self.begin_member(self.place_of(name));
        Some(taken)
    }

    /// Skips to the next byte that counts in a list, and takes that byte.
    fn skip_list(&mut self, data: &[u8]) -> usize {
        let Some(at) = memchr::memchr3(b'"', b'[', b']', data) else { return data.len() };
        match data.get(at) {
            Some(b'"') => self.text.begin(),
            Some(b'[') => self.lists += 1,
            _ => self.lists -= 1,
        }
        at + 1
    }

    /// Reads a byte outside of strings and lists; false where no object has this byte.
    fn step(&mut self, byte: u8) -> bool {
        match byte {
            b'"' => {
                self.text.begin();
                self.member.value = MemberValue::Other;
            }
            b'[' => {
                self.member.value = MemberValue::Other;
                self.lists += 1;
            }
            b']' => return false,
            b':' => {
                self.begin_member(self.place_of(self.text.name()));
                // A second colon has no name.
                self.text.forget();
            }
            b'{' => self.open(),
            b',' => self.end_member(),
            b'}' => {
                self.end_member();
                self.depth -= 1;
                if self.depth == 1 {
                    self.member.details = None;
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => self.member.value = MemberValue::Other,
        }
        true
    }

    fn open(&mut self) {
        let OpenMember { place, details, .. } = self.member;
        let details = match self.depth {
            1 => place.filter(|place| place.is_details()),
            _ => details,
        };
        self.member = OpenMember { place: None, details, value: MemberValue::Other };
        self.depth += 1;
    }

    /// The place of the member with this name.
    fn place_of(&self, name: &[u8]) -> Option<MemberIndex> {
        match self.depth {
            1 => MemberIndex::of(name),
            2 => self.member.details.and_then(|details| details.within(name)),
            _ => None,
        }
    }

    fn begin_member(&mut self, place: Option<MemberIndex>) {
        if let Some(place) = place {
            // Of members with the same name the last counts, whatever its value.
            self.numbers.set(place, None);
        }
        self.member = OpenMember { place, value: MemberValue::Empty, ..self.member };
    }

    fn end_member(&mut self) {
        let OpenMember { place, details, value } = self.member;
        let is_of_details = self.depth == 2;
        let place = place.filter(|place| is_of_details || !place.is_details());
        if let (Some(place), MemberValue::Number(number)) = (place, value) {
            self.numbers.set(place, Some(number));
        }
        self.member = OpenMember { place: None, details, value: MemberValue::Empty };
    }
}

impl MemberValue {
    /// Adds the digits that `data` begins with. Returns their number.
    fn read(&mut self, data: &[u8]) -> usize {
        let count = data.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let before = match *self {
            Self::Empty => Some(0),
            Self::Number(number) => Some(number),
            Self::Other => None,
        };
        let more = |number: u64, digit: &u8| {
            number.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
        };
        let mut digits = data.get(..count).unwrap_or_default().iter();
        let now = before.and_then(|number| digits.try_fold(number, more));
        *self = now.map_or(Self::Other, Self::Number);
        count
    }
}

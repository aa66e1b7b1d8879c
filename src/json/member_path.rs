//! Finds a member of an answer by its place. Clients can have JSON of their own in answers
//! (`metadata`, `tools`), and no member of that JSON comes from the engine.
//!
//! | form | place |
//! |---|---|
//! | any answer or event | `usage` of the outermost object |
//! | event of `/v1/responses`, of `/v1/messages` | `usage` of `response`, of `message` |
//! | `/generate`, `/generate` with a batch | `meta_info` of the object, of each in the list |

use crate::short_text::ShortText;

/// Objects with members that count like members of the outermost object.
const HOLDERS: [&[u8]; 2] = [b"response", b"message"];
/// The event of `/v1/messages` behind the event with the usage.
const LAST_EVENT: &[u8] = b"message_stop";
/// At this depth no member counts.
const LOST: u32 = 1 << 16;

/// The place of the next byte in an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberPath {
    key: &'static [u8],
    depth: u32,
    text: ShortText,
    /// The value that begins now belongs to a name of [`HOLDERS`].
    is_held: bool,
    /// The object that is open at the second level holds members that count.
    holds: bool,
    is_batch: bool,
    outer: OuterObject,
    objects: u64,
}

/// The outermost object that is open.
#[derive(Clone, Copy, Debug)]
struct OuterObject {
    member: OuterMember,
    /// The object has no token of the answer.
    is_empty: bool,
}

/// The member of the outermost object that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OuterMember {
    /// `choices`, before its value.
    Choices,
    /// The list of `choices`, empty so far.
    NoChoice,
    /// `type` of an event of Anthropic.
    Type,
    Other,
}

impl MemberPath {
    pub(crate) const fn new(key: &'static [u8]) -> Self {
        Self {
            key,
            depth: 0,
            text: ShortText::new(),
            is_held: false,
            holds: false,
            is_batch: false,
            outer: OuterObject { member: OuterMember::Other, is_empty: false },
            objects: 0,
        }
    }

    /// Whole outermost objects that may have a token. The end of a stream has none.
    pub(crate) const fn objects(&self) -> u64 {
        self.objects
    }

    /// An event begins, whatever was open before.
    pub(crate) fn begin_event(&mut self) {
        *self = Self { objects: self.objects, ..Self::new(self.key) };
    }

    /// The place is unknown: no member counts before the next event.
    pub(crate) fn lose(&mut self) {
        self.depth = LOST;
    }

    /// The first byte of the next value of the member; `None` if no value begins in these bytes.
    pub(crate) fn feed(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            if self.text.is_open() {
                at += self.text.read(data.get(at..).unwrap_or_default());
                continue;
            }
            at += 1;
            match byte {
                b'"' => self.text.begin(),
                b'{' | b'[' => self.open(byte),
                b'}' | b']' => self.close(byte),
                b':' if self.is_found() => return Some(at),
                b',' if self.depth == 1 => self.end_member(),
                _ => {}
            }
        }
        None
    }

    fn open(&mut self, byte: u8) {
        let is_object = byte == b'{';
        match self.depth {
            0 => {
                self.is_batch = !is_object;
                self.outer.is_empty = false;
            }
            1 => self.holds = is_object && (self.is_held || self.is_batch),
            _ => {}
        }
        self.outer.member = match self.outer.member {
            OuterMember::Choices if !is_object => OuterMember::NoChoice,
            _ => OuterMember::Other,
        };
        self.is_held = false;
        self.depth = self.depth.saturating_add(1);
    }

    fn close(&mut self, byte: u8) {
        self.end_member();
        let is_outermost = self.depth == 1 && byte == b'}';
        self.objects += u64::from(is_outermost && !self.outer.is_empty);
        self.depth = self.depth.saturating_sub(1);
    }

    fn end_member(&mut self) {
        let member = std::mem::replace(&mut self.outer.member, OuterMember::Other);
        let is_end = member == OuterMember::Type && self.text.name() == LAST_EVENT;
        self.outer.is_empty |= is_end || member == OuterMember::NoChoice;
    }

    /// Is the name before this colon the member?
    fn is_found(&mut self) -> bool {
        let name = self.text.name();
        if self.depth == 1 {
            self.outer.member = match name {
                b"choices" => OuterMember::Choices,
                b"type" => OuterMember::Type,
                _ => OuterMember::Other,
            };
        }
        self.is_held = self.depth == 1 && HOLDERS.contains(&name);
        (self.depth == 1 || self.depth == 2 && self.holds) && name == self.key
    }
}

//! Finds the place where an answer tells its cost, by where it stands: clients can have JSON of
//! their own in answers (`metadata`, `tools`), and no member of it is the engine's word.
//!
//! | form | place |
//! |---|---|
//! | any answer or event | `usage` of the outermost object |
//! | event of `/v1/responses`, of `/v1/messages` | `usage` of `response`, of `message` |
//! | `/generate`, `/generate` with a batch | `meta_info` of the object, of each in the list |

use super::usage_text::TextReader;

/// Objects whose member counts as one of the outermost.
const HOLDERS: [&[u8]; 2] = [b"response", b"message"];
/// No member at this depth is looked for.
const LOST: u32 = 1 << 16;

/// Where in an answer its next byte stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsagePath {
    key: &'static [u8],
    /// Lines are events: each begins anew.
    has_lines: bool,
    depth: u32,
    text: TextReader,
    /// What begins now is the value of one of [`HOLDERS`].
    is_held: bool,
    /// What is open at the second level holds members that count.
    holds: bool,
    is_batch: bool,
    objects: u64,
}

impl UsagePath {
    pub(super) fn new(key: &'static [u8], has_lines: bool) -> Self {
        Self {
            key,
            has_lines,
            depth: 0,
            text: TextReader::new(),
            is_held: false,
            holds: false,
            is_batch: false,
            objects: 0,
        }
    }

    /// Outermost objects so far.
    pub(super) const fn objects(&self) -> u64 {
        self.objects
    }

    /// A line begins, whatever was open.
    pub(super) fn begin_line(&mut self) {
        if self.has_lines {
            self.depth = 0;
            self.text.abandon();
        }
    }

    /// What was open is not known any more: nothing counts before the next line.
    pub(super) fn lose(&mut self) {
        self.depth = LOST;
    }

    /// Reads on to the value that is looked for; `None` if it does not begin in these bytes.
    pub(super) fn feed(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            if self.text.is_open() {
                at += self.text.read(data.get(at..).unwrap_or_default());
                if data.get(at - 1) == Some(&b'\n') {
                    self.begin_line();
                }
                continue;
            }
            at += 1;
            match byte {
                b'"' => self.text.begin(),
                b'{' | b'[' => self.open(byte),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b':' if self.is_found() => return Some(at),
                b'\n' => self.begin_line(),
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
                self.objects += u64::from(is_object);
            }
            1 => self.holds = is_object && (self.is_held || self.is_batch),
            _ => {}
        }
        self.is_held = false;
        self.depth = self.depth.saturating_add(1);
    }

    /// The name before a colon: is its value the one?
    fn is_found(&mut self) -> bool {
        let name = self.text.name();
        self.is_held = self.depth == 1 && HOLDERS.contains(&name);
        (self.depth == 1 || self.depth == 2 && self.holds) && name == self.key
    }
}

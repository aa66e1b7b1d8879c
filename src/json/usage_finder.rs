//! Finds the key in front of a `usage` by a search of each read. A key that the end of a read cuts
//! is found too.

use crate::usage_form::UsageForm;
use memchr::memmem::Finder;

/// In a string a quote is escaped, so that no text of an answer has a key.
const USAGE: &[u8] = b"\"usage\":";
const META_INFO: &[u8] = b"\"meta_info\":";

/// The prepared searches, for all answers of a thread.
#[derive(Debug)]
pub struct UsageFinder {
    usage: Finder<'static>,
    meta_info: Finder<'static>,
}

impl Default for UsageFinder {
    fn default() -> Self {
        Self { usage: Finder::new(USAGE), meta_info: Finder::new(META_INFO) }
    }
}

/// The part of a key that the bytes so far end with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutKey(u8);

impl CutKey {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// The byte behind the next key in `data`. If there is none, notes how `data` ends.
    pub(crate) fn find(
        &mut self,
        finder: &UsageFinder,
        form: UsageForm,
        data: &[u8],
    ) -> Option<usize> {
        let (finder, key) = match form {
            UsageForm::Usage | UsageForm::UsageStream => (&finder.usage, USAGE),
            UsageForm::MetaInfo | UsageForm::MetaInfoStream => (&finder.meta_info, META_INFO),
        };
        let mut from = 0;
        while self.0 > 0 {
            let byte = data.get(from)?;
            from += 1;
            if self.step(key, *byte) {
                return Some(from);
            }
        }
        let rest = data.get(from..)?;
        if let Some(at) = finder.find(rest) {
            return Some(from + at + key.len());
        }
        // Most reads end with a line or an object.
        if rest.last().is_some_and(|last| matches!(last, b'"' | b'_' | b'a'..=b'z')) {
            let tail = rest.len().saturating_sub(key.len() - 1);
            for byte in rest.get(tail..).unwrap_or_default() {
                self.step(key, *byte);
            }
        }
        None
    }

    /// Goes on by a byte; true if the key is whole.
    fn step(&mut self, key: &[u8], byte: u8) -> bool {
        let length = usize::from(self.0);
        let is_next = key.get(length) == Some(&byte);
        // The second quote of a key may be the first of the next.
        let is_second = length + 1 == key.len() && key.get(1) == Some(&byte);
        self.0 = match byte {
            _ if is_next => self.0 + 1,
            _ if is_second => 2,
            b'"' => 1,
            _ => 0,
        };
        let is_whole = usize::from(self.0) == key.len();
        if is_whole {
            self.0 = 0;
        }
        is_whole
    }
}

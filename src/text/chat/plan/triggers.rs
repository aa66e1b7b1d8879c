//! Strings that exclude a content from a plan, because the template searches for them.

use memchr::{memchr, memchr2, memchr3, memmem};

/// Most first bytes that a single search covers ([`memchr3`]).
const FIRST_BYTES_MAX: usize = 3;

/// Strings to search for: by their first bytes if there are at most [`FIRST_BYTES_MAX`], else each
/// string by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Triggers {
    texts: Vec<Box<[u8]>>,
    /// Distinct first bytes of `texts`, in order.
    first_bytes: Vec<u8>,
    /// Empty where the search goes by first bytes.
    finders: Vec<memmem::Finder<'static>>,
}

impl Triggers {
    /// Triggers of these strings; an empty string matches everything.
    pub(super) fn new(texts: impl Iterator<Item = String>) -> Self {
        let texts: Vec<Box<[u8]>> =
            texts.map(|text| text.into_bytes().into_boxed_slice()).collect();
        let mut first_bytes: Vec<u8> =
            texts.iter().filter_map(|text| text.first().copied()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        let mut finders = Vec::new();
        if first_bytes.len() > FIRST_BYTES_MAX || texts.iter().any(|text| text.is_empty()) {
            finders = texts.iter().map(|text| memmem::Finder::new(text).into_owned()).collect();
        }
        Self { texts, first_bytes, finders }
    }

    pub(super) fn count(&self) -> usize {
        self.texts.len()
    }

    /// True if `content` contains a trigger.
    pub(super) fn found_in(&self, content: &[u8]) -> bool {
        if !self.finders.is_empty() {
            return self.finders.iter().any(|finder| finder.find(content).is_some());
        }
        let mut rest = content;
        loop {
            let next = match self.first_bytes.as_slice() {
                [a] => memchr(*a, rest),
                [a, b] => memchr2(*a, *b, rest),
                [a, b, c] => memchr3(*a, *b, *c, rest),
                _ => None,
            };
            let Some(candidate) = next.and_then(|at| rest.get(at..)) else { return false };
            if self.texts.iter().any(|text| candidate.starts_with(text)) {
                return true;
            }
            rest = candidate.get(1..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Triggers;
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn finds_what_contains_finds(
            texts in prop::collection::vec("[a-e<]{0,3}", 0..6),
            content in "[a-f<]{0,40}",
        ) {
            let expected = texts.iter().any(|text| content.contains(text.as_str()));
            prop_assert_eq!(
                Triggers::new(texts.into_iter()).found_in(content.as_bytes()),
                expected
            );
        }
    }
}

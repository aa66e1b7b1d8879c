//! Normalization of text by a tokenizer before it splits the text: whitespace that special tokens
//! strip, and spaces that are inserted.

use super::composed;
use super::file::{TokenizerFile, kind, steps};
use super::lossless::{SPACE_MARK, Spelling};
use crate::whitespace::{leading_bytes, trailing_bytes};
use memchr::{memchr, memchr2, memchr3, memmem};
use serde_json::Value;

/// Normalization rules of a tokenizer.
#[derive(Debug)]
pub(super) struct TextReading {
    prefix: Prefix,
    /// Special tokens, in the order of their bytes.
    literals: Vec<Literal>,
    /// Distinct first bytes of `literals`.
    first_bytes: Vec<u8>,
    /// There is no prefix, and no literal that strips whitespace.
    plain: bool,
    /// A space mark in the text becomes a space.
    spaced: bool,
    /// Text is normalized to the composed form (NFC).
    composes: bool,
}

/// Runs of text that get a space in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    None,
    /// Each run of text between special tokens, even if it starts with a space.
    EveryRun,
    /// Each run of text that does not start with a space.
    EveryRunUnlessSpace,
    /// Only the start of the text, unless it starts with a space or a special token.
    FirstRunUnlessSpace,
}

#[derive(Debug)]
struct Literal {
    text: Vec<u8>,
    strips_left: bool,
    strips_right: bool,
}

impl TextReading {
    pub(super) fn new(file: &TokenizerFile, style: Spelling) -> Self {
        let mut literals: Vec<Literal> = file
            .added_tokens
            .iter()
            // Text with spaces never contains a space mark; such tokens come from the model.
            .filter(|token| !token.content.is_empty())
            .filter(|token| style != Spelling::Spaced || !token.content.contains(SPACE_MARK))
            .map(|token| Literal {
                text: token.content.as_bytes().to_vec(),
                strips_left: token.lstrip,
                strips_right: token.rstrip,
            })
            .collect();
        literals.sort_by(|a, b| a.text.cmp(&b.text));
        let mut first_bytes: Vec<u8> =
            literals.iter().filter_map(|literal| literal.text.first().copied()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        let prefix = prefix_of(file);
        let strips = literals.iter().any(|literal| literal.strips_left || literal.strips_right);
        let plain = prefix == Prefix::None && !strips;
        let composes =
            steps(&file.normalizer, "normalizers").into_iter().any(|step| kind(step) == "NFC");
        let spaced = style == Spelling::Spaced;
        Self { prefix, literals, first_bytes, plain, spaced, composes }
    }

    /// See [`super::Vocabulary::align`]. Writes the new text behind the old text, and then removes
    /// the old text.
    pub(super) fn align(&self, text: &mut Vec<u8>, from: usize) -> bool {
        let mut whole = true;
        if !self.plain || self.would_compose(text.get(from..).unwrap_or_default()) {
            whole = self.align_runs(text, from);
        }
        // After the runs, because special tokens do not strip a space mark.
        if self.spaced {
            space_marks_to_spaces(text, from);
        }
        whole
    }

    pub(super) fn would_compose(&self, text: &[u8]) -> bool {
        self.composes && !composed::is_composed(text)
    }

    pub(super) fn spells_token(&self, text: &[u8]) -> bool {
        self.find(text, 0).1.is_some()
    }

    fn align_runs(&self, text: &mut Vec<u8>, from: usize) -> bool {
        let end = text.len();
        if from >= end {
            return true;
        }
        let mut position = from;
        let mut whole = true;
        while position < end {
            let (start, found) = self.find(text.get(..end).unwrap_or_default(), position);
            let run_end = match found {
                Some(literal) if literal.strips_left => {
                    let run = text.get(position..start).unwrap_or_default();
                    start - trailing_bytes(run, char::is_whitespace)
                }
                _ => start,
            };
            whole = self.push_run(text, position..run_end, from);
            if !whole {
                break;
            }
            let Some(literal) = found else { break };
            text.extend_from_slice(&literal.text);
            position = start + literal.text.len();
            if literal.strips_right {
                let rest = text.get(position..end).unwrap_or_default();
                position += leading_bytes(rest, char::is_whitespace);
            }
        }
        text.drain(from..end);
        whole
    }

    fn push_run(&self, text: &mut Vec<u8>, run: std::ops::Range<usize>, from: usize) -> bool {
        if run.is_empty() {
            return true;
        }
        let start = text.get(run.clone()).unwrap_or_default();
        let spaced =
            start.starts_with(b" ") || self.spaced && start.starts_with(SPACE_MARK.as_bytes());
        let prefixed = match self.prefix {
            Prefix::None => false,
            Prefix::EveryRun => true,
            Prefix::EveryRunUnlessSpace => !spaced,
            Prefix::FirstRunUnlessSpace => run.start == from && !spaced,
        };
        if prefixed {
            text.push(b' ');
        }
        let start = text.len();
        text.extend_from_within(run);
        !self.composes || compose(text, start)
    }

    /// The longest literal at the first place at or after `position`; without a literal, the end of
    /// the text.
    fn find(&self, text: &[u8], position: usize) -> (usize, Option<&Literal>) {
        let mut at = position;
        while let Some(step) = self.next_candidate(text.get(at..).unwrap_or_default()) {
            at += step;
            let rest = text.get(at..).unwrap_or_default();
            if let Some(literal) = self.longest(rest) {
                return (at, Some(literal));
            }
            at += 1;
        }
        (text.len(), None)
    }

    /// The longest literal that `rest` starts with. In the order of bytes, all literals between
    /// such a literal and `rest` start with that literal. So take the neighbour below `rest`, cut
    /// `rest` to their common prefix, and repeat.
    fn longest(&self, rest: &[u8]) -> Option<&Literal> {
        let mut key = rest;
        loop {
            let below = self.literals.partition_point(|literal| literal.text.as_slice() <= key);
            let neighbour = self.literals.get(below.checked_sub(1)?)?;
            let shared = key.iter().zip(&neighbour.text).take_while(|(a, b)| a == b).count();
            if shared == neighbour.text.len() {
                return Some(neighbour);
            }
            key = key.get(..shared).filter(|key| !key.is_empty())?;
        }
    }

    fn next_candidate(&self, rest: &[u8]) -> Option<usize> {
        match self.first_bytes.as_slice() {
            [] => None,
            [a] => memchr(*a, rest),
            [a, b] => memchr2(*a, *b, rest),
            [a, b, c] => memchr3(*a, *b, *c, rest),
            many => rest.iter().position(|byte| many.binary_search(byte).is_ok()),
        }
    }
}

/// Normalizes `text[from..]` to the composed form, each run between literals by itself, as
/// tokenizers do. False when the text ends early, see [`composed::push`].
fn compose(text: &mut Vec<u8>, from: usize) -> bool {
    let run = text.get(from..).unwrap_or_default();
    if composed::is_composed(run) {
        return true;
    }
    let Ok(run) = std::str::from_utf8(run).map(str::to_owned) else { return true };
    text.truncate(from);
    composed::push(&run, text)
}

/// Replaces each literal `▁` by a space, as SentencePiece models do.
fn space_marks_to_spaces(text: &mut Vec<u8>, from: usize) {
    let end = text.len();
    let mut position = from;
    while let Some(at) =
        memmem::find(text.get(position..end).unwrap_or_default(), SPACE_MARK.as_bytes())
    {
        text.extend_from_within(position..position + at);
        text.push(b' ');
        position += at + SPACE_MARK.len();
    }
    if position > from {
        text.extend_from_within(position..end);
        text.drain(from..end);
    }
}

fn prefix_of(file: &TokenizerFile) -> Prefix {
    let prepends = steps(&file.normalizer, "normalizers").into_iter().any(|step| {
        kind(step) == "Prepend" && step.get("prepend").and_then(Value::as_str) == Some(SPACE_MARK)
    });
    if prepends {
        return Prefix::EveryRun;
    }
    for step in steps(&file.pre_tokenizer, "pretokenizers") {
        let adds = step.get("add_prefix_space").and_then(Value::as_bool);
        let scheme = step.get("prepend_scheme").and_then(Value::as_str);
        match (kind(step), scheme, adds) {
            ("ByteLevel", _, Some(true)) => return Prefix::EveryRunUnlessSpace,
            ("Metaspace", Some("first"), _) => return Prefix::FirstRunUnlessSpace,
            ("Metaspace", Some("never"), _) | ("Metaspace", None, Some(false)) => {}
            ("Metaspace", _, _) => return Prefix::EveryRunUnlessSpace,
            _ => {}
        }
    }
    Prefix::None
}

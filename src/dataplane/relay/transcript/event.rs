//! An event of a stream of vLLM or SGLang, read in place: only token ids are copied.

use forebay_json::{Cursor, JsonError};
use std::ops::Range;

/// Range of a value in the object; empty if the value is absent or null.
pub(super) type MemberPlace = Range<usize>;

/// An object of a stream, by the places of its members.
#[derive(Debug, Default)]
pub(super) struct TokenEvent {
    /// Members that each event of a stream repeats.
    pub(super) name: StreamIdentity,
    pub(super) fingerprint: MemberPlace,
    pub(super) usage: MemberPlace,
    pub(super) prompt_ids: MemberPlace,
    pub(super) choice: Option<StreamChoice>,
    /// The error that the engine reports.
    pub(super) error: MemberPlace,
    /// The event has a part that a continuation cannot repeat.
    pub(super) is_strange: bool,
}

/// Id, time and model of an answer.
#[derive(Debug, Default)]
pub(super) struct StreamIdentity {
    pub(super) id: MemberPlace,
    pub(super) created: MemberPlace,
    pub(super) model: MemberPlace,
}

/// The choice of an event, which has no second choice.
#[derive(Debug, Default)]
pub(super) struct StreamChoice {
    /// The text, with its quotes.
    pub(super) text: MemberPlace,
    pub(super) finish: MemberPlace,
    pub(super) stop: MemberPlace,
    pub(super) ids: MemberPlace,
}

impl StreamChoice {
    pub(super) const fn has_text(&self) -> bool {
        // With its quotes.
        self.text.end.saturating_sub(self.text.start) > 2
    }
}

impl TokenEvent {
    /// Has the event a choice without text and end, for example only with a role?
    pub(super) fn is_empty(&self) -> bool {
        let is_without_text =
            |choice: &StreamChoice| !choice.has_text() && choice.finish.is_empty();
        !self.is_strange && self.choice.as_ref().is_some_and(is_without_text)
    }

    /// Does the engine end the answer because the engine stops?
    pub(super) fn is_abort(&self, data: &[u8]) -> bool {
        let finish = self.choice.as_ref().map(|choice| choice.finish.clone());
        finish.is_some_and(|finish| data.get(finish) == Some(b"\"abort\""))
    }

    /// Reads the data of an event.
    pub(super) fn read(data: &[u8]) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(data)?;
        cursor.blanks();
        let mut event = Self::default();
        if cursor.peek() != Some(b'{') {
            event.is_strange = true;
            return Ok(event);
        }
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            match cursor.slice(&key.span) {
                "choices" => event.choices(&mut cursor)?,
                name => {
                    let place = place(&mut cursor, 1)?;
                    match name {
                        "id" => event.name.id = place,
                        "created" => event.name.created = place,
                        "model" => event.name.model = place,
                        "system_fingerprint" => event.fingerprint = place,
                        "usage" => event.usage = place,
                        "prompt_token_ids" => {
                            event.is_strange |= !first_list(&mut event.prompt_ids, place);
                        }
                        "error" => event.error = place,
                        "object" | "prompt_text" => {}
                        _ => event.is_strange |= !place.is_empty(),
                    }
                }
            }
        }
        cursor.end()?;
        Ok(event)
    }

    fn choices(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.peek() != Some(b'[') {
            self.is_strange = true;
            return cursor.skip_value(1);
        }
        cursor.open();
        let mut first = true;
        while cursor.next_element(&mut first)? {
            if self.choice.is_some() || cursor.peek() != Some(b'{') {
                self.is_strange = true;
                cursor.skip_value(2)?;
                continue;
            }
            self.choice(cursor)?;
        }
        Ok(())
    }

    fn choice(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        cursor.open();
        let mut first = true;
        let mut choice = StreamChoice::default();
        while let Some(key) = cursor.next_key(&mut first)? {
            let name = cursor.slice(&key.span);
            if name == "delta" {
                self.is_strange |= !delta(cursor, &mut choice.text)?;
                continue;
            }
            let place = place(cursor, 3)?;
            match name {
                "text" => choice.text = place,
                "finish_reason" => choice.finish = place,
                "stop_reason" => choice.stop = place,
                "token_ids" => self.is_strange |= !first_list(&mut choice.ids, place),
                // SGLang's reason of the stop.
                "matched_stop" => {}
                "prompt_token_ids" => {
                    self.is_strange |= !first_list(&mut self.prompt_ids, place);
                }
                "index" => self.is_strange |= cursor.slice(&place) != "0",
                _ => self.is_strange |= !place.is_empty(),
            }
        }
        self.choice = Some(choice);
        Ok(())
    }
}

/// Stores the place of a list; false if the event has two lists. Null is no place.
fn first_list(stored: &mut MemberPlace, place: MemberPlace) -> bool {
    place.is_empty() || std::mem::replace(stored, place).is_empty()
}

/// Reads the delta of a chat; false if it has more than text.
fn delta(cursor: &mut Cursor<'_>, text: &mut MemberPlace) -> Result<bool, JsonError> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip_value(3).map(|()| false);
    }
    cursor.open();
    let mut first = true;
    let mut is_text = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        let place = place(cursor, 4)?;
        match cursor.slice(&key.span) {
            "content" => *text = place,
            "role" => {}
            _ => is_text &= matches!(cursor.slice(&place), "" | "\"\"" | "[]"),
        }
    }
    Ok(is_text)
}

/// Skips a value, and returns its place.
fn place(cursor: &mut Cursor<'_>, depth: usize) -> Result<MemberPlace, JsonError> {
    let start = cursor.at();
    if cursor.peek() == Some(b'[') {
        ids(cursor, depth)?;
    } else {
        cursor.skip_value(depth)?;
    }
    let place = start..cursor.at();
    Ok(if cursor.slice(&place) == "null" { 0..0 } else { place })
}

/// Skips a list, fast if the list has ids.
fn ids(cursor: &mut Cursor<'_>, depth: usize) -> Result<(), JsonError> {
    cursor.open();
    let mut first = true;
    while cursor.next_element(&mut first)? {
        cursor.skip_ids();
        cursor.skip_value(depth + 1)?;
    }
    Ok(())
}

/// Appends the ids of a list; false if `out` would hold over `ids_max`, or for other elements. On
/// false, `out` has part of the list.
pub(super) fn push_ids(list: &[u8], ids_max: usize, out: &mut Vec<u32>) -> bool {
    let Some(inner) = list.strip_prefix(b"[").and_then(|list| list.strip_suffix(b"]")) else {
        return false;
    };
    if inner.trim_ascii().is_empty() {
        return true;
    }
    for id in inner.split(|byte| *byte == b',') {
        let digits = id.trim_ascii();
        let is_number = !digits.is_empty() && digits.len() <= 10;
        let id = digits.iter().try_fold(0_u32, |id, digit| {
            let digit = char::from(*digit).to_digit(10)?;
            id.checked_mul(10)?.checked_add(digit)
        });
        match id.filter(|_| is_number && out.len() < ids_max) {
            Some(id) => out.push(id),
            None => return false,
        }
    }
    true
}

//! Events for the client: without ids, and in the shape of the client's stream.

use super::event::{MemberPlace, StreamChoice, TokenEvent};
use forebay_json::Cursor;

/// Beginning and names of each event of a stream, from its first event.
#[derive(Debug)]
pub(super) struct EventShape {
    is_chat: bool,
    id: Vec<u8>,
    created: Vec<u8>,
    model: Vec<u8>,
    /// The engine writes members without a value as null.
    has_nulls: bool,
    /// The members are of SGLang, which leaves out ids without a request for ids.
    is_sglang: bool,
}

impl EventShape {
    /// The shape of the first event.
    pub(super) fn of(event: &TokenEvent, data: &[u8], is_chat: bool) -> Self {
        let copied = |place: &MemberPlace| slice(data, place).to_vec();
        Self {
            is_chat,
            id: copied(&event.name.id),
            created: copied(&event.name.created),
            model: copied(&event.name.model),
            is_sglang: memchr::memmem::find(data, MATCHED_STOP).is_some(),
            has_nulls: memchr::memmem::find(data, b"\"logprobs\":null").is_some(),
        }
    }

    /// Writes an event of `/v1/completions` as an event of this stream. `behind` tokens of output
    /// count as prompt at that rank.
    pub(super) fn write(&self, event: &TokenEvent, data: &[u8], behind: u64, out: &mut Vec<u8>) {
        if !self.is_chat {
            return self.rename(event, data, behind, out);
        }
        let usage = corrected_usage(slice(data, &event.usage), behind);
        self.begin(out);
        if let Some(choice) = &event.choice {
            self.choice(choice, data, out);
        }
        out.push(b']');
        for (name, value) in [
            (&b",\"usage\":"[..], &usage[..]),
            (b",\"system_fingerprint\":", slice(data, &event.fingerprint)),
        ] {
            if !value.is_empty() {
                out.extend_from_slice(name);
                out.extend_from_slice(value);
            }
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// Writes an event of the same path as an event of this stream. `behind` tokens of output count
    /// as prompt at that rank.
    pub(super) fn rename(&self, event: &TokenEvent, data: &[u8], behind: u64, out: &mut Vec<u8>) {
        let usage = corrected_usage(slice(data, &event.usage), behind);
        let mut edits = [
            (event.name.id.clone(), &self.id[..]),
            (event.name.created.clone(), &self.created[..]),
            (event.name.model.clone(), &self.model[..]),
            (event.usage.clone(), &usage[..]),
            no_ids(&event.prompt_ids, data),
            no_ids(&event.choice.as_ref().map_or(0..0, |choice| choice.ids.clone()), data),
        ];
        out.extend_from_slice(b"data: ");
        splice(data, &mut edits, out);
        out.extend_from_slice(b"\n\n");
    }

    /// Up to the first choice.
    fn begin(&self, out: &mut Vec<u8>) {
        let object: &[u8] =
            if self.is_chat { b"chat.completion.chunk" } else { b"text_completion" };
        for part in [
            b"data: {\"id\":",
            &self.id[..],
            b",\"object\":\"",
            object,
            b"\",\"created\":",
            &self.created,
            b",\"model\":",
            &self.model,
            b",\"choices\":[",
        ] {
            out.extend_from_slice(part);
        }
    }

    fn choice(&self, choice: &StreamChoice, data: &[u8], out: &mut Vec<u8>) {
        let text = match slice(data, &choice.text) {
            b"" => b"\"\"",
            text => text,
        };
        let (start, end): (&[u8], &[u8]) = match self.is_chat {
            true => (b"{\"index\":0,\"delta\":{\"content\":", b"}"),
            false => (b"{\"index\":0,\"text\":", b""),
        };
        out.extend_from_slice(start);
        out.extend_from_slice(text);
        out.extend_from_slice(end);
        let finish = slice(data, &choice.finish);
        let has_stop = !self.is_chat || !finish.is_empty();
        let is_vllm = !self.is_sglang;
        for (name, value, is_there) in [
            (&b",\"logprobs\":"[..], &b""[..], self.has_nulls),
            (b",\"finish_reason\":", finish, self.has_nulls),
            (
                b",\"stop_reason\":",
                slice(data, &choice.stop),
                self.has_nulls && has_stop && is_vllm,
            ),
            (b",\"prompt_token_ids\":", b"", self.has_nulls && !self.is_chat && is_vllm),
            (b",\"token_ids\":", b"", self.has_nulls && is_vllm),
            (b",\"matched_stop\":", b"", self.is_sglang),
        ] {
            if is_there || !value.is_empty() {
                out.extend_from_slice(name);
                out.extend_from_slice(if value.is_empty() { NULL } else { value });
            }
        }
        out.push(b'}');
    }

    /// Writes the event that ends a text at its limit.
    pub(super) fn write_finish(&self, out: &mut Vec<u8>) {
        const LENGTH: &[u8] = b"\"length\"";
        self.begin(out);
        let choice = StreamChoice { finish: 0..LENGTH.len(), ..StreamChoice::default() };
        self.choice(&choice, LENGTH, out);
        out.extend_from_slice(b"]}\n\n");
    }

    /// Writes the event with the usage.
    pub(super) fn write_usage(&self, prompt: usize, output: usize, out: &mut Vec<u8>) {
        self.begin(out);
        let total = prompt.saturating_add(output);
        let usage = format!(
            "],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
             \"completion_tokens\":{output}}}}}\n\n"
        );
        out.extend_from_slice(usage.as_bytes());
    }
}

const NULL: &[u8] = b"null";
/// A member of each choice of SGLang.
const MATCHED_STOP: &[u8] = b"\"matched_stop\":";

/// Writes an event of the stream that the client has, without ids.
pub(super) fn without_ids(event: &TokenEvent, data: &[u8], out: &mut Vec<u8>) {
    let ids = event.choice.as_ref().map_or(0..0, |choice| choice.ids.clone());
    splice(data, &mut [no_ids(&event.prompt_ids, data), no_ids(&ids, data)], out);
}

/// The edit that removes a list of ids from an event. vLLM writes null without ids, SGLang nothing.
fn no_ids<'a>(place: &MemberPlace, data: &[u8]) -> (MemberPlace, &'a [u8]) {
    let before = data.get(..place.start).unwrap_or_default();
    let names = [&b",\"token_ids\":"[..], b",\"prompt_token_ids\":"];
    let name = names.into_iter().find(|name| before.ends_with(name));
    match name.filter(|_| memchr::memmem::find(data, MATCHED_STOP).is_some()) {
        Some(name) => (place.start.saturating_sub(name.len())..place.end, &b""[..]),
        None => (place.clone(), NULL),
    }
}

/// Copies `data` with other bytes at some places.
fn splice(data: &[u8], edits: &mut [(MemberPlace, &[u8])], out: &mut Vec<u8>) {
    edits.sort_unstable_by_key(|(place, _)| place.start);
    let mut at = 0;
    for (place, bytes) in edits.iter().filter(|(place, _)| !place.is_empty()) {
        out.extend_from_slice(slice(data, &(at..place.start)));
        out.extend_from_slice(bytes);
        at = place.end;
    }
    out.extend_from_slice(data.get(at..).unwrap_or_default());
}

pub(super) fn slice<'a>(data: &'a [u8], place: &MemberPlace) -> &'a [u8] {
    data.get(place.clone()).unwrap_or_default()
}

/// Does the object report a failure of the engine?
pub(super) fn is_failure(error: &[u8]) -> bool {
    let numbers = numbers(error).unwrap_or_default();
    numbers.iter().any(|&(name, _, number)| name == "code" && (500..600).contains(&number))
}

/// Tokens that an engine has been sent as prompt are output of the stream.
fn corrected_usage(usage: &[u8], behind: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let numbers = numbers(usage).unwrap_or_default();
    let prompt = numbers.iter().find(|(name, ..)| *name == "prompt_tokens");
    let prompt = prompt.map_or(0, |&(_, _, number)| number.saturating_sub(behind));
    let mut at = 0;
    for (name, place, number) in numbers {
        let number = match name {
            "prompt_tokens" => prompt,
            "completion_tokens" => number.saturating_add(behind),
            "cached_tokens" => number.min(prompt),
            _ => continue,
        };
        out.extend_from_slice(slice(usage, &(at..place.start)));
        out.extend_from_slice(number.to_string().as_bytes());
        at = place.end;
    }
    out.extend_from_slice(usage.get(at..).unwrap_or_default());
    out
}

/// The numbers of an object and of the objects in it, with their names, in order.
fn numbers(object: &[u8]) -> Option<Vec<(&str, MemberPlace, u64)>> {
    let mut cursor = Cursor::new(object).ok()?;
    if cursor.peek() != Some(b'{') {
        return None;
    }
    cursor.open();
    let mut found = Vec::new();
    let mut is_inner = false;
    let mut first = true;
    loop {
        match cursor.next_key(&mut first).ok()? {
            None if is_inner => {
                is_inner = false;
                first = false;
            }
            None => return Some(found),
            Some(_) if cursor.peek() == Some(b'{') && !is_inner => {
                cursor.open();
                is_inner = true;
                first = true;
            }
            Some(key) => {
                let start = cursor.at();
                cursor.skip_value(3).ok()?;
                let place = start..cursor.at();
                if let Ok(number) = cursor.slice(&place).parse() {
                    found.push((cursor.slice(&key.span), place, number));
                }
            }
        }
    }
}

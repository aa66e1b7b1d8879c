//! What an answer says of the tokens that it has cost, read as it passes. Only the small object
//! that says so is kept and parsed; all else is searched for its beginning.
//!
//! | API | object | prompt | cached | output |
//! |---|---|---|---|---|
//! | OpenAI | `usage` | `prompt_tokens` | `cached_tokens` in details | `completion_tokens` |
//! | Responses | `usage` | `input_tokens` | the same | `output_tokens` |
//! | Anthropic | `usage` | `input_tokens` and `cache_*` | `cache_read_*` | `output_tokens` |
//! | SGLang | `meta_info` | `prompt_tokens` | `cached_tokens` | `completion_tokens` |
//!
//! In text of an answer each quote is escaped, so no text can pass for such an object. The members
//! of the last object count. Of a batch of `/generate` in one piece, all objects count.

use forebay_base::limits::{USAGE_BYTES_MAX, USAGE_TOKENS_MAX};
use forebay_fleet::tenant::TokenUsage;
use memchr::memmem::Finder;
use serde_json::Value;

const USAGE: &[u8] = b"\"usage\":";
const META_INFO: &[u8] = b"\"meta_info\":";
const EVENT: &[u8] = b"\ndata: {";
const _: () = assert!(USAGE.len() <= META_INFO.len() && EVENT.len() <= META_INFO.len());

/// Prepared searches, for all answers of a shard.
#[derive(Debug)]
pub struct UsageFinders {
    usage: Finder<'static>,
    meta_info: Finder<'static>,
    event: Finder<'static>,
}

/// The search through one answer.
#[derive(Debug)]
pub struct UsageScan {
    form: UsageForm,
    /// The end of what has passed, which may be the beginning of a key.
    carry: Tail,
    /// The object that is being read.
    object: Option<PartialObject>,
    told: Told,
    counts_events: bool,
    events: u64,
}

/// Where an answer says what it has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageForm {
    /// `usage`, in one piece or at the end of a stream.
    Usage,
    /// `meta_info` of SGLang in one piece: of each prompt of a batch.
    MetaInfo,
    /// The same in each event of a stream.
    MetaInfoStream,
}

/// An object of which the end has not come.
#[derive(Debug, Default)]
struct PartialObject {
    bytes: Vec<u8>,
    depth: usize,
    /// Lists that are open; what they hold tells nothing, and is not kept.
    lists: usize,
    is_in_text: bool,
    is_escaped: bool,
    /// Nothing has come since the end of a line.
    ends_line: bool,
}

/// The end of what has passed, and the beginning of what comes: less than two keys, and no
/// allocation for each answer.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    held: [u8; 2 * META_INFO.len()],
    length: usize,
}

/// Members as they were told, each by the last object that had it.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    prompt: Option<u64>,
    input: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    output: Option<u64>,
}

impl UsageFinders {
    /// Prepares the searches; one per shard.
    #[must_use]
    pub fn new() -> Self {
        let (usage, meta_info) = (Finder::new(USAGE), Finder::new(META_INFO));
        Self { usage, meta_info, event: Finder::new(EVENT) }
    }
}

impl Default for UsageFinders {
    fn default() -> Self {
        Self::new()
    }
}

impl UsageScan {
    /// For an answer in that form.
    #[must_use]
    pub fn new(form: UsageForm) -> Self {
        // A stream begins with an event as if a line had ended before.
        let mut carry = Tail::default();
        carry.push(b"\n");
        let told = Told::default();
        Self { form, carry, object: None, told, counts_events: form == UsageForm::Usage, events: 0 }
    }

    /// Events are of no interest.
    #[must_use]
    pub fn without_events(self) -> Self {
        Self { counts_events: false, ..self }
    }

    /// Takes the next bytes of the body.
    pub fn feed(&mut self, finders: &UsageFinders, data: &[u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let Some(mut object) = self.object.take() else {
                rest = self.search(finders, rest);
                continue;
            };
            match object.feed(rest) {
                Fed::Whole(taken) => {
                    self.read(&object.bytes);
                    rest = rest.get(taken..).unwrap_or_default();
                }
                Fed::NotAll => {
                    self.object = Some(object);
                    return;
                }
                Fed::None(passed) => {
                    // An event may begin on the line that begins here.
                    self.carry.push(if object.ends_line { b"\n" } else { b"" });
                    rest = rest.get(passed..).unwrap_or_default();
                }
            }
        }
    }

    /// Searches for the next object; returns what is behind its key.
    fn search<'a>(&mut self, finders: &UsageFinders, data: &'a [u8]) -> &'a [u8] {
        let finder = match self.form {
            UsageForm::Usage => &finders.usage,
            UsageForm::MetaInfo | UsageForm::MetaInfoStream => &finders.meta_info,
        };
        let key_bytes = finder.needle().len();
        let before = self.carry.bytes().len();
        let head = data.get(..data.len().min(key_bytes - 1)).unwrap_or_default();
        self.carry.push(head);
        // A key that lies across two reads ends in this one.
        let across = finder.find(self.carry.bytes()).filter(|at| *at < before);
        let end = across.map(|at| (at + key_bytes).saturating_sub(before));
        let end = end.or_else(|| finder.find(data).map(|at| at + key_bytes));
        if self.counts_events {
            let passed = data.get(..end.unwrap_or(data.len())).unwrap_or_default();
            let begun =
                finders.event.find_iter(self.carry.bytes()).filter(|at| *at < before).count();
            let events = begun + finders.event.find_iter(passed).count();
            self.events += u64::try_from(events).unwrap_or(0);
        }
        if let Some(end) = end {
            self.carry = Tail::default();
            self.object = Some(PartialObject::default());
            return data.get(end..).unwrap_or_default();
        }
        if data.len() >= key_bytes {
            self.carry = Tail::default();
            self.carry.push(data.get(data.len() + 1 - key_bytes..).unwrap_or_default());
        } else {
            self.carry.keep_last(key_bytes - 1);
        }
        &[]
    }

    fn read(&mut self, object: &[u8]) {
        let Ok(members) = serde_json::from_slice::<Value>(object) else { return };
        let bounded = |count: u64| count.min(USAGE_TOKENS_MAX);
        let number = |name: &str| members.get(name).and_then(Value::as_u64).map(bounded);
        let detail = |name: &str| members.get(name)?.get("cached_tokens")?.as_u64().map(bounded);
        let now = Told {
            prompt: number("prompt_tokens"),
            input: number("input_tokens"),
            cached: number("cached_tokens")
                .or_else(|| detail("prompt_tokens_details"))
                .or_else(|| detail("input_tokens_details")),
            cache_read: number("cache_read_input_tokens"),
            cache_creation: number("cache_creation_input_tokens"),
            output: number("completion_tokens").or_else(|| number("output_tokens")),
        };
        self.told = self.told.joined(now, self.form == UsageForm::MetaInfo);
    }

    /// What the engine has told; `None` if nothing.
    #[must_use]
    pub fn told(&self) -> Option<TokenUsage> {
        let told = self.told;
        told.prompt.or(told.input).or(told.output)?;
        // Anthropic counts cached tokens apart from the others.
        let apart = told.cache_read.unwrap_or(0).saturating_add(told.cache_creation.unwrap_or(0));
        let prompt = told.prompt.unwrap_or_else(|| told.input.unwrap_or(0).saturating_add(apart));
        Some(TokenUsage {
            prompt,
            cached: self.cached().unwrap_or(0),
            output: told.output.unwrap_or(0),
        })
    }

    /// Cached tokens of the prompt, where the engine has told.
    #[must_use]
    pub fn cached(&self) -> Option<u64> {
        self.told.cached.or(self.told.cache_read)
    }

    /// Events of the stream so far, the one that ends it aside.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }
}

impl Told {
    /// What a later object says replaces what an earlier one said, or adds to it.
    fn joined(self, later: Self, adds: bool) -> Self {
        let join = |before: Option<u64>, now: Option<u64>| match (before, now) {
            (Some(before), Some(now)) if adds => Some(before.saturating_add(now)),
            (before, now) => now.or(before),
        };
        // Some answers repeat objects of the client's own, and the engine's word comes last: an
        // earlier object leaves nothing in a later one that tells of the prompt.
        let is_anew = !adds && (later.prompt.is_some() || later.input.is_some());
        if is_anew {
            return Self { output: join(self.output, later.output), ..later };
        }
        Self {
            prompt: join(self.prompt, later.prompt),
            input: join(self.input, later.input),
            cached: join(self.cached, later.cached),
            cache_read: join(self.cache_read, later.cache_read),
            cache_creation: join(self.cache_creation, later.cache_creation),
            output: join(self.output, later.output),
        }
    }
}

impl Tail {
    fn bytes(&self) -> &[u8] {
        self.held.get(..self.length).unwrap_or_default()
    }

    fn push(&mut self, more: &[u8]) {
        debug_assert!(self.length + more.len() <= self.held.len(), "more than two keys");
        for (place, byte) in self.held.iter_mut().skip(self.length).zip(more) {
            *place = *byte;
        }
        self.length = (self.length + more.len()).min(self.held.len());
    }

    fn keep_last(&mut self, count: usize) {
        let over = self.length.saturating_sub(count);
        self.held.copy_within(over..self.length, 0);
        self.length -= over;
    }
}

/// What became of bytes that an object was fed.
enum Fed {
    /// It ended after so many.
    Whole(usize),
    /// Its end has not come.
    NotAll,
    /// It is no object, or too long: what follows so many is searched.
    None(usize),
}

impl PartialObject {
    fn feed(&mut self, data: &[u8]) -> Fed {
        for (position, byte) in data.iter().copied().enumerate() {
            if self.depth == 0 && byte.is_ascii_whitespace() {
                self.ends_line = byte == b'\n';
                continue;
            }
            if self.depth == 0 && byte != b'{' || self.bytes.len() >= USAGE_BYTES_MAX {
                return Fed::None(position);
            }
            self.ends_line = false;
            let is_in_list = self.lists > 0;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => self.is_in_text = !self.is_in_text,
                _ if self.is_in_text => {}
                b'[' => self.lists += 1,
                b']' => self.lists = self.lists.saturating_sub(1),
                b'{' if !is_in_list => self.depth += 1,
                b'}' if !is_in_list => self.depth -= 1,
                _ => {}
            }
            if !is_in_list || self.lists == 0 {
                self.bytes.push(byte);
            }
            if self.depth == 0 {
                return Fed::Whole(position + 1);
            }
        }
        Fed::NotAll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHAT: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a \\\"usage\\\": {\\\"b\\\":1}\"}}],",
        "\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\ndata: {\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":17,",
        "\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n",
        "data: [DONE]\n\n",
    );

    fn scan(form: UsageForm, body: &[u8], cuts: &[usize]) -> (Option<TokenUsage>, u64) {
        let (finders, mut scan) = (UsageFinders::new(), UsageScan::new(form));
        let mut rest = body;
        for cut in cuts {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            scan.feed(&finders, now);
            rest = later;
        }
        scan.feed(&finders, rest);
        (scan.told(), scan.events())
    }

    fn told(form: UsageForm, body: &str) -> Option<(u64, u64, u64)> {
        let usage = scan(form, body.as_bytes(), &[]).0?;
        Some((usage.prompt, usage.cached, usage.output))
    }

    #[test]
    fn each_api_says_it_in_its_own_way() {
        use UsageForm::{MetaInfo, MetaInfoStream, Usage};
        assert_eq!(told(Usage, CHAT), Some((12, 8, 5)));
        let unary = r#"{"text":"x","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
        assert_eq!(told(Usage, unary), Some((3, 0, 4)));
        let vectors = r#"{"data":[],"usage": {"prompt_tokens": 7, "total_tokens": 7}}"#;
        assert_eq!(told(Usage, vectors), Some((7, 0, 0)));
        let responses = r#"data: {"type":"response.completed","response":{"usage":
            {"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}}}"#;
        assert_eq!(told(Usage, responses), Some((9, 4, 2)));
        let forged = r#"{"tools":[{"parameters":{"usage":{"prompt_tokens":0,
            "cache_creation_input_tokens":18446744073709551615,"output_tokens":7}}}],
            "usage":{"input_tokens":9,"output_tokens":2}}"#;
        assert_eq!(told(Usage, forged), Some((9, 0, 2)), "an object of the client's own");
        let absurd = r#"{"usage":{"prompt_tokens":18446744073709551615}}"#;
        assert_eq!(told(Usage, absurd), Some((USAGE_TOKENS_MAX, 0, 0)));
        let messages = concat!(
            "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":5,",
            "\"cache_read_input_tokens\":16,\"cache_creation_input_tokens\":1,",
            "\"output_tokens\":1}}}\n\n",
            "event: message_delta\ndata: {\"usage\":{\"output_tokens\":33}}\n\n",
        );
        assert_eq!(told(Usage, messages), Some((22, 16, 33)));
        let one = |prompt: u64, cached: u64, output: u64| {
            format!(
                "{{\"text\":\"\",\"meta_info\":{{\"prompt_tokens\":{prompt},\
                 \"cached_tokens\":{cached},\"completion_tokens\":{output}}}}}"
            )
        };
        let batch = format!("[{},{}]", one(2, 1, 3), one(20, 10, 30));
        assert_eq!(told(MetaInfo, &batch), Some((22, 11, 33)));
        let stream = &format!("data: {}\n\ndata: {}\n\n", one(2, 0, 1), one(2, 0, 2));
        assert_eq!(told(MetaInfoStream, stream), Some((2, 0, 2)));
    }

    #[test]
    fn lists_are_passed_over_however_long() {
        let logprobs = "[-0.25,[17,\"a]\\\"\",{\"}\":1}]],".repeat(USAGE_BYTES_MAX / 8);
        for (form, key) in [(UsageForm::MetaInfo, "meta_info"), (UsageForm::Usage, "usage")] {
            let body = format!(
                "{{\"{key}\":{{\"prompt_tokens\":3,\"a\":[{logprobs}0],\"b\":[],\
                 \"completion_tokens\":4}}}}"
            );
            assert_eq!(told(form, &body), Some((3, 0, 4)));
            assert_eq!(told(form, &body.replace("[]", "]")), None, "no list ends there");
        }
    }

    #[test]
    fn what_says_nothing_counts_nothing() {
        for body in [
            "",
            "{}",
            r#"{"usage":null}"#,
            r#"{"usage":{"prompt_tokens":null}}"#,
            r#"{"usage":{"prompt_tokens":1"#,
            r#"{"usage":"prompt_tokens"}"#,
            r#"{"usage":{"prompt_tokens":-1,"completion_tokens":"7"}}"#,
            r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#,
        ] {
            assert_eq!(told(UsageForm::Usage, body), None, "{body}");
        }
        let long = format!("{{\"usage\":{{\"a\":\"{}\"}}}}", "x".repeat(USAGE_BYTES_MAX));
        let then = format!("{long},\"usage\":{{\"prompt_tokens\":6}}");
        assert_eq!(told(UsageForm::Usage, &then), Some((6, 0, 0)), "the search goes on");
    }

    #[test]
    fn events_are_counted_and_text_is_none() {
        assert_eq!(scan(UsageForm::Usage, CHAT.as_bytes(), &[]).1, 4);
        assert_eq!(scan(UsageForm::Usage, b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", &[]).1, 2);
        let cut = b"data: {\"usage\":\n\ndata: {}\n\n";
        for read in [15, 16, 17, 18] {
            assert_eq!(scan(UsageForm::Usage, cut, &[read]).1, 2, "a key without its object");
        }
    }

    proptest! {
        /// Wherever reads end, the same is found.
        #[test]
        fn reads_may_end_anywhere(cuts in prop::collection::vec(1_usize..40, 0..40)) {
            let whole = scan(UsageForm::Usage, CHAT.as_bytes(), &[]);
            prop_assert_eq!(scan(UsageForm::Usage, CHAT.as_bytes(), &cuts), whole);
        }

        #[test]
        fn any_bytes_pass(data: Vec<u8>, cuts in prop::collection::vec(0_usize..9, 0..9)) {
            let body = [&b"\"usage\":{"[..], &data].concat();
            for form in [UsageForm::Usage, UsageForm::MetaInfo, UsageForm::MetaInfoStream] {
                let _ = scan(form, &body, &cuts);
            }
        }
    }
}

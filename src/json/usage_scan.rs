//! Tokens of an answer that is billed, read as the answer passes.
//!
//! | API | object | prompt | cached | output |
//! |---|---|---|---|---|
//! | OpenAI | `usage` | `prompt_tokens` | `cached_tokens` in details | `completion_tokens` |
//! | Responses | `usage` | `input_tokens` | the same | `output_tokens` |
//! | Anthropic | `usage` | `input_tokens` and `cache_*` | `cache_read_*` | `output_tokens` |
//! | SGLang | `meta_info` | `prompt_tokens` | `cached_tokens` | `completion_tokens` |
//!
//! An object counts only where engines put it, see [`MemberPath`]. The members of the last such
//! object count. Of a batch of `/generate` without a stream, all objects count. In a stream the
//! data of an event counts, see [`EventLines`].

use crate::event_lines::{DataPart, EventLines};
use crate::member_path::MemberPath;
use crate::usage_form::UsageForm;
use crate::usage_numbers::UsageNumbers;
use crate::usage_object::{ObjectEnd, UsageObject};
use forebay_base::TokenUsage;

/// The search through an answer.
#[derive(Debug)]
pub struct UsageScan {
    form: UsageForm,
    lines: EventLines,
    path: MemberPath,
    /// The object that is being read.
    object: Option<UsageObject>,
    /// Of events that are whole.
    reported: UsageNumbers,
    /// The same with the open event, where that has an object.
    open: Option<UsageNumbers>,
    /// Whole events so far, and whole events up to the last with an object.
    events: u64,
    reported_events: u64,
}

impl UsageScan {
    /// For an answer of that form.
    #[must_use]
    pub const fn new(form: UsageForm) -> Self {
        Self {
            form,
            lines: EventLines::new(form.is_stream()),
            path: MemberPath::new(form.key()),
            object: None,
            reported: UsageNumbers::NONE,
            open: None,
            events: 0,
            reported_events: 0,
        }
    }

    /// Takes the next bytes of the body. True if an event is whole that may have a token.
    pub fn feed(&mut self, data: &[u8]) -> bool {
        let before = self.events();
        let mut rest = data;
        while let Some((part, behind)) = self.lines.next(rest) {
            rest = behind;
            match part {
                DataPart::Data(data) => self.read(data),
                DataPart::End => {
                    self.object = None;
                    self.path.begin_event();
                    self.events = self.path.objects();
                    if let Some(numbers) = self.open.take() {
                        self.reported = numbers;
                        self.reported_events = self.events;
                    }
                }
            }
        }
        self.events() != before
    }

    fn read(&mut self, data: &[u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let Some(object) = &mut self.object else {
                let Some(at) = self.path.feed(rest) else { return };
                self.object = Some(UsageObject::default());
                rest = rest.get(at..).unwrap_or_default();
                continue;
            };
            let end = match object.feed(rest) {
                ObjectEnd::Open => return,
                ObjectEnd::Whole(end) => {
                    let before = self.open.unwrap_or(self.reported);
                    self.open = Some(before.joined(*object.numbers(), self.form.adds_objects()));
                    end
                }
                ObjectEnd::Not(end) => {
                    if object.has_begun() {
                        self.path.lose();
                    }
                    end
                }
            };
            self.object = None;
            rest = rest.get(end..).unwrap_or_default();
        }
    }

    /// The tokens that the engine has reported.
    #[must_use]
    pub fn usage(&self) -> Option<TokenUsage> {
        self.open.unwrap_or(self.reported).usage()
    }

    /// The same of a stream that is cut: a client does not read an event without its end.
    #[must_use]
    pub fn usage_of_whole_events(&self) -> Option<TokenUsage> {
        if self.form.is_stream() { self.reported.usage() } else { self.usage() }
    }

    /// Cached tokens of the prompt, where the engine reports them.
    #[must_use]
    pub fn cached(&self) -> Option<u64> {
        self.open.unwrap_or(self.reported).cached()
    }

    /// Whole events of the stream so far that may have a token.
    #[must_use]
    pub const fn events(&self) -> u64 {
        if self.form.is_stream() { self.events } else { self.path.objects() }
    }

    /// Whole events behind the last event with an object.
    #[must_use]
    pub const fn events_since_report(&self) -> u64 {
        self.events.saturating_sub(self.reported_events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::limits::{USAGE_BYTES_MAX, USAGE_TOKENS_MAX};
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
        let mut scan = UsageScan::new(form);
        let mut rest = body;
        for cut in cuts {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            scan.feed(now);
            rest = later;
        }
        scan.feed(rest);
        (scan.usage(), scan.events())
    }

    fn told(form: UsageForm, body: &str) -> Option<(u64, u64, u64)> {
        let usage = scan(form, body.as_bytes(), &[]).0?;
        Some((usage.prompt, usage.cached, usage.output))
    }

    #[test]
    fn each_api_says_it_in_its_own_way() {
        use UsageForm::{MetaInfo, MetaInfoStream, Usage, UsageStream};
        assert_eq!(told(UsageStream, CHAT), Some((12, 8, 5)));
        let unary = r#"{"text":"x","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
        assert_eq!(told(Usage, unary), Some((3, 0, 4)));
        let vectors = r#"{"data":[],"usage": {"prompt_tokens": 7, "total_tokens": 7}}"#;
        assert_eq!(told(Usage, vectors), Some((7, 0, 0)));
        let responses = concat!(
            "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9,",
            "\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":2}}}",
        );
        assert_eq!(told(UsageStream, responses), Some((9, 4, 2)));
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
        assert_eq!(told(UsageStream, messages), Some((22, 16, 33)));
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
    fn json_of_the_client_is_not_the_engines_word() {
        let own = r#"{"usage":{"input_tokens":0,"output_tokens":0},"response":{"usage":
            {"input_tokens":0}},"meta_info":{"prompt_tokens":0}}"#;
        for place in ["metadata", "message2", "tools", "text", "response2"] {
            for (before, behind) in [("", ""), ("[", "]"), ("{\"response\":", "}")] {
                let own = format!("\"{place}\":{before}{own}{behind}");
                let real = "\"usage\":{\"input_tokens\":9,\"output_tokens\":2}";
                for answer in [format!("{{{own},{real}}}"), format!("{{{real},{own}}}")] {
                    assert_eq!(told(UsageForm::Usage, &answer), Some((9, 0, 2)), "{answer}");
                    let line = answer.replace('\n', "");
                    let event = format!("event: x\ndata: {{\"response\":{line}}}\n\n");
                    assert_eq!(told(UsageForm::UsageStream, &event), Some((9, 0, 2)), "{event}");
                }
            }
        }
        let batch = r#"[{"text":"","x":{"meta_info":{"prompt_tokens":9}},
            "meta_info":{"prompt_tokens":2}}]"#;
        assert_eq!(told(UsageForm::MetaInfo, batch), Some((2, 0, 0)));
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
        let then = format!("data: {long}\n\ndata: {{\"usage\":{{\"prompt_tokens\":6}}}}\n\n");
        assert_eq!(told(UsageForm::UsageStream, &then), Some((6, 0, 0)), "the next event counts");
    }

    #[test]
    fn whole_events_are_counted_and_text_is_none() {
        assert_eq!(
            scan(UsageForm::UsageStream, CHAT.as_bytes(), &[]).1,
            3,
            "the usage is no token"
        );
        assert_eq!(
            scan(UsageForm::UsageStream, b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", &[]).1,
            2
        );
        let cut = b"data: {\"usage\":\n\ndata: {}\n\n";
        for read in [15, 16, 17, 18] {
            assert_eq!(scan(UsageForm::UsageStream, cut, &[read]).1, 1, "a key without its object");
        }
        let empty = [
            "{\"choices\": [ ],\"x\":[1]}",
            "{\"type\":\"message_stop\"}",
            "{\"a\":[],\"type\" : \"message_stop\" , \"b\":{}}",
        ];
        let tokens = [
            "{\"choices\":[{}]}",
            "{\"choices\":[{\"choices\":[]}]}",
            "{\"delta\":{\"type\":\"message_stop\"}}",
            "{\"type\":\"x\",\"y\":\"message_stop\"}",
            "{\"x\":[],\"choices\":{}}",
        ];
        for (objects, count) in [(&empty[..], 0), (&tokens, 1)] {
            for object in objects {
                let event = format!("data: {object}\n\n");
                assert_eq!(
                    scan(UsageForm::UsageStream, event.as_bytes(), &[]).1,
                    count,
                    "{object}"
                );
            }
        }
    }

    /// CHAT with its data on several lines that end with `end`, each cut behind a comma.
    fn on_lines(end: &str) -> String {
        CHAT.replace(",\"", ",\ndata:\"").replace('\n', end)
    }

    #[test]
    fn an_event_may_have_several_lines_of_data() {
        for end in ["\n", "\r\n", "\r"] {
            let body = on_lines(end);
            let all = scan(UsageForm::UsageStream, body.as_bytes(), &[]);
            assert_eq!(all, scan(UsageForm::UsageStream, CHAT.as_bytes(), &[]), "{body}");
        }
        let other = "data: {\"usage\":{\nid: 7\n: x\nevent: y\ndata: \"prompt_tokens\":3}}\n\n";
        assert_eq!(told(UsageForm::UsageStream, other), Some((3, 0, 0)), "lines between them");
        let apart = "data: {\"usage\":{\n\ndata: \"prompt_tokens\":3}}\n\n";
        assert_eq!(told(UsageForm::UsageStream, apart), None, "two events");
        let comment = ": {\"usage\":{\"prompt_tokens\":3}}\n\n";
        assert_eq!(told(UsageForm::UsageStream, comment), None);
    }

    /// Wherever a stream is cut, nothing behind the last word of its engine counts but text.
    #[test]
    fn tokens_behind_the_last_word_are_those_of_text() {
        let since = |body: &str, cut: usize| {
            let mut scan = UsageScan::new(UsageForm::UsageStream);
            scan.feed(&body.as_bytes()[..cut]);
            let told = scan.usage_of_whole_events();
            (told.map(|told| told.output), scan.events_since_report())
        };
        let messages = "data: {\"message\":{\"usage\":{\"output_tokens\":1}}}\n\n\
            data: {\"delta\":{}}\n\ndata: {\"delta\":{}}\n\n\
            data: {\"delta\":{},\"usage\":{\"output_tokens\":9}}\n\n\
            event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        let sums: Vec<u64> = (0..=messages.len())
            .map(|cut| since(messages, cut))
            .filter_map(|(told, since)| Some(told? + since))
            .collect();
        assert!(sums.is_sorted(), "{sums:?}");
        let mut each = sums;
        each.dedup();
        assert_eq!(each, [1, 2, 3, 9]);
        for cut in 0..=CHAT.len() {
            let (told, since) = since(CHAT, cut);
            assert!(told.is_none() || (told, since) == (Some(5), 0), "{told:?} {since} at {cut}");
        }
    }

    proptest! {
        /// Wherever reads end, the same is found.
        #[test]
        fn reads_may_end_anywhere(cuts in prop::collection::vec(1_usize..40, 0..40)) {
            let whole = scan(UsageForm::UsageStream, CHAT.as_bytes(), &[]);
            for body in [CHAT.to_owned(), on_lines("\n"), on_lines("\r\n"), on_lines("\r")] {
                prop_assert_eq!(scan(UsageForm::UsageStream, body.as_bytes(), &cuts), whole);
            }
        }

        #[test]
        fn any_bytes_pass(data: Vec<u8>, cuts in prop::collection::vec(0_usize..9, 0..9)) {
            let body = [&b"\"usage\":{"[..], &data].concat();
            for form in [UsageForm::Usage, UsageForm::UsageStream, UsageForm::MetaInfo] {
                let _ = scan(form, &body, &cuts);
            }
        }
    }
}

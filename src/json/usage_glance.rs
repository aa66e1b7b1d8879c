//! Tokens of an answer by a search of each read. Objects behind the key count anywhere in the
//! answer.

use crate::usage_finder::{CutKey, UsageFinder};
use crate::usage_form::UsageForm;
use crate::usage_numbers::UsageNumbers;
use crate::usage_object::{ObjectEnd, UsageObject};

/// The search through an answer of which nothing is billed. Two words, and a box behind the first
/// object: each open stream holds a glance.
#[derive(Debug)]
pub struct UsageGlance {
    found: Option<Box<FoundUsage>>,
    form: UsageForm,
    key: CutKey,
}

#[derive(Debug, Default)]
struct FoundUsage {
    numbers: UsageNumbers,
    /// The object that the last read has cut.
    open: Option<UsageObject>,
}

impl UsageGlance {
    pub(crate) const fn new(form: UsageForm) -> Self {
        Self { found: None, form, key: CutKey::new() }
    }

    /// Takes the next bytes of the body.
    pub(crate) fn feed(&mut self, finder: &UsageFinder, data: &[u8]) {
        let mut rest = data;
        if let Some(found) = self.found.as_deref_mut()
            && let Some(object) = found.open.take()
        {
            rest = found.read(object, rest, self.form);
        }
        while let Some(at) = self.key.find(finder, self.form, rest) {
            rest = rest.get(at..).unwrap_or_default();
            // Streams have `null` in each event but the last.
            if rest.first().is_some_and(u8::is_ascii_alphabetic) {
                continue;
            }
            let found = self.found.get_or_insert_default();
            rest = found.read(UsageObject::default(), rest, self.form);
        }
    }

    pub(crate) fn numbers(&self) -> UsageNumbers {
        self.found.as_deref().map(|found| found.numbers).unwrap_or_default()
    }
}

impl FoundUsage {
    /// Reads on in an object. Returns the bytes behind the object.
    fn read<'a>(&mut self, mut object: UsageObject, data: &'a [u8], form: UsageForm) -> &'a [u8] {
        let end = match object.feed(data) {
            ObjectEnd::Open => {
                self.open = Some(object);
                data.len()
            }
            ObjectEnd::Whole(end) => {
                self.numbers = self.numbers.joined(*object.numbers(), form.adds_objects());
                end
            }
            ObjectEnd::Not(end) => end,
        };
        data.get(end..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::{UsageFinder, UsageForm, UsageReader};
    use forebay_base::TokenUsage;
    use forebay_base::limits::{USAGE_BYTES_MAX, USAGE_TOKENS_MAX};
    use proptest::prelude::*;

    type Found = (Option<TokenUsage>, Option<u64>);
    /// Prompt, cached and output tokens.
    type Tokens = (u64, Option<u64>, u64);

    fn read<'a>(mut reader: UsageReader, reads: impl Iterator<Item = &'a [u8]>) -> Found {
        let finder = UsageFinder::default();
        for read in reads {
            reader.feed(&finder, read);
        }
        (reader.usage(), reader.cached())
    }

    fn glance(form: UsageForm, reads: &[&str]) -> Option<Tokens> {
        let reads = reads.iter().map(|read| read.as_bytes());
        let (usage, cached) = read(UsageReader::glance(form), reads);
        usage.map(|usage| (usage.prompt, cached, usage.output))
    }

    fn cut<'a>(body: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
        let ends = cuts.iter().copied().chain([usize::MAX]);
        ends.scan(body, |rest, cut| {
            let (read, behind) = rest.split_at(cut.min(rest.len()));
            *rest = behind;
            Some(read)
        })
    }

    const CHAT: &str = r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":1}"}],"usage":{
        "prompt_tokens":64,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens": 48}}}"#;
    const RESPONSES: &str = concat!(
        "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
        "data: {\"response\":{\"usage\":{\"input_tokens\":9,\"input_tokens_details\":",
        "{\"cached_tokens\":4},\"output_tokens\":2}}}\n\n",
    );
    const MESSAGES: &str = concat!(
        "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":5,",
        "\"cache_read_input_tokens\":16,\"cache_creation_input_tokens\":1,",
        "\"output_tokens\":1}}}\n\n",
        "event: message_delta\ndata: {\"usage\":{\"output_tokens\":33}}\n\n",
    );
    const BATCH: &str = r#"[{"text":"a","meta_info":{"prompt_tokens":2,"cached_tokens":1,
        "x":[["y",{"prompt_tokens":7}]],"completion_tokens":3}},
        {"text":"b","meta_info":{"prompt_tokens":20,"cached_tokens":10,"completion_tokens":30}}]"#;
    const GENERATE: &str = concat!(
        "data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":2,\"completion_tokens\":1}}\n\n",
        "data: {\"text\":\"ab\",\"meta_info\":{\"prompt_tokens\":2,\"completion_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
    );
    const ANSWERS: [(UsageForm, &str, Tokens); 6] = [
        (UsageForm::Usage, CHAT, (64, Some(48), 3)),
        (UsageForm::UsageStream, RESPONSES, (9, Some(4), 2)),
        (UsageForm::UsageStream, MESSAGES, (22, Some(16), 33)),
        (UsageForm::MetaInfo, BATCH, (22, Some(11), 33)),
        (UsageForm::MetaInfoStream, GENERATE, (2, None, 2)),
        (UsageForm::Usage, r#"{"usage": {"prompt_tokens":7,"total_tokens":9}}"#, (7, None, 0)),
    ];

    #[test]
    fn each_api_is_read() {
        for (form, body, wanted) in ANSWERS {
            assert_eq!(glance(form, &[body]), Some(wanted), "{body}");
        }
    }

    /// Each answer with a cut at each place. The search of each read missed a number that was cut.
    #[test]
    fn a_cut_loses_no_number() {
        for (form, body, wanted) in ANSWERS {
            for at in 0..body.len() {
                let (read, rest) = body.split_at(at);
                assert_eq!(glance(form, &[read, rest]), Some(wanted), "{read}|{rest}");
            }
        }
    }

    #[test]
    fn the_last_object_counts_and_text_does_not() {
        let early = r#"{"usage":{"prompt_tokens":1,"cached_tokens":1}}"#;
        let late = r#"{"usage":{"prompt_tokens":12,"cached_tokens":8}}"#;
        let form = UsageForm::UsageStream;
        assert_eq!(glance(form, &[early, late]), Some((12, Some(8), 0)));
        let own = r#"{"tools":[{"cache_creation_input_tokens":999,"cached_tokens":9}],
            "usage":{"input_tokens":9,"output_tokens":2}}"#;
        assert_eq!(glance(UsageForm::Usage, &[own]), Some((9, None, 2)), "of the client");
        for body in [
            "",
            "\"usage\":",
            r#"{"text":"\"usage\":{\"prompt_tokens\":12}"}"#,
            r#"{"usage":{"prompt_tokens":12"#,
            r#"{"usage":{"prompt_tokens":null}}"#,
            r#"{"usage":null,"prompt_tokens":3}"#,
        ] {
            assert_eq!(glance(UsageForm::Usage, &[body]), None, "{body}");
        }
        let absurd = r#"{"usage":{"prompt_tokens":1234567890123}}"#;
        let most = Some((USAGE_TOKENS_MAX, None, 0));
        assert_eq!(glance(UsageForm::Usage, &[absurd]), most);
        let long = format!("{{\"usage\":{{\"a\":\"{}\"}}}}", "x".repeat(USAGE_BYTES_MAX));
        assert_eq!(glance(UsageForm::Usage, &[&long, late]), Some((12, Some(8), 0)));
    }

    /// Each open stream holds a reader.
    #[test]
    fn a_reader_is_small() {
        assert!(size_of::<UsageReader>() <= 16);
        assert!(size_of::<crate::UsageScan>() <= 296);
    }

    proptest! {
        /// A glance and a scan find the same in the answers of engines, wherever reads end.
        #[test]
        fn a_scan_finds_the_same(cuts in prop::collection::vec(0_usize..20, 0..40)) {
            for (form, body, _) in ANSWERS {
                let body = body.as_bytes();
                let scanned = read(UsageReader::scan(form), cut(body, &cuts));
                prop_assert_eq!(read(UsageReader::glance(form), cut(body, &cuts)), scanned);
            }
        }

        /// Any parts of answers, in any order, are read the same wherever reads end.
        #[test]
        fn reads_may_end_anywhere(
            parts in prop::collection::vec(0_usize..14, 0..40),
            cuts in prop::collection::vec(0_usize..9, 0..60),
        ) {
            const PARTS: [&str; 14] = [
                "\"usage\":", "\"usage", "\"meta_info\":", "{", "}", "\"prompt_tokens\":12",
                ",\"completion_tokens\":3", "\"", "\\", "[", "]", " ", "9", "\n\ndata: ",
            ];
            let body: String = parts.iter().filter_map(|part| PARTS.get(*part)).copied().collect();
            let body = body.as_bytes();
            for form in [UsageForm::Usage, UsageForm::MetaInfo, UsageForm::UsageStream] {
                for reader in [UsageReader::glance, UsageReader::scan] {
                    let whole = read(reader(form), [body].into_iter());
                    prop_assert_eq!(read(reader(form), cut(body, &cuts)), whole);
                }
            }
        }
    }
}

//! Prompts equal those of the engines, byte for byte: real templates times cases, against what
//! transformers renders (`tools/chat_templates.py` writes the expected ones). Each case goes the
//! router's way, `scan` then `render`, which takes the learnt plan where it covers the messages,
//! and once more through the template itself.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails must stop")]
#![allow(clippy::print_stderr, reason = "a summary for people")]

use forebay::parse::{ApiRequest, Endpoint, scan};
use forebay::render::{RenderMethod, Unrenderable, render};
use forebay::text::Vocabulary;
use forebay::text::chat::{ChatTemplate, EngineRules, SpecialTokens};
use forebay::worker::ModelText;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Byte-level, without tokens that swallow spaces: leaves texts as they are.
const TOKENIZER: &str = include_str!("../data/tokenizer/tokenizer.json");
const DATE_START: char = '\u{fdd0}';
const DATE_END: char = '\u{fdd1}';

/// Another set of templates can be named, written by the same tool.
fn directory() -> PathBuf {
    std::env::var_os("CHAT_TEMPLATES")
        .map_or_else(|| PathBuf::from("tests/data/chat_templates"), PathBuf::from)
}

fn json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(directory().join(path)).unwrap()).unwrap()
}

/// What came of all cases.
#[derive(Default)]
struct Tally {
    compared: usize,
    planned: usize,
    refused: usize,
    faults: Vec<String>,
}

/// One template under one engine's rules.
struct Subject {
    name: String,
    model: ModelText,
    /// The template loops over an argument that is none in most cases, which Jinja2 refuses and our
    /// interpreter does not. The engine will answer 400.
    loops_over_none: bool,
}

impl Subject {
    fn new(name: &str, known: &Value, rules: EngineRules, vocabulary: &Arc<Vocabulary>) -> Self {
        let source = fs::read_to_string(directory().join(format!("{name}.jinja"))).unwrap();
        let special = known["special"].as_object().unwrap();
        let special = special.iter().fold(SpecialTokens::new(), |special, (name, text)| {
            special.with(name, text.as_str().unwrap())
        });
        let chat_template = Some(ChatTemplate::compile_for(&source, &special, rules).unwrap());
        let vocabulary = Arc::clone(vocabulary);
        let model = ModelText { vocabulary, chat_encoder: None, chat_template, rules };
        let loops_over_none = known.get("loops_over_none").is_some();
        Self { name: name.to_owned(), model, loops_over_none }
    }

    fn compare(&self, case: &str, body: &str, expected: Option<&str>, tally: &mut Tally) {
        let mut request = ApiRequest::default();
        scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request).unwrap();
        let mut out = Vec::new();
        let routed = render(&request, body.as_bytes(), &self.model, &mut out);
        tally.compared += 1;
        tally.planned += usize::from(routed == Ok(RenderMethod::Plan));
        tally.refused += usize::from(routed.is_err());
        let routed = routed.map(|_| String::from_utf8(out).unwrap());
        let mut out = Vec::new();
        let template = self.model.chat_template.as_ref().unwrap();
        let full = template.render_full(body.as_bytes(), &mut out);
        let full =
            full.map(|()| String::from_utf8(out).unwrap()).map_err(|_| Unrenderable::Refused);
        for (way, text) in [("router", routed), ("template", full)] {
            let same = match (&text, expected) {
                (Ok(text), Some(expected)) => text == expected,
                (Ok(_), None) => self.loops_over_none,
                (Err(error), expected) => expected.is_none() && *error == Unrenderable::Refused,
            };
            if !same {
                let difference = difference(text.as_deref(), expected);
                tally.faults.push(format!("{}, {case}, {way}: {difference}", self.name));
            }
        }
    }
}

/// The first place where two texts part.
fn difference(text: Result<&str, &Unrenderable>, expected: Option<&str>) -> String {
    let (Ok(text), Some(expected)) = (text, expected) else {
        return format!("{text:.200?}, expected {expected:.200?}");
    };
    let same = text.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
    let tail = |text: &str| text.chars().skip(same.saturating_sub(20)).take(80).collect::<String>();
    format!("…{:?}, expected …{:?}", tail(text), tail(expected))
}

/// Formats between marks become today's date, as the template engine prints it.
fn with_dates(text: &str) -> String {
    let mut parts = text.split(DATE_START);
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (format, rest) = part.split_once(DATE_END).unwrap();
        let source = format!("{{{{ strftime_now('{format}') }}}}");
        let template = ChatTemplate::compile(&source, &SpecialTokens::new()).unwrap();
        let mut date = Vec::new();
        template.render_full(br#"{"messages":[]}"#, &mut date).unwrap();
        out.push_str(&String::from_utf8(date).unwrap());
        out.push_str(rest);
    }
    out
}

/// Compares all cases under one engine's rules.
fn compare(rules: EngineRules) {
    let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(TOKENIZER).unwrap());
    let cases = json("cases.json");
    let named =
        |case: &Value| (case["name"].as_str().unwrap().to_owned(), case["body"].to_string());
    let bodies: HashMap<String, String> = cases.as_array().unwrap().iter().map(named).collect();
    let mut tally = Tally::default();
    for (name, known) in json("templates.json").as_object().unwrap() {
        let subject = Subject::new(name, known, rules, &vocabulary);
        let golden = fs::read_to_string(directory().join(format!("{name}.jsonl"))).unwrap();
        let planned_before = tally.planned;
        for line in golden.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let case = line["case"].as_str().unwrap();
            let differs = rules == EngineRules::Sglang && line.get("sglang").is_some();
            let expected = line[if differs { "sglang" } else { "vllm" }].as_str().map(with_dates);
            subject.compare(case, &bodies[case], expected.as_deref(), &mut tally);
        }
        let plan = subject.model.chat_template.as_ref().unwrap().plan_summary();
        let planned = tally.planned - planned_before;
        eprintln!("{name}: {planned} of {} by plan: {plan}", golden.lines().count());
    }
    eprintln!(
        "{rules:?}: {} compared, {} by plan, {} refused",
        tally.compared, tally.planned, tally.refused
    );
    assert!(tally.faults.is_empty(), "{}:\n{}", tally.faults.len(), tally.faults.join("\n"));
    assert!(tally.planned * 4 > tally.compared, "too few by plan: {}", tally.planned);
}

#[test]
fn prompts_are_those_of_vllm() {
    compare(EngineRules::Vllm);
}

#[test]
fn prompts_are_those_of_sglang() {
    compare(EngineRules::Sglang);
}

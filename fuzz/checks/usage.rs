//! An answer with its tokens. The first byte is the form, the second the length of reads. Must
//! hold: the reads do not change the tokens, of a scan and of a glance; no count passes its bound;
//! of JSON without a stream, a parser of the whole body finds the same.

use forebay_base::TokenUsage;
use forebay_base::limits::{USAGE_BYTES_MAX, USAGE_TOKENS_MAX};
use forebay_json::{UsageFinder, UsageForm, UsageReader, UsageScan};
use serde_json::Value;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some(([form, piece], body)) = data.split_first_chunk::<2>() else { return };
    let form = match form % 4 {
        0 => UsageForm::Usage,
        1 => UsageForm::MetaInfo,
        2 => UsageForm::UsageStream,
        _ => UsageForm::MetaInfoStream,
    };
    let whole = scanned(form, body, body.len().max(1));
    for piece in [1, usize::from(*piece) + 1] {
        assert_eq!(scanned(form, body, piece), whole, "in reads of {piece}");
        assert_eq!(glanced(form, body, piece), glanced(form, body, body.len().max(1)));
    }
    let (told, events) = whole;
    assert!(usize::try_from(events).expect("few") <= body.len(), "{events} events");
    let Some(told) = told else { return second_opinion(form, body, None) };
    let objects = u64::try_from(body.len() / 8 + 1).expect("few");
    // The prompt may be a sum of three members, and there is one for each of a batch.
    let most = USAGE_TOKENS_MAX.saturating_mul(3).saturating_mul(objects);
    assert!(told.prompt <= most && told.cached <= most && told.output <= most, "{told:?}");
    second_opinion(form, body, Some(told));
}

fn scanned(form: UsageForm, body: &[u8], piece: usize) -> (Option<TokenUsage>, u64) {
    let mut scan = UsageScan::new(form);
    for piece in body.chunks(piece) {
        scan.feed(piece);
    }
    (scan.usage(), scan.events())
}

fn glanced(form: UsageForm, body: &[u8], piece: usize) -> (Option<TokenUsage>, Option<u64>) {
    let finder = UsageFinder::default();
    let mut reader = UsageReader::glance(form);
    for piece in body.chunks(piece) {
        reader.feed(&finder, piece);
    }
    (reader.usage(), reader.cached())
}

fn second_opinion(form: UsageForm, body: &[u8], told: Option<TokenUsage>) {
    // A key that is written with an escape is another one here.
    let is_plain = form == UsageForm::Usage && body.len() < USAGE_BYTES_MAX;
    if !is_plain || body.contains(&b'\\') {
        return;
    }
    let Ok(Value::Object(answer)) = serde_json::from_slice::<Value>(body) else { return };
    // Members of these count too. Of several members with one name the parser knows the last alone.
    let is_held = ["response", "message"].iter().any(|name| answer.get(*name).is_some());
    let count = body.windows(7).filter(|part| *part == b"\"usage\"").count();
    let Some(Value::Object(usage)) = answer.get("usage").filter(|_| !is_held) else { return };
    let nested = answer.values().map(usages).sum::<usize>();
    if count != nested + 1 {
        return;
    }
    let number = |name: &str| usage.get(name).and_then(Value::as_u64);
    let Some(prompt) = number("prompt_tokens") else { return };
    let told = told.expect("there is a usage");
    assert_eq!(told.prompt, prompt.min(USAGE_TOKENS_MAX));
    let output = number("completion_tokens").or_else(|| number("output_tokens")).unwrap_or(0);
    assert_eq!(told.output, output.min(USAGE_TOKENS_MAX));
}

/// Members of that name, however deep.
fn usages(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            usize::from(members.contains_key("usage")) + members.values().map(usages).sum::<usize>()
        }
        Value::Array(values) => values.iter().map(usages).sum(),
        _ => 0,
    }
}

//! A body for the encoders of engines. The first byte is the encoder and the API; from 128 on, the
//! bytes choose a body with all shapes, and otherwise they are the body. Must hold: no panic; the
//! text is UTF-8, bounded, and the same twice; the work is linear in the bytes that are read and
//! written; on an error nothing is appended; plain messages give the text that the whole body
//! gives; a special token that no encoder writes is in no prompt.

use forebay_base::limits::PROMPT_BYTES_MATCHED_MAX;
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource, scan};
use forebay_text::Vocabulary;
use forebay_text::chat::{ChatApi, ChatEncoder, MistralEncoder, encoder_steps};
use std::borrow::Cow;
use std::sync::OnceLock;

#[path = "chat_bodies.rs"]
mod chat_bodies;

const TEKKENS: [&str; 5] = [
    include_str!("../../tests/data/chat_encoders/tekken-v3.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v7.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v11.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v13.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v15.json"),
];

/// A special token that no encoder writes.
const STRANGER: &str = "<|im_start|>";

fn vocabulary() -> Vocabulary {
    let text = include_str!("../../tests/data/tokenizer/tokenizer.json");
    Vocabulary::from_tokenizer_json(text).expect("our own file")
}

static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();

/// Steps that each byte of the body and of the text may cost.
const STEPS_PER_BYTE_MAX: u64 = 2;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some(([form], bytes)) = data.split_first_chunk::<1>() else { return };
    let tekken = TEKKENS.get(usize::from(form / 3 % 6));
    let mistral = |text: &&str| MistralEncoder::from_tekken(text).expect("our own file");
    let encoder = tekken.map(mistral).map_or(ChatEncoder::Harmony, ChatEncoder::Mistral);
    let (api, endpoint) = match form % 3 {
        0 => (ChatApi::Chat, Endpoint::ChatCompletions),
        1 => (ChatApi::Messages, Endpoint::Messages),
        _ => (ChatApi::Responses, Endpoint::Responses),
    };
    let body = match form < &128 {
        true => Cow::Borrowed(bytes),
        false => Cow::Owned(chat_bodies::body(api, bytes)),
    };
    let body = &*body;
    let vocabulary = VOCABULARY.get_or_init(vocabulary);
    let mut text = b"kept".to_vec();
    let before = encoder_steps();
    let whole = encoder.render_full(api, body, vocabulary, &mut text).is_ok();
    let after = encoder_steps();
    let read = after.read - before.read;
    let written_steps = after.written - before.written;
    let length = u64::try_from(body.len()).expect("short");
    let most = STEPS_PER_BYTE_MAX * (length + written_steps + 512);
    assert!(read <= most, "{read} steps for {length} bytes and {written_steps} written");
    // The indent of nested schemas multiplies a text, up to a limit.
    let most = STEPS_PER_BYTE_MAX * (length + 4_096) + 2 * PROMPT_BYTES_MATCHED_MAX as u64;
    assert!(written_steps <= most, "{written_steps} written for {length} bytes");
    let written = text.strip_prefix(b"kept").expect("what was there stays");
    assert!(whole || written.is_empty(), "an error appends nothing");
    let written = str::from_utf8(written).expect("UTF-8");
    assert!(!written.contains(STRANGER), "a special token of the request");
    // Names, arguments and texts stand once in a prompt, escaped at most. Schemas have a limit.
    let most = PROMPT_BYTES_MATCHED_MAX + 16 * body.len() + 4_096;
    assert!(written.len() <= most, "{} bytes of {}", written.len(), body.len());
    let mut request = ApiRequest::default();
    let scanned = scan(body, endpoint, &mut request);
    if scanned.is_err() || request.prompt != PromptSource::PlainMessages {
        return;
    }
    let mut plain = b"kept".to_vec();
    if encoder.render_plain(&request.messages, body, vocabulary, &mut plain) {
        // The whole body may have a number elsewhere that its parser refuses.
        assert!(!whole || plain == text, "plain messages have one text");
    } else {
        assert_eq!(plain, b"kept", "nothing is appended");
    }
}

//! A body for the encoders of engines. The first byte is the encoder and the API. Must hold: no
//! panic; the text is UTF-8, bounded, and the same twice; on an error nothing is appended; plain
//! messages give the text that the whole body gives.

use forebay_base::limits::PROMPT_BYTES_MATCHED_MAX;
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource, scan};
use forebay_text::chat::{ChatApi, ChatEncoder, MistralEncoder};

const TEKKENS: [&str; 5] = [
    include_str!("../../tests/data/chat_encoders/tekken-v3.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v7.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v11.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v13.json"),
    include_str!("../../tests/data/chat_encoders/tekken-v15.json"),
];

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some(([form], body)) = data.split_first_chunk::<1>() else { return };
    let tekken = TEKKENS.get(usize::from(form / 3 % 6));
    let mistral = |text: &&str| MistralEncoder::from_tekken(text).expect("our own file");
    let encoder = tekken.map(mistral).map_or(ChatEncoder::Harmony, ChatEncoder::Mistral);
    let (api, endpoint) = match form % 3 {
        0 => (ChatApi::Chat, Endpoint::ChatCompletions),
        1 => (ChatApi::Messages, Endpoint::Messages),
        _ => (ChatApi::Responses, Endpoint::Responses),
    };
    let mut text = b"kept".to_vec();
    let whole = encoder.render_full(api, body, &mut text).is_ok();
    let written = text.strip_prefix(b"kept").expect("what was there stays");
    assert!(whole || written.is_empty(), "an error appends nothing");
    assert!(str::from_utf8(written).is_ok(), "UTF-8");
    // Names, arguments and texts stand once in a prompt, escaped at most. Schemas have a limit.
    let most = PROMPT_BYTES_MATCHED_MAX + 16 * body.len() + 4_096;
    assert!(written.len() <= most, "{} bytes of {}", written.len(), body.len());
    let mut request = ApiRequest::default();
    let scanned = scan(body, endpoint, &mut request);
    if scanned.is_err() || request.prompt != PromptSource::PlainMessages {
        return;
    }
    let mut plain = b"kept".to_vec();
    if encoder.render_plain(&request.messages, body, &mut plain) {
        // The whole body may have a number elsewhere that its parser refuses.
        assert!(!whole || plain == text, "plain messages have one text");
    } else {
        assert_eq!(plain, b"kept", "nothing is appended");
    }
}

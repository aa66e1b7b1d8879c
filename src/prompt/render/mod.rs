//! Stage: the prompt as the engine will see it, in bytes. Chat messages go through the model's
//! template, token ids are decoded, text is taken as it is; then the vocabulary aligns the text
//! with what its tokens decode to.
//!
//! Runs once a request, on the shard's thread where that takes little ([`RenderThread::Shard`]),
//! else on its offload thread. In steady state it allocates nothing for plain chats and text on a
//! shard. Bodies that need the template engine cost a parse and allocations. Must never refuse a
//! request: what it cannot render is routed by load alone.

mod canonical;
mod chat;
mod engine_text;
mod raw;
mod rendered;
mod token_ids;

pub use canonical::{CANONICAL_BYTES_MAX, canonical};
pub use rendered::{RenderMethod, RenderThread, Unrenderable};

use crate::parse::{ApiRequest, Endpoint, PromptSource};
use engine_text::{slice, special};
use forebay_fleet::worker::ModelText;
use forebay_text::ImageKey;

/// Appends the prompt's bytes to `out`, however long that takes. On an error nothing is appended.
///
/// # Errors
/// [`Unrenderable`], which is never the client's business.
pub fn render(
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    render_at(RenderThread::Offload, request, body, text, out)
}

/// As [`render`], within the limits of `place`.
///
/// # Errors
/// [`Unrenderable`], which is never the client's business. `out` is then as before.
pub fn render_at(
    place: RenderThread,
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    if request.has_more_than_text {
        return Err(Unrenderable::NotText);
    }
    let start = out.len();
    let rendered = match &request.prompt {
        PromptSource::None => Err(Unrenderable::NoPrompt),
        PromptSource::PlainMessages => chat::plain(place, request, body, text, out),
        PromptSource::Messages => chat::full(place, request, body, text, out),
        PromptSource::Text(span) => {
            raw::text(place, slice(body, span), special(request, text, true), text, out)
        }
        PromptSource::TokenIds(span) => {
            token_ids::decode(place, slice(body, span), &text.vocabulary, out)
        }
        PromptSource::Batch(span) => {
            let special = special(request, text, true);
            first_of_batch(place, slice(body, span), special, text, out)
        }
    };
    if rendered.is_err() {
        out.truncate(start);
    }
    rendered
}

/// Names the images of a chat in its body, which stands at `start` in the message, by the key of
/// its model. Takes some ms for large ones.
pub fn name_images(
    request: &mut ApiRequest,
    message: &mut Vec<u8>,
    start: usize,
    key: Option<&ImageKey>,
) {
    let is_chat = request.endpoint == Some(Endpoint::ChatCompletions);
    let key = key.filter(|_| is_chat && request.prompt == PromptSource::Messages);
    if let Some(key) = key {
        request.name_images(message, start, key);
    }
}

/// A batch is routed by its first element: engines split it, and such lists tend to share their
/// beginning.
fn first_of_batch(
    place: RenderThread,
    element: &[u8],
    special: bool,
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    match element {
        [b'"', inner @ .., b'"'] => raw::text(place, inner, special, text, out),
        [b'[', ..] => token_ids::decode(place, element, &text.vocabulary, out),
        _ => Err(Unrenderable::NoPrompt),
    }
}

#[cfg(test)]
mod tests;

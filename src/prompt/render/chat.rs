//! Messages to text: by the engine's own encoder if the model has an encoder; else by the
//! template's plan where it covers them, and by the template.

use super::engine_text::{align, slice, special};
use super::{RenderMethod, RenderThread, Unrenderable};
use crate::parse::{ApiRequest, Endpoint};
use forebay_base::limits::{
    INLINE_ENCODED_BYTES_MAX, PROMPT_BYTES_MATCHED_MAX, TEMPLATE_BODY_BYTES_MAX,
};
use forebay_fleet::trust::RequestShape;
use forebay_fleet::worker::ModelText;
use forebay_text::Vocabulary;
use forebay_text::chat::{ChatApi, ChatEncoder, ChatRole, ChatTemplate, MessageSpan};
use std::ops::Range;

/// Plain messages, as the scan found them.
pub(super) fn plain(
    place: RenderThread,
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    let writer = ChatWriter::of(request, text, out)?;
    let start = out.len();
    // Anthropic's API has no such member.
    let generates = request.add_generation_prompt || api_of(request) == ChatApi::Messages;
    let is_converted = converts_systems(request, body, text);
    if body.len() > PROMPT_BYTES_MATCHED_MAX
        && !is_converted
        && let Some(first) = first_messages(&request.messages, body)
    {
        let planned = writer.write_plain(&first, body, generates, out);
        text.vocabulary.align(out, start);
        return if planned { Ok(RenderMethod::Beginning) } else { Err(Unrenderable::TooLarge) };
    }
    let planned = !is_converted && writer.write_plain(&request.messages, body, generates, out);
    if !planned {
        match writer {
            ChatWriter::Encoder(..) => encode(place, text, request, body, out)?,
            ChatWriter::Template(template) => {
                check_size(place, body.len())?;
                if is_converted {
                    template.render_text(body, ChatApi::Messages, None, out)?;
                } else {
                    template.render_messages(&request.messages, body, generates, out)?;
                }
            }
        }
    }
    let whole = align(place, text, out, start)?;
    Ok(match planned {
        _ if !whole => RenderMethod::Beginning,
        true => RenderMethod::Plan,
        false => RenderMethod::Template,
    })
}

/// Does the engine's layer for `/v1/messages` change system messages of the request? It may move
/// late ones to the front, and leaves out some.
fn converts_systems(request: &ApiRequest, body: &[u8], text: &ModelText) -> bool {
    if api_of(request) != ChatApi::Messages || text.rules.is_rust() {
        return false;
    }
    let is_system = |message: &MessageSpan| message.role == ChatRole::System;
    let mut messages = request.messages.iter();
    let may_be_left_out = |message: &MessageSpan| {
        let content = slice(body, &message.content);
        content.is_empty() || content.starts_with(b"x-") || content.starts_with(b"\\")
    };
    let is_first_changed = messages.next().is_some_and(|it| is_system(it) && may_be_left_out(it));
    is_first_changed || messages.any(is_system)
}

/// What writes a model's chats.
#[derive(Clone, Copy)]
enum ChatWriter<'a> {
    /// The engine's own encoder, which knows no second set of special tokens.
    Encoder(&'a ChatEncoder, &'a Vocabulary),
    Template(&'a ChatTemplate),
}

impl<'a> ChatWriter<'a> {
    /// The writer of a model. Writes the special tokens that a request asks for.
    fn of(
        request: &ApiRequest,
        text: &'a ModelText,
        out: &mut Vec<u8>,
    ) -> Result<Self, Unrenderable> {
        let encoder = text.chat_encoder.as_ref();
        if let Some(encoder) = encoder.filter(|encoder| encoder.writes(api_of(request))) {
            return Ok(Self::Encoder(encoder, &text.vocabulary));
        }
        let template = text.chat_template.as_ref().ok_or(Unrenderable::NoTemplate)?;
        push_special(request, text, out);
        Ok(Self::Template(template))
    }

    fn write_plain(
        self,
        messages: &[MessageSpan],
        body: &[u8],
        generates: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            // Harmony always starts an answer, and mistral_common takes no other ending.
            Self::Encoder(encoder, vocabulary) => {
                encoder.render_plain(messages, body, vocabulary, out)
            }
            Self::Template(template) => template.render_plain(messages, body, generates, out),
        }
    }
}

/// Runs a body through the engine's own encoder.
fn encode(
    place: RenderThread,
    text: &ModelText,
    request: &ApiRequest,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Unrenderable> {
    // The text of tools may have many times their bytes.
    let may_have_tools = matches!(
        request.shape(),
        RequestShape::ChatTools | RequestShape::Messages | RequestShape::Responses
    );
    let is_dear = may_have_tools || body.len() > INLINE_ENCODED_BYTES_MAX;
    if place == RenderThread::Shard && is_dear {
        return Err(Unrenderable::NotHere);
    }
    if body.len() > TEMPLATE_BODY_BYTES_MAX {
        return Err(Unrenderable::TooLarge);
    }
    let encoder = text.chat_encoder.as_ref().ok_or(Unrenderable::NoTemplate)?;
    Ok(encoder.render_full(api_of(request), body, &text.vocabulary, out)?)
}

const fn api_of(request: &ApiRequest) -> ChatApi {
    match request.endpoint {
        Some(Endpoint::Responses) => ChatApi::Responses,
        Some(Endpoint::Messages | Endpoint::CountTokens) => ChatApi::Messages,
        _ => ChatApi::Chat,
    }
}

/// The messages that are matched, if not all are. The last is cut, and its end differs from the
/// engine's text, which costs the match of a few bytes.
fn first_messages(messages: &[MessageSpan], body: &[u8]) -> Option<Vec<MessageSpan>> {
    let mut left = u32::try_from(PROMPT_BYTES_MATCHED_MAX).unwrap_or(u32::MAX);
    for (index, message) in messages.iter().enumerate() {
        let Range { start, end } = message.content;
        if end.saturating_sub(start) <= left {
            left -= end.saturating_sub(start);
            continue;
        }
        let mut end = start.saturating_add(left);
        let is_inside = |at: u32| slice(body, &(at..at + 1)).iter().any(|byte| byte & 0xc0 == 0x80);
        while end > start && is_inside(end) {
            end -= 1;
        }
        let mut first = messages.get(..index)?.to_vec();
        first.push(MessageSpan { content: start..end, ..message.clone() });
        return Some(first);
    }
    None
}

/// Any body with messages.
pub(super) fn full(
    place: RenderThread,
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<RenderMethod, Unrenderable> {
    let template = match ChatWriter::of(request, text, out)? {
        ChatWriter::Template(template) => template,
        ChatWriter::Encoder(..) => {
            let start = out.len();
            encode(place, text, request, body, out)?;
            let whole = align(place, text, out, start)?;
            return Ok(if whole { RenderMethod::Template } else { RenderMethod::Beginning });
        }
    };
    // Engines read the names of images only in chats.
    let is_chat = request.endpoint == Some(Endpoint::ChatCompletions);
    let follows = is_chat && text.vocabulary.follows_images();
    if follows && place == RenderThread::Shard {
        return Err(Unrenderable::NotHere);
    }
    let named_bytes = usize::try_from(request.named_bytes).unwrap_or(0);
    check_size(place, body.len().saturating_sub(named_bytes))?;
    let start = out.len();
    let mut names = Vec::new();
    let api = api_of(request);
    let mut is_part = template.render_text(body, api, follows.then_some(&mut names), out)?;
    let written = || out.get(start..).unwrap_or_default();
    if !names.is_empty() && text.vocabulary.count_images(written()) != names.len() {
        // The engine would put the images elsewhere, or refuse the prompt.
        out.truncate(start);
        names.clear();
        is_part = template.render_text(body, api, None, out)?;
    }
    let whole = align(place, text, out, start)?;
    if !names.is_empty() {
        text.vocabulary.put_images(out, start, &names);
    }
    Ok(match is_part {
        true => RenderMethod::TextPart,
        false if whole => RenderMethod::Template,
        false => RenderMethod::Beginning,
    })
}

/// Templates write their own special tokens; a request can ask for a second set in front of them.
fn push_special(request: &ApiRequest, text: &ModelText, out: &mut Vec<u8>) {
    if special(request, text, false) {
        out.extend_from_slice(text.vocabulary.completion_prefix());
    }
}

/// May the template engine run on a body of this size, on this thread? The template decides how
/// long it takes.
fn check_size(place: RenderThread, body_bytes: usize) -> Result<(), Unrenderable> {
    match place {
        _ if body_bytes > TEMPLATE_BODY_BYTES_MAX => Err(Unrenderable::TooLarge),
        RenderThread::Shard => Err(Unrenderable::NotHere),
        RenderThread::Offload => Ok(()),
    }
}

//! Messages to text: by the template's plan where it covers them, else by the template.

use super::{Rendered, TEMPLATE_BODY_BYTES_MAX, Unrenderable, special};
use crate::chat::ChatTemplate;
use crate::parse::ApiRequest;
use crate::worker::ModelText;

/// Plain messages, as the scan found them.
pub(super) fn plain(
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    let template = template_of(text)?;
    push_special(request, text, out);
    let start = out.len();
    let generates = request.add_generation_prompt;
    let planned = template.render_plain(&request.messages, body, generates, out);
    if !planned {
        check_size(body)?;
        template
            .render_messages(&request.messages, body, generates, out)
            .map_err(|_| Unrenderable::Refused)?;
    }
    text.vocabulary.align(out, start);
    Ok(if planned { Rendered::Plan } else { Rendered::Template })
}

/// Any body with messages.
pub(super) fn full(
    request: &ApiRequest,
    body: &[u8],
    text: &ModelText,
    out: &mut Vec<u8>,
) -> Result<Rendered, Unrenderable> {
    let template = template_of(text)?;
    check_size(body)?;
    push_special(request, text, out);
    let start = out.len();
    let is_part = template.render_text(body, out).map_err(|_| Unrenderable::Refused)?;
    text.vocabulary.align(out, start);
    Ok(if is_part { Rendered::TextPart } else { Rendered::Template })
}

/// Templates write their own special tokens; a request can ask for a second set in front of them.
fn push_special(request: &ApiRequest, text: &ModelText, out: &mut Vec<u8>) {
    if special(request, text, false) {
        out.extend_from_slice(text.vocabulary.completion_prefix());
    }
}

fn template_of(text: &ModelText) -> Result<&ChatTemplate, Unrenderable> {
    text.chat_template.as_ref().ok_or(Unrenderable::NoTemplate)
}

fn check_size(body: &[u8]) -> Result<(), Unrenderable> {
    if body.len() > TEMPLATE_BODY_BYTES_MAX { Err(Unrenderable::TooLarge) } else { Ok(()) }
}

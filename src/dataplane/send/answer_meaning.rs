//! Meaning of an answer for the rank, by its head and its first bytes, and whether another rank may
//! do better.

use super::outbound::Dispatch;
use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::exchange::request::Request;
use crate::relay::begins_with_error;
use forebay_board::{FailureScope, FailureWeight};
use forebay_http1::{Field, MediaType, ResponseHead, bytes_of, header};
use forebay_prompt::parse::{Endpoint, Reason};
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{AnswerMeaning, SentCredentials};

/// Why another rank may do better than the answer in `answer_head`. `None`: relay the answer to the
/// client.
pub(crate) fn retry_error(
    exchange: &Exchange<'_, Delivery>,
    going: Dispatch<'_>,
    input: &[u8],
) -> Option<RelayError> {
    if is_looped(&exchange.request.answer_head, input) {
        return Some(RelayError::Looped);
    }
    let is_alone = !going.is_paired && !exchange.phase.resumable.is_remainder();
    match meaning(&exchange.request, going.plan, going.endpoint) {
        AnswerMeaning::CallerLimited if is_alone => Some(RelayError::CallerLimited),
        AnswerMeaning::NoRoom | AnswerMeaning::CallerLimited => Some(RelayError::EngineBusy),
        AnswerMeaning::Failed(..) if going.is_trial && is_alone => Some(RelayError::TrialFailed),
        _ => None,
    }
}

/// Meaning of the answer in `answer_head`.
pub(crate) fn meaning(request: &Request<'_>, plan: &SendPlan, endpoint: Endpoint) -> AnswerMeaning {
    let credentials = match plan.authorization {
        Some(_) => SentCredentials::Router,
        None if request.caller.principal.has_key() => SentCredentials::None,
        None if request.head.has_credentials() => SentCredentials::Client,
        None => SentCredentials::None,
    };
    let status = request.answer_head.status;
    match AnswerMeaning::of(status, plan.engine.dialect, credentials) {
        AnswerMeaning::Served if is_foreign(request, endpoint) => {
            AnswerMeaning::Failed(FailureScope::Caller, FailureWeight::Failed)
        }
        meaning => meaning,
    }
}

/// True for a 2xx with a content type that no engine has for the request: a page of a gateway, for
/// example. Such an answer comes fast, and its worker would attract traffic.
pub(crate) fn is_foreign(request: &Request<'_>, endpoint: Endpoint) -> bool {
    let ResponseHead { status, media, .. } = request.answer_head;
    (200..300).contains(&status) && !may_have(endpoint, media)
}

/// May an engine answer the endpoint with `media`?
fn may_have(endpoint: Endpoint, media: MediaType) -> bool {
    use Endpoint::{ChatCompletions, Completions, Embeddings, Generate, Messages, Responses};
    use Endpoint::{Rerank, Score};
    match (endpoint, media) {
        (_, MediaType::Unstated) => true,
        // Not every engine streams, and SGLang answers a `background` stream of `/v1/responses`
        // with JSON. A body that asks for a stream in another way than `true` may get events.
        (ChatCompletions | Completions | Generate | Messages | Responses, media) => {
            matches!(media, MediaType::Json | MediaType::EventStream)
        }
        // vLLM sends octets for the `encoding_format` `bytes`.
        (Embeddings, media) => matches!(media, MediaType::Json | MediaType::Bytes),
        (Rerank | Score, media) => media == MediaType::Json,
        // Speech, transcriptions, files.
        _ => true,
    }
}

/// Kind of a body, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    Answer,
    Error,
}

impl BodyKind {
    pub(crate) fn of(data: &[u8]) -> Self {
        if begins_with_error(data) { Self::Error } else { Self::Answer }
    }

    /// Is a complete body of this kind an answer? `None`: it had no bytes.
    pub(crate) fn is_answer(body: Option<Self>, endpoint: Endpoint) -> bool {
        body == Some(Self::Answer) || !endpoint.is_inference()
    }
}

/// True if a router on the path refused the request as a loop.
fn is_looped(head: &ResponseHead, input: &[u8]) -> bool {
    let is_reason = |field: &Field| {
        bytes_of(input, &field.name).eq_ignore_ascii_case(header::REASON.as_bytes())
            && bytes_of(input, &field.value) == Reason::RequestLoop.as_str().as_bytes()
    };
    head.status == Reason::RequestLoop.status() && head.fields.iter().any(is_reason)
}

#[cfg(test)]
mod tests {
    use super::{BodyKind, may_have};
    use forebay_http1::MediaType;
    use forebay_prompt::parse::Endpoint;

    #[test]
    fn an_answer_has_a_content_type_of_its_endpoint() {
        use MediaType::{Bytes, EventStream, Json, Other, Unstated};
        for endpoint in Endpoint::ALL {
            let right: &[MediaType] = match endpoint {
                Endpoint::ChatCompletions
                | Endpoint::Completions
                | Endpoint::Generate
                | Endpoint::Messages
                | Endpoint::Responses => &[Unstated, Json, EventStream],
                Endpoint::Embeddings => &[Unstated, Json, Bytes],
                Endpoint::Rerank | Endpoint::Score => &[Unstated, Json],
                _ => &[Unstated, Json, EventStream, Bytes, Other],
            };
            for media in [Unstated, Json, EventStream, Bytes, Other] {
                let is_right = right.contains(&media);
                assert_eq!(may_have(endpoint, media), is_right, "{endpoint:?} {media:?}");
            }
        }
    }

    #[test]
    fn an_empty_body_and_an_error_are_no_answer_of_an_endpoint_of_inference() {
        let kinds = [b"{}", &b"{\"error\":1}"[..]].map(|data| Some(BodyKind::of(data)));
        let kinds = [kinds[0], kinds[1], None];
        let of = |endpoint| kinds.map(|kind| BodyKind::is_answer(kind, endpoint));
        assert_eq!(of(Endpoint::ChatCompletions), [true, false, false]);
        assert_eq!(of(Endpoint::Other), [true, false, false]);
        assert_eq!(of(Endpoint::Tokenize), [true; 3]);
    }
}

//! Meaning of an answer's head for the rank, and whether another rank may do better.

use super::outbound::Dispatch;
use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::exchange::request::Request;
use forebay_http1::{Field, ResponseHead, bytes_of, header};
use forebay_prompt::parse::Reason;
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
    match meaning(&exchange.request, going.plan) {
        AnswerMeaning::CallerLimited if is_alone => Some(RelayError::CallerLimited),
        AnswerMeaning::NoRoom | AnswerMeaning::CallerLimited => Some(RelayError::EngineBusy),
        AnswerMeaning::Failed(..) if going.is_trial && is_alone => Some(RelayError::TrialFailed),
        _ => None,
    }
}

/// Meaning of the answer in `answer_head`.
pub(crate) fn meaning(request: &Request<'_>, plan: &SendPlan) -> AnswerMeaning {
    let credentials = match plan.authorization {
        Some(_) => SentCredentials::Router,
        None if request.caller.principal.has_key() => SentCredentials::None,
        None if request.head.has_credentials() => SentCredentials::Client,
        None => SentCredentials::None,
    };
    AnswerMeaning::of(request.answer_head.status, plan.engine.dialect, credentials)
}

/// True if a router on the path refused the request as a loop.
fn is_looped(head: &ResponseHead, input: &[u8]) -> bool {
    let is_reason = |field: &Field| {
        bytes_of(input, &field.name).eq_ignore_ascii_case(header::REASON.as_bytes())
            && bytes_of(input, &field.value) == Reason::RequestLoop.as_str().as_bytes()
    };
    head.status == Reason::RequestLoop.status() && head.fields.iter().any(is_reason)
}

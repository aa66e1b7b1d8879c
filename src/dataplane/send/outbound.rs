//! dispatch: encodes a request for a rank.

use super::added_fields::AddedFields;
use crate::exchange::Exchange;
use crate::exchange::phase::Delivery;
use crate::exchange::request::PRIORITY;
use crate::intake::websocket::UPGRADE;
use crate::pair::begin::PairDispatch;
use crate::relay::ask_for_ids;
use forebay_base::RouterId;
use forebay_board::account::BodyStart;
use forebay_http1::{BodyFraming, RequestHead, UpstreamHead, encode_request, header};
use forebay_mailbox::RequestFacts;
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_router::dispatch::{SendPlan, pin_in_body};

/// A request dispatched to a rank.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch<'a> {
    pub(crate) plan: &'a SendPlan,
    pub(crate) endpoint: Endpoint,
    pub(crate) facts: &'a RequestFacts,
    /// The request is a trial of a rank that may be paused.
    pub(crate) is_trial: bool,
    /// Another rank computes the prompt.
    pub(crate) is_paired: bool,
    /// Id of this router towards the rank.
    pub(crate) router_id: &'a RouterId,
}

impl Dispatch<'_> {
    /// Progress that the first body bytes of the answer prove. Streams of `/v1/responses` begin
    /// before the first token.
    pub(crate) const fn body_start(&self, request: &ApiRequest) -> BodyStart {
        let Self { endpoint, facts, .. } = self;
        let is_one = matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score);
        let is_response = matches!(endpoint, Endpoint::Responses);
        if is_one || facts.output_tokens <= 1 || request.stream && !is_response {
            BodyStart::Token
        } else if request.stream {
            BodyStart::Event
        } else {
            BodyStart::Whole
        }
    }
}

pub(crate) fn own_body<'a>(head: &RequestHead, message: &'a [u8]) -> &'a [u8] {
    message.get(head.head_bytes..).unwrap_or_default()
}

/// Appends the head, and the rewritten beginning of the body, if any. Returns how many bytes of the
/// body that beginning replaces.
pub(crate) fn encode(
    exchange: &Exchange<'_, Delivery>,
    going: Dispatch<'_>,
    paired: Option<&PairDispatch<'_>>,
    out: &mut Vec<u8>,
) -> usize {
    let Dispatch { plan, endpoint, router_id, .. } = going;
    let mut in_header = plan.dp.pin;
    let mut start = Vec::new();
    let (whole, rest) = match paired {
        Some(paired) => {
            in_header = in_header.filter(|_| !paired.is_pinned_in_body());
            (&exchange.request.leg_body[..], &exchange.request.leg_body[..])
        }
        None => {
            let body = own_body(&exchange.request.head, &exchange.request.message);
            match in_header.take_if(|_| plan.pins_in_body(endpoint)) {
                Some(rank) => (body, pin_in_body(body, rank, &mut start)),
                None if exchange.phase.resumable.asks_ids(plan) => {
                    (body, ask_for_ids(body, &mut start))
                }
                None => (body, body),
            }
        }
    };
    let mut digits = [0; 10];
    let pin = in_header.map(|rank| (header::DP_RANK, decimal(rank, &mut digits)));
    // A client that already has its head was promised a body without a content coding. The router
    // itself must read four kinds: the answer of a pair, a billed answer, a response with an id,
    // and a recorded stream.
    let must_be_read = paired.is_some()
        || exchange.request.story.bill().is_counted()
        || endpoint == Endpoint::Responses
        || exchange.phase.resumable.reads();
    let is_plain = must_be_read || exchange.request.early.open_stream().is_some();
    let plain = is_plain.then_some(("accept-encoding", &b"identity"[..]));
    let number = exchange.request.priority_for(plan);
    let priority = number.as_ref().map(|number| (PRIORITY, number.as_bytes()));
    let mut extra = AddedFields::new();
    extra.extend([pin, plain, priority].into_iter().flatten());
    extra.extend(exchange.request.forwarded().into_iter().flatten());
    extra.extend(exchange.request.withheld().into_iter().flatten());
    extra.extend(exchange.request.claim());
    extra.extend(exchange.request.story.trace_fields().into_iter().flatten());
    if endpoint == Endpoint::WebSocket {
        extra.extend(UPGRADE);
    }
    let head = UpstreamHead {
        authority: &plan.authority,
        via: router_id.as_bytes(),
        content_length: match exchange.request.head.body {
            BodyFraming::None => None,
            _ => u64::try_from(start.len().saturating_add(rest.len())).ok(),
        },
        request_id: match paired {
            Some(paired) => paired.request_id(exchange.request.request_id()),
            None => exchange.request.request_id(),
        },
        authorization: plan.authorization.as_deref(),
        extra: extra.get(),
    };
    encode_request(&exchange.request.head, &exchange.request.message, &head, out);
    out.extend_from_slice(&start);
    whole.len().saturating_sub(rest.len())
}

/// Decimal digits of `value`.
pub(crate) fn decimal(mut value: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut start = digits.len();
    for (position, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        start = position;
        if value == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn decimals() {
        for value in [0, 7, 10, 4_294_967_295] {
            assert_eq!(decimal(value, &mut [0; 10]), value.to_string().as_bytes());
        }
    }
}

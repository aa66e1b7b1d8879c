//! Writes and counts the router's own answers, and keeps the connection usable where possible.

use super::discard;
use super::early_head;
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::{OWN_FIELDS, Request};
use crate::ingress::Conn;
use crate::state::env::Env;
use crate::state::shard::Shard;
use crate::story::access_record;
use crate::story::facts::Facts;
use forebay_board::account::NO_ENDPOINT;
use forebay_http1::{
    BodyFraming, Digits, DownstreamHead, Method, OwnResponse, Progress, ResponseHead, decimal,
    encode_own, encode_response, header, parse_response,
};
use forebay_identity::AnswerField;
use forebay_mailbox::EngineAnswer;
use forebay_prompt::parse::{Reason, Refusal};

/// Answers a request with an unreadable head, as [`and_close`], and writes its access record.
pub(crate) async fn unread(
    shard: &Shard,
    conn: &mut Conn,
    buffers: &mut Buffers,
    refusal: &Refusal,
) -> ConnectionReuse {
    let request = Request::unread(buffers, shard.fresh_id());
    let id = request.buffers.request_id();
    access_record::write_unread(&shard.env, &conn.client, id, refusal);
    and_close(&shard.env, conn, &request, refusal).await
}

/// Answers a request with an invalid head or body. The connection ends, because the start of the
/// next request is unknown.
pub(crate) async fn and_close(
    env: &Env,
    conn: &mut Conn,
    request: &Request<'_>,
    refusal: &Refusal,
) -> ConnectionReuse {
    let wire = Wire { keep_alive: false, head_only: false };
    answer(env, conn, refusal, wire, request).await
}

/// Answers a request before its body is read. Discards the body; a body too long to discard ends
/// the connection.
pub(crate) async fn before_body(
    env: &Env,
    conn: &mut Conn,
    request: &Request<'_>,
    refusal: &Refusal,
) -> ConnectionReuse {
    // Of a loop the path is not read: bytes behind the head may be frames of an upgrade.
    let may_have_frames = refusal.reason() == Reason::RequestLoop;
    let wire = Wire {
        keep_alive: !may_have_frames && discard::goes_on(env, conn, &request.head),
        head_only: request.head.method == Method::Head,
    };
    match answer(env, conn, refusal, wire, request).await {
        ConnectionReuse::KeepAlive => discard::request(env, conn, &request.head).await,
        end => end,
    }
}

/// Answers a completely received request.
pub(crate) async fn request(
    env: &Env,
    conn: &mut Conn,
    request: &Request<'_>,
    refusal: &Refusal,
) -> ConnectionReuse {
    if let Some(begun) = request.early.open_stream() {
        count(env, refusal, &request.story.facts);
        return early_head::refuse(begun, env, conn, refusal).await;
    }
    let wire = Wire {
        keep_alive: request.head.keep_alive && !env.draining.is_set(),
        head_only: request.head.method == Method::Head,
    };
    answer(env, conn, refusal, wire, request).await
}

/// Relays the engine's answer to an attempt.
pub(crate) async fn by_engine(
    env: &Env,
    conn: &mut Conn,
    request: &Request<'_>,
    answer: &EngineAnswer,
) -> ConnectionReuse {
    let endpoint = request.story.facts.endpoint().map_or(NO_ENDPOINT, |endpoint| endpoint as usize);
    env.counters.answered(endpoint, answer.status);
    if let Some(begun) = request.early.open_stream() {
        return early_head::fail(begun, env, conn, answer.status, &answer.body).await;
    }
    let keep_alive = request.head.keep_alive && !env.draining.is_set();
    let mut out = conn.buffer();
    if !encode_received(env, request, answer, keep_alive, &mut out) {
        let response = OwnResponse {
            status: answer.status,
            content_type: "application/json",
            body: &answer.body,
            keep_alive,
            head_only: false,
            extra: &request.own_fields(),
        };
        encode_own(&response, &mut out);
    }
    conn.wait_at_most(env.config().timeouts.write);
    match conn.write(out).await {
        Ok(()) if keep_alive => ConnectionReuse::KeepAlive,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    }
}

/// Appends the answer with the fields of the engine's head, as a relay does. False: without a head.
fn encode_received(
    env: &Env,
    request: &Request<'_>,
    answer: &EngineAnswer,
    keep_alive: bool,
    out: &mut Vec<u8>,
) -> bool {
    let Some(received) = &answer.received else { return false };
    let mut head = ResponseHead::default();
    let parsed = parse_response(&received.bytes, &Method::Post, &env.head_limits(), &mut head);
    if parsed != Ok(Progress::Complete) {
        return false;
    }
    let mut extra = [(header::WORKER, received.worker.as_bytes()); 1 + OWN_FIELDS];
    extra.iter_mut().skip(1).zip(request.own_fields()).for_each(|(place, own)| *place = own);
    let framing = BodyFraming::Length(u64::try_from(answer.body.len()).unwrap_or(u64::MAX));
    let client_version = request.head.version;
    let downstream = DownstreamHead { framing, keep_alive, client_version, extra: &extra };
    encode_response(&head, &received.bytes, &downstream, out);
    out.extend_from_slice(&answer.body);
    true
}

/// Fields that describe the refusal.
const REFUSAL_FIELDS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Wire {
    keep_alive: bool,
    head_only: bool,
}

fn count(env: &Env, refusal: &Refusal, facts: &Facts) {
    let endpoint = facts.endpoint().map_or(NO_ENDPOINT, |endpoint| endpoint as usize);
    env.counters.answered(endpoint, refusal.status());
    let model = facts.model.unwrap_or(usize::MAX);
    env.counters.refused(refusal.reason() as usize, endpoint, facts.stream, model);
}

/// Counts and sends a refusal.
async fn answer(
    env: &Env,
    conn: &mut Conn,
    refusal: &Refusal,
    wire: Wire,
    request: &Request<'_>,
) -> ConnectionReuse {
    count(env, refusal, &request.story.facts);
    let mut body = conn.buffer();
    let mut out = conn.buffer();
    refusal.encode_body(request.story.facts.shape(), &mut body);
    encode(refusal, wire, &request.own_fields(), &body, &mut out);
    conn.recycle(body);
    conn.wait_at_most(env.config().timeouts.write);
    match conn.write(out).await {
        Ok(()) if wire.keep_alive => ConnectionReuse::KeepAlive,
        Ok(()) => ConnectionReuse::Linger,
        Err(_) => ConnectionReuse::Drop,
    }
}

/// Appends the whole answer. Allocates nothing, because an overloaded router mostly refuses.
fn encode(
    refusal: &Refusal,
    wire: Wire,
    shared: &[AnswerField<'_>],
    body: &[u8],
    out: &mut Vec<u8>,
) {
    let mut seconds: Digits = [0; 20];
    let mut millis: Digits = [0; 20];
    let seconds = refusal.retry_after_s().map_or(&[][..], |after| decimal(after, &mut seconds));
    let millis = refusal.retry_after_ms().map_or(&[][..], |after| decimal(after, &mut millis));
    let retry =
        refusal.reason().should_retry().map_or("", |retry| if retry { "true" } else { "false" });
    let own = [
        (header::REASON, refusal.reason().as_str().as_bytes()),
        shared.first().copied().unwrap_or_default(),
        ("allow", refusal.allow().unwrap_or_default().as_bytes()),
        ("accept-encoding", refusal.accept_encoding().as_bytes()),
        ("www-authenticate", refusal.challenge().as_bytes()),
        (header::SHOULD_RETRY, retry.as_bytes()),
        (header::RETRY_AFTER, seconds),
        (header::RETRY_AFTER_MS, millis),
    ];
    let mut extra = [("", &b""[..]); REFUSAL_FIELDS + OWN_FIELDS];
    // The request id is the first.
    let further = shared.iter().skip(1).copied();
    for (place, field) in extra.iter_mut().zip(own.into_iter().chain(further)) {
        *place = field;
    }
    let response = OwnResponse {
        status: refusal.status(),
        content_type: "application/json",
        body,
        keep_alive: wire.keep_alive,
        head_only: wire.head_only,
        extra: &extra,
    };
    encode_own(&response, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_http1::HeadError;
    use forebay_prompt::parse::ApiShape;
    use std::time::Duration;

    fn bytes(refusal: &Refusal, api: ApiShape, wire: Wire, request_id: &[u8]) -> String {
        let mut body = Vec::new();
        let mut out = Vec::new();
        refusal.encode_body(api, &mut body);
        encode(refusal, wire, &[(header::REQUEST_ID, request_id)], &body, &mut out);
        String::from_utf8(out).unwrap()
    }

    const KEEP_ALIVE: Wire = Wire { keep_alive: true, head_only: false };

    #[test]
    fn a_full_queue_byte_for_byte() {
        let refusal = Refusal::new(Reason::RejectedQueueFull)
            .with_retry_after(Duration::from_micros(2_345_678));
        assert_eq!(
            bytes(&refusal, ApiShape::OpenAi, KEEP_ALIVE, b""),
            "HTTP/1.1 429 Too Many Requests\r\n\
             content-type: application/json\r\n\
             connection: keep-alive\r\n\
             x-forebay-reason: rejected-queue-full\r\n\
             x-should-retry: true\r\n\
             retry-after: 3\r\n\
             retry-after-ms: 2346\r\n\
             content-length: 175\r\n\
             \r\n\
             {\"error\":{\"message\":\"All workers of this model are busy and the queue for them is full. \
             Try again later.\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}"
        );
        assert_eq!(
            bytes(&refusal, ApiShape::Anthropic, KEEP_ALIVE, b"id-7"),
            "HTTP/1.1 429 Too Many Requests\r\n\
             content-type: application/json\r\n\
             connection: keep-alive\r\n\
             x-forebay-reason: rejected-queue-full\r\n\
             x-request-id: id-7\r\n\
             x-should-retry: true\r\n\
             retry-after: 3\r\n\
             retry-after-ms: 2346\r\n\
             content-length: 148\r\n\
             \r\n\
             {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"All workers of this model \
             are busy and the queue for them is full. Try again later.\"}}"
        );
    }

    #[test]
    fn a_late_request_byte_for_byte() {
        let refusal = Refusal::new(Reason::RequestDeadline);
        let closed = Wire { keep_alive: false, head_only: false };
        assert_eq!(
            bytes(&refusal, ApiShape::OpenAi, closed, b"id-7"),
            "HTTP/1.1 408 Request Timeout\r\n\
             content-type: application/json\r\n\
             connection: close\r\n\
             x-forebay-reason: request-deadline\r\n\
             x-request-id: id-7\r\n\
             x-should-retry: false\r\n\
             content-length: 163\r\n\
             \r\n\
             {\"error\":{\"message\":\"The request's deadline passed while it waited for a worker. Send it with a \
             longer deadline.\",\"type\":\"timeout_error\",\"param\":null,\"code\":null}}"
        );
    }

    #[test]
    fn the_time_to_come_back_is_sent_in_both_units() {
        for reason in Reason::ALL {
            let text = bytes(&Refusal::new(reason), ApiShape::OpenAi, KEEP_ALIVE, b"");
            assert!(!text.contains("retry-after"), "{text}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
            let refusal = Refusal::new(reason).with_retry_after(Duration::from_millis(1));
            let text = bytes(&refusal, ApiShape::OpenAi, KEEP_ALIVE, b"");
            // M1: the answer had both `retry-after` and `x-should-retry: false`.
            let is_hopeless = text.contains("x-should-retry: false");
            let times = "\r\nretry-after: 1\r\nretry-after-ms: 1\r\n";
            assert_eq!(text.contains(times), !is_hopeless, "{text}");
            assert_eq!(text.contains("retry-after"), !is_hopeless, "{text}");
        }
    }

    /// RFC 9110 15.5.16: a client learns that it may send the same body without a coding.
    #[test]
    fn a_body_in_a_coding_is_refused_with_what_would_be_taken() {
        let refusal = Refusal::from(HeadError::ContentCoding);
        for api in [ApiShape::OpenAi, ApiShape::Anthropic] {
            let text = bytes(&refusal, api, KEEP_ALIVE, b"");
            assert!(text.starts_with("HTTP/1.1 415 "), "{text}");
            assert!(text.contains("\r\naccept-encoding: identity\r\n"), "{text}");
        }
        let other = bytes(&Refusal::new(Reason::BadRequest), ApiShape::OpenAi, KEEP_ALIVE, b"");
        assert!(!other.contains("accept-encoding"), "{other}");
    }

    #[test]
    fn the_answer_to_a_head_request_has_no_body() {
        let refusal = Refusal::new(Reason::MethodNotAllowed).with_allow("POST");
        let text = bytes(&refusal, ApiShape::OpenAi, Wire { head_only: true, ..KEEP_ALIVE }, b"");
        assert!(text.contains("\r\nallow: POST\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    }
}

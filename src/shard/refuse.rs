//! Writes the answers that the router gives itself, counts them, and keeps the connection usable where it can.

use super::connection::{After, Slot};
use super::state::Shard;
use crate::account::ENDPOINTS_MAX;
use crate::base::RankIndex;
use crate::http1::{BodyFraming, Method, OwnResponse, encode_own};
use crate::ingress::Conn;
use crate::parse::{ApiShape, Endpoint, Refusal};
use std::time::Duration;

/// Body bytes of a refused request that are read and thrown away, so that closing does not reset the connection
/// before the client has the answer.
pub(super) const DRAIN_BYTES_MAX: usize = 1024 * 1024;
/// Longest time spent on that.
pub(super) const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// Counters' endpoint index of requests that reached no endpoint.
pub(super) const NO_ENDPOINT: usize = ENDPOINTS_MAX - 1;

/// What is known of a request for counters and its record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Labels {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) model: Option<usize>,
    pub(super) stream: bool,
    /// The rank of the last attempt.
    pub(super) rank: Option<RankIndex>,
    /// Status of the answer, once there is one.
    pub(super) status: u16,
}

/// Answers a request whose head or body is no good. The connection ends: where the next request starts is unknown.
pub(super) async fn and_close(
    shard: &Shard,
    conn: &mut Conn,
    refusal: &Refusal,
    labels: &Labels,
) -> After {
    let bytes = encode(shard, refusal, labels, Wire { keep_alive: false, head_only: false }, &[]);
    conn.wait_at_most(shard.config.timeouts.write);
    if conn.write(bytes).await.is_ok() { After::Linger } else { After::Drop }
}

/// Answers a request whose body has not been read. A short body is read and thrown away, a long one ends the
/// connection.
pub(super) async fn before_body(
    shard: &Shard,
    conn: &mut Conn,
    slot: &Slot,
    refusal: &Refusal,
    labels: &Labels,
) -> After {
    let head = &slot.head;
    let body_bytes = match head.body {
        BodyFraming::None => Some(0),
        BodyFraming::Length(bytes) if !head.expect_continue => usize::try_from(bytes).ok(),
        _ => None,
    };
    let end = body_bytes
        .filter(|&bytes| bytes <= DRAIN_BYTES_MAX && head.keep_alive)
        .map(|bytes| head.head_bytes + bytes);
    let wire = Wire {
        keep_alive: end.is_some() && !shard.draining.is_set(),
        head_only: head.method == Method::Head,
    };
    let bytes = encode(shard, refusal, labels, wire, &[]);
    conn.wait_at_most(shard.config.timeouts.write);
    if conn.write(bytes).await.is_err() {
        return After::Drop;
    }
    let Some(end) = end.filter(|_| wire.keep_alive) else { return After::Linger };
    conn.wait_at_most(shard.config.timeouts.body);
    let mut dropped = 0;
    while dropped + conn.input.len() < end {
        dropped += conn.input.len();
        conn.input.clear();
        if conn.fill().await.is_err() {
            return After::Drop;
        }
    }
    conn.input.drain(..end.saturating_sub(dropped).min(conn.input.len()));
    After::KeepAlive
}

/// Answers a request that has been read completely.
pub(super) async fn request(
    shard: &Shard,
    conn: &mut Conn,
    slot: &Slot,
    refusal: &Refusal,
    labels: &Labels,
) -> After {
    let wire = Wire {
        keep_alive: slot.head.keep_alive && !shard.draining.is_set(),
        head_only: slot.head.method == Method::Head,
    };
    let bytes = encode(shard, refusal, labels, wire, &slot.request_id);
    conn.wait_at_most(shard.config.timeouts.write);
    match conn.write(bytes).await {
        Ok(()) if wire.keep_alive => After::KeepAlive,
        Ok(()) => After::Linger,
        Err(_) => After::Drop,
    }
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    keep_alive: bool,
    head_only: bool,
}

fn encode(
    shard: &Shard,
    refusal: &Refusal,
    labels: &Labels,
    wire: Wire,
    request_id: &[u8],
) -> Vec<u8> {
    let shape = match labels.endpoint {
        Some(Endpoint::Messages) => ApiShape::Anthropic,
        _ => ApiShape::OpenAi,
    };
    let mut body = Vec::with_capacity(256);
    refusal.encode_body(shape, &mut body);
    let mut extra: Vec<(&str, &[u8])> =
        vec![("x-forebay-reason", refusal.reason().as_str().as_bytes())];
    if !request_id.is_empty() {
        extra.push(("x-request-id", request_id));
    }
    if let Some(methods) = refusal.allow() {
        extra.push(("allow", methods.as_bytes()));
    }
    let seconds = refusal.retry_after_s().map(|seconds| seconds.to_string());
    let millis = refusal.retry_after().map(|after| after.as_millis().to_string());
    if let (Some(seconds), Some(millis)) = (&seconds, &millis) {
        extra.push(("retry-after", seconds.as_bytes()));
        extra.push(("retry-after-ms", millis.as_bytes()));
    }
    let endpoint = labels.endpoint.map_or(NO_ENDPOINT, |endpoint| endpoint as usize);
    shard.counters.answered(endpoint, refusal.status());
    let model = labels.model.unwrap_or(usize::MAX);
    shard.counters.refused(refusal.reason() as usize, endpoint, labels.stream, model);
    let mut out = Vec::with_capacity(body.len() + 256);
    let response = OwnResponse {
        status: refusal.status(),
        content_type: "application/json",
        body: &body,
        keep_alive: wire.keep_alive,
        head_only: wire.head_only,
        extra: &extra,
    };
    encode_own(&response, &mut out);
    out
}

//! Aborts a request on an engine by its request id, in addition to closing the connection. SGLang's
//! Python server notices a closed connection only after seconds, and holds the KV cache of a
//! prefill until then (SGLang 0.5.23).

use crate::ingress::Deadline;
use crate::relay::{Outbound, Watch, WatchEnd, send};
use crate::state::connecting::{ConnectTarget, open};
use crate::state::shard::{SendParts, Shard};
use forebay_board::account::Count;
use forebay_http1::{HeadLimits, Method, ResponseHead};
use forebay_mailbox::AbortCall;
use forebay_router::dispatch::RelayError;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::Duration;

/// Abort calls in flight per shard. Further calls are dropped; the connection is closed all the
/// same.
const ABORTS_MAX: usize = 256;
/// Timeout of an abort call.
const ABORT_TIME_MAX: Duration = Duration::from_secs(5);

/// Watch of an abort call: no client and no leg wait for the answer, only the deadline ends it.
struct AbortWatch(Deadline);

impl Watch for AbortWatch {
    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<RelayError> {
        Poll::Pending
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<WatchEnd> {
        self.0.poll(cx).map(|()| WatchEnd::Late)
    }

    fn wait_at_most(&mut self, after: Duration) {
        self.0.set(after);
    }
}

/// Sends the abort call in its own task.
pub(crate) fn start(shard: &Shard, call: AbortCall) {
    let Some(shard) = shard.me.upgrade() else { return };
    if shard.io.aborting.get() >= ABORTS_MAX {
        shard.env.count(Count::AbortsFailed);
        return;
    }
    shard.io.aborting.set(shard.io.aborting.get() + 1);
    forebay_net::spawn(async move {
        let sent = AssertUnwindSafe(post(shard.sending(), &call)).catch_unwind().await;
        if sent.is_err() {
            shard.env.panicked("telling an engine to abort a request panicked");
        }
        let count = if matches!(sent, Ok(Ok(()))) { Count::Aborts } else { Count::AbortsFailed };
        shard.env.counters.add(count, 1);
        // Decrement after the catch: a count lost to a panic would block later aborts.
        shard.io.aborting.set(shard.io.aborting.get().saturating_sub(1));
    });
}

/// Uses a new connection: aborts are rare, and a pooled connection may be as dead as the aborted
/// request's.
async fn post(sending: SendParts<'_>, call: &AbortCall) -> Result<(), RelayError> {
    let env = sending.env;
    let key = sending.workers.key(call.worker, call.address);
    let to =
        ConnectTarget { worker: call.worker, key, timeout: ABORT_TIME_MAX, is_for_long: false };
    let mut upstream = open(sending, to).await?;
    let limits: HeadLimits = env.head_limits();
    let mut response = ResponseHead::default();
    let mut watch = AbortWatch(Deadline::new(env.clock));
    watch.wait_at_most(ABORT_TIME_MAX);
    let head = encode(call);
    let method = &Method::Post;
    let outbound = Outbound { head, body: &[], method, may_switch: false, limits: &limits };
    send(&mut watch, &mut upstream, outbound, &mut response).await.map(drop)
}

fn encode(call: &AbortCall) -> Vec<u8> {
    let AbortCall { authority, authorization, body, .. } = call;
    let authorization = authorization
        .as_ref()
        .map_or_else(String::new, |value| format!("authorization: {value}\r\n"));
    let mut request = format!(
        "POST /abort_request HTTP/1.1\r\nhost: {authority}\r\n{authorization}content-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::WorkerIndex;

    #[test]
    fn the_call_is_what_sglang_reads() {
        let call = AbortCall {
            worker: WorkerIndex(0),
            address: ([127, 0, 0, 1], 1).into(),
            authority: "p:30000".into(),
            authorization: Some("Bearer k".into()),
            body: b"{\"rid\":\"fb-0123456789abcdef\"}"[..].into(),
        };
        assert_eq!(
            String::from_utf8(encode(&call)).unwrap(),
            "POST /abort_request HTTP/1.1\r\nhost: p:30000\r\nauthorization: Bearer k\r\n\
             content-type: application/json\r\ncontent-length: 29\r\nconnection: close\r\n\r\n\
             {\"rid\":\"fb-0123456789abcdef\"}"
        );
    }
}

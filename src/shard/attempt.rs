//! dispatch, relay, account: one attempt to get an answer from one rank.

use super::choose::{Chosen, Predicted};
use super::connection::{After, Slot};
use super::state::Shard;
use crate::account::{Count, Lease, Stage};
use crate::base::NanosSinceStart;
use crate::dispatch::SendPlan;
use crate::http1::{BodyFraming, UpstreamHead, encode_request};
use crate::ingress::Conn;
use crate::parse::Endpoint;
use crate::relay::{Answer, Outbound, RelayError, Upstream, relay, send};

/// Where the request goes.
pub(super) struct Attempt {
    pub(super) endpoint: Endpoint,
    pub(super) chosen: Chosen,
    /// When the request had been read completely.
    pub(super) read_at: NanosSinceStart,
}

/// Sends the request and relays the answer; the lease goes back when this returns, whatever happened.
pub(super) async fn run(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    attempt: Attempt,
) -> Result<After, RelayError> {
    let Attempt { endpoint, chosen, read_at } = attempt;
    let Chosen { plan, mut lease, predicted } = chosen;
    let result = exchange(shard, conn, slot, &plan, read_at).await;
    let upstream = match result {
        Ok(upstream) => upstream,
        Err(error) => {
            judge_failure(shard, &mut lease, &plan, error);
            return Err(error);
        }
    };
    // Nothing is sent a second time from here on.
    shard.buffers.give(std::mem::take(&mut slot.message));
    shard.counters.answered(endpoint as usize, slot.response.status);
    if matches!(slot.response.status, 500 | 502 | 504..=599) {
        // A failure of the engine itself. 503 and 4xx say "busy" or "your fault", which is no illness.
        mark_failed(shard, &mut lease);
    } else {
        lease.judge_success();
    }
    let answered =
        answer(shard, conn, slot, upstream, Accounted { plan: &plan, lease, predicted }).await;
    if let Err(error) = answered
        && error.blames_worker()
    {
        if shard.config.health.enabled
            && let Some(load) = shard.board.rank(plan.rank)
        {
            let breaker = &shard.config.breaker;
            load.failed(shard.now(), breaker.failures, breaker.open);
        }
        shard.worker_failed(plan.worker);
    }
    answered
}

fn judge_failure(shard: &Shard, lease: &mut Lease, plan: &SendPlan, error: RelayError) {
    if error.blames_worker() {
        mark_failed(shard, lease);
        shard.worker_failed(plan.worker);
    }
}

/// Tells the rank's breaker; without health checks nothing is ever marked.
fn mark_failed(shard: &Shard, lease: &mut Lease) {
    if shard.config.health.enabled {
        let breaker = &shard.config.breaker;
        lease.judge_failure(shard.now(), breaker.failures, breaker.open);
    }
}

/// Sends the request and waits for the head of the answer. A pooled connection that had died is replaced once.
async fn exchange(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    plan: &SendPlan,
    read_at: NanosSinceStart,
) -> Result<(Upstream, bool), RelayError> {
    let mut pooled = shard.upstreams.borrow_mut().take(plan.address, shard.now());
    loop {
        let reused = pooled.is_some();
        let mut upstream = match pooled.take() {
            Some(upstream) => upstream,
            None => {
                shard.counters.add(Count::UpstreamConnects, 1);
                let timeout = shard.config.timeouts.connect;
                Upstream::connect(plan.address, timeout, &shard.buffers).await?
            }
        };
        let mut head = shard.buffers.take();
        encode_head(slot, plan, &mut head);
        let outbound = Outbound {
            head,
            body: slot.message.get(slot.head.head_bytes..).unwrap_or_default(),
            method: &slot.head.method,
            limits: &shard.head_limits,
        };
        let dispatched = shard.time(Stage::Dispatch, read_at);
        conn.wait_at_most(shard.config.timeouts.first_byte);
        conn.expect_little(slot.request.stream);
        match send(conn, &mut upstream, outbound, &mut slot.response).await {
            Ok(sent) => {
                shard.time(Stage::FirstByte, dispatched);
                shard.counters.add(Count::UpstreamReused, u64::from(reused));
                return Ok((upstream, sent));
            }
            Err(error) if reused && error.may_be_stale() => {
                shard.counters.add(Count::Resends, 1);
            }
            Err(error) => return Err(error),
        }
    }
}

fn encode_head(slot: &Slot, plan: &SendPlan, out: &mut Vec<u8>) {
    let mut digits = [0; 10];
    let pin = plan.dp_rank_pin.map(|rank| ("x-data-parallel-rank", decimal(rank, &mut digits)));
    let head = UpstreamHead {
        authority: &plan.authority,
        content_length: match slot.head.body {
            BodyFraming::None => None,
            _ => u64::try_from(slot.message.len().saturating_sub(slot.head.head_bytes)).ok(),
        },
        request_id: &slot.request_id,
        authorization: plan.authorization.as_deref(),
        extra: pin.as_slice(),
    };
    encode_request(&slot.head, &slot.message, &head, out);
}

/// What is accounted while the answer passes.
struct Accounted<'a> {
    plan: &'a SendPlan,
    lease: Lease,
    predicted: Option<Predicted>,
}

/// Relays the answer whose head is parsed in the slot.
async fn answer(
    shard: &Shard,
    conn: &mut Conn,
    slot: &Slot,
    (mut upstream, sent): (Upstream, bool),
    accounted: Accounted<'_>,
) -> Result<After, RelayError> {
    let Accounted { plan, mut lease, predicted } = accounted;
    let mut digits = [0; 10];
    let mut extra: [(&str, &[u8]); 3] = [
        ("x-forebay-worker", plan.shown_as.as_bytes()),
        ("x-request-id", &slot.request_id),
        ("", b""),
    ];
    let mut extra_count = 2;
    if let Some(predicted) = predicted {
        let tokens = predicted.blocks.saturating_mul(predicted.block_size_tokens);
        extra[2] = ("x-forebay-overlap-tokens", decimal(tokens, &mut digits));
        extra_count = 3;
    }
    let wanted = Answer {
        head: &slot.response,
        client_version: slot.head.version,
        keep_alive: slot.head.keep_alive && !shard.draining.is_set(),
        extra: extra.get(..extra_count).unwrap_or_default(),
        idle_max: shard.config.timeouts.stream_idle,
        write_max: shard.config.timeouts.write,
    };
    let mut reported = None;
    let relayed = relay(conn, &mut upstream, &wanted, |data| {
        if !data.is_empty() {
            lease.prefill_done();
            if predicted.is_some() {
                reported = shard.cached_tokens.find(data).or(reported);
            }
        }
    });
    let relayed = relayed.await?;
    shard.counters.add(Count::ResponseBytes, relayed.body_bytes);
    if let (Some(predicted), Some(reported)) = (predicted, reported) {
        account_error(shard, predicted, reported);
    }
    if relayed.upstream_reusable && sent {
        shard.upstreams.borrow_mut().put(plan.address, upstream, shard.now());
    }
    Ok(if relayed.client_reusable { After::KeepAlive } else { After::Linger })
}

fn account_error(shard: &Shard, predicted: Predicted, reported_tokens: u64) {
    let reported = reported_tokens / u64::from(predicted.block_size_tokens.max(1));
    let reported = i64::try_from(reported).unwrap_or(i64::MAX);
    // What lies between is in a lower tier: whether it counts as cached differs between engines and connectors.
    let within = i64::from(predicted.blocks)..=i64::from(predicted.blocks_most);
    let expected = reported.clamp(*within.start(), *within.end());
    shard.counters.overlap_error(expected.saturating_sub(reported));
}

/// Decimal digits of `value`.
fn decimal(mut value: u32, digits: &mut [u8; 10]) -> &[u8] {
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

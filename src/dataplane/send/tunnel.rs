//! relay, account: a WebSocket, from the worker's 101 to its end. An open WebSocket holds its lease
//! and its place among the requests in flight.

use super::added_fields::AddedFields;
use super::relay_answer::{AttemptAccount, UpstreamAnswer};
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::intake::websocket::UPGRADE;
use crate::relay::{TunnelDirection, TunnelEnd, TunnelLimits, TunnelWatch, tunnel};
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::shard::SendParts;
use crate::state::workers::Workers;
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::account::Count;
use forebay_fleet::worker::WorkerState;
use forebay_http1::{BodyFraming, DownstreamHead, encode_response, header};
use forebay_router::dispatch::{RelayError, SendPlan};
use std::time::Duration;

/// Status of the answer that opened the tunnel.
const SWITCHED_STATUS: u16 = 101;

/// Sends the worker's 101 to the client, and relays bytes until either end closes.
pub(crate) async fn run(
    sending: SendParts<'_>,
    conn: &mut Conn,
    request: &Request<'_>,
    answering: UpstreamAnswer,
    accounted: AttemptAccount<'_>,
) -> Result<ConnectionReuse, RelayError> {
    let SendParts { env, workers, .. } = sending;
    let UpstreamAnswer { mut upstream, .. } = answering;
    let AttemptAccount { going, lease, .. } = accounted;
    let plan = going.plan;
    // A WebSocket has no prompt that other requests wait for.
    lease.end_prefill();
    let mut first = conn.buffer_for(upstream.input.len() + 512);
    encode_head(request, plan, &upstream.input, &mut first);
    let frames = upstream.input.get(request.answer_head.head_bytes..).unwrap_or_default();
    first.extend_from_slice(frames);
    let mut watch = OpenTunnel::new(env, workers, plan.worker);
    if !frames.is_empty() {
        watch.passes(TunnelDirection::Client, frames.len());
    }
    upstream.input = Vec::new();
    let limits = {
        let timeouts = env.config().timeouts;
        TunnelLimits {
            idle_max: timeouts.tunnel,
            half_closed_max: timeouts.write,
            client_write_max: timeouts.write,
            worker_write_max: timeouts.stream_idle,
        }
    };
    match tunnel(conn, upstream.halves(), first, limits, &mut watch).await? {
        TunnelEnd::Closed => Ok(ConnectionReuse::Drop),
        TunnelEnd::Over => Ok(ConnectionReuse::Linger),
    }
}

fn encode_head(request: &Request<'_>, plan: &SendPlan, input: &[u8], out: &mut Vec<u8>) {
    let mut extra = AddedFields::new();
    extra.push((header::WORKER, plan.shown_as.as_bytes()));
    extra.push((header::REQUEST_ID, request.request_id()));
    extra.extend(UPGRADE);
    extra.extend(request.cors_fields().into_iter().flatten());
    extra.extend(request.fields.limits.fields());
    let head = DownstreamHead {
        framing: BodyFraming::None,
        keep_alive: true,
        client_version: request.head.version,
        extra: extra.get(),
    };
    encode_response(&request.answer_head, input, &head, out);
}

/// Counts relayed bytes and watches the worker's health. The tunnel counts as open until dropped.
struct OpenTunnel<'a> {
    env: &'a Env,
    workers: &'a Workers,
    worker: WorkerIndex,
    down: DownWatch<'a>,
    down_at: NanosSinceStart,
}

impl<'a> OpenTunnel<'a> {
    fn new(env: &'a Env, workers: &'a Workers, worker: WorkerIndex) -> Self {
        env.count(Count::TunnelsOpened);
        let mut down = DownWatch::new(env, workers, worker);
        let down_at = env.now().plus(down.begin(Duration::MAX));
        Self { env, workers, worker, down, down_at }
    }
}

impl TunnelWatch for OpenTunnel<'_> {
    fn passes(&mut self, toward: TunnelDirection, bytes: usize) {
        let count = match toward {
            TunnelDirection::Client => {
                self.workers.count_receipt(self.worker, SWITCHED_STATUS);
                Count::ResponseBytes
            }
            TunnelDirection::Worker => Count::TunnelRequestBytes,
        };
        self.env.counters.add(count, u64::try_from(bytes).unwrap_or(0));
    }

    fn look(&mut self) -> Option<Result<TunnelEnd, RelayError>> {
        let state = {
            let fleet = self.workers.fleet.borrow();
            fleet.workers.get(self.worker.index()).map(|worker| worker.state)
        };
        if state.is_none_or(|state| state == WorkerState::Gone) {
            return Some(Ok(TunnelEnd::Over));
        }
        let now = self.env.now();
        if now >= self.down_at {
            match self.down.next() {
                Ok(step) => self.down_at = now.plus(step),
                Err(_) => return Some(Err(RelayError::DownMidStream)),
            }
        }
        None
    }
}

impl Drop for OpenTunnel<'_> {
    fn drop(&mut self) {
        self.env.count(Count::TunnelsClosed);
    }
}

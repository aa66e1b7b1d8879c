//! One log record per request, only where `log.requests` asks for it: the shard formats it
//! and hands it to the thread that writes the log.

use super::labels::{CLIENT_GONE, Labels};
use super::slot::{After, Slot};
use super::state::Shard;
use crate::ingress::ConnectedClient;
use forebay_base::NanosSinceStart;
use forebay_router::request::Stop;

/// Writes the record of a request that has ended.
pub(super) fn write(
    shard: &Shard,
    client: &ConnectedClient,
    slot: &Slot,
    labels: &Labels,
    served: &Result<After, Stop>,
    started: NanosSinceStart,
) {
    let (status, outcome) = match served {
        Ok(_) => (labels.status, "answered"),
        Err(Stop::BeforeBody(refusal) | Stop::InBody(refusal) | Stop::Refused(refusal)) => {
            (refusal.status(), refusal.reason().as_str())
        }
        Err(Stop::Engine(answer)) => (answer.status, "engine-refused"),
        Err(Stop::ClientGone) => (slot.answer.status.unwrap_or(CLIENT_GONE), "client-gone"),
        Err(Stop::Cut(error)) => (slot.answer.head.status, error.describe()),
    };
    let fleet = shard.workers.fleet();
    let rank = labels.rank.and_then(|rank| fleet.rank(rank));
    tracing::info!(
        status,
        outcome,
        endpoint = labels.endpoint.map_or("none", |endpoint| endpoint.name()),
        model = slot.request.model,
        tenant = fleet.tenants.name(slot.told.whom.tenant),
        stream = labels.stream.unwrap_or(false),
        worker = rank.map_or("", |(_, worker)| &*worker.name),
        dp_rank = rank.map_or(0, |(rank, _)| rank.dp_rank.0),
        client = %client.address,
        peer = %client.peer,
        request_id = &*String::from_utf8_lossy(&slot.request_id),
        micros = shard.env.now().since(started) / 1_000,
        "request"
    );
}

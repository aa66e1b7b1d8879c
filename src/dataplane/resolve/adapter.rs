//! parse: a request for a LoRA adapter of `[[adapter]]` that no worker in service has loaded. The
//! control plane is asked to load it, and the request waits for a fleet with the adapter.

use super::facts;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::state::shard::Shard;
use crate::state::workers::ShardFleet;
use forebay_base::RankIndex;
use forebay_base::limits::ADAPTER_WAIT_MAX;
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use forebay_mailbox::{AdapterRefusal, AdapterRequest};
use forebay_prompt::parse::{ApiRequest, Endpoint, Reason, Refusal};
use forebay_router::request::Stop;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::task::Poll;
use std::time::Duration;

/// How often a waiting request checks the fleet. The control plane acts 10 times a second.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Adapter that the request must wait for, if any. A caller without permission for the adapter does
/// not wait; its refusal follows later.
pub(crate) fn awaited(
    fleet: &FleetSnapshot,
    endpoint: Endpoint,
    request: &Request<'_>,
) -> Option<Arc<str>> {
    let name = unloaded(fleet, &request.api)?;
    let may_use = match facts::model(fleet, endpoint, request) {
        // `lora_path` names the adapter of a request for a served model.
        Ok(_) => true,
        Err(refusal) => refusal.reason() == Reason::UnknownModel,
    };
    may_use.then(|| name.into())
}

/// Name of the requested `[[adapter]]` that no worker serves.
fn unloaded<'a>(fleet: &'a FleetSnapshot, request: &ApiRequest) -> Option<&'a str> {
    let tables = &fleet.config.adapters;
    let asked = |name: &str| tables.iter().find(|table| !name.is_empty() && table.name == name);
    let table = asked(&request.lora).or_else(|| asked(&request.model))?;
    // Without health checks no worker lists its adapters.
    let is_known = fleet.config.health.enabled;
    (is_known && !is_served(fleet, &table.name)).then_some(&*table.name)
}

/// True if a worker in service lists the adapter.
fn is_served(fleet: &FleetSnapshot, name: &str) -> bool {
    let is_up = |rank: &RankIndex| {
        fleet.rank(*rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    fleet.model(name).is_some_and(|(_, model)| model.ranks.iter().any(is_up))
}

/// Waits for a fleet with the adapter, and returns that fleet.
///
/// # Errors
/// The client has left, workers have refused, or it takes too long.
pub(crate) async fn load(
    shard: &Shard,
    conn: &mut Conn,
    name: Arc<str>,
) -> Result<Rc<ShardFleet>, Stop> {
    let env = &shard.env;
    let refused = AdapterRefusal::default();
    let mut ask = Some(AdapterRequest { name: Arc::clone(&name), refused: refused.clone() });
    let wait_max = env.config().timeouts.first_byte.min(ADAPTER_WAIT_MAX);
    let until = env.now().plus(wait_max);
    loop {
        ask = ask.and_then(|ask| match shard.links.control.adapters.try_send(ask) {
            Err(TrySendError::Full(ask)) => Some(ask),
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
        });
        conn.wait_at_most(LOOK_PERIOD);
        let is_gone = poll_fn(|cx| match conn.poll_gone(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => conn.poll_deadline(cx).map(|()| false),
        });
        if is_gone.await {
            return Err(Stop::ClientGone);
        }
        let fleet = shard.workers.fleet();
        if is_served(&fleet, &name) {
            return Ok(fleet);
        }
        if let Some(why) = refused.why() {
            let refusal = Refusal::new(Reason::NoHealthyWorker);
            return Err(Stop::Refused(refusal.with_message(why.to_string())));
        }
        if env.now() >= until {
            let seconds = wait_max.as_secs();
            let why = format!(
                "No worker has loaded the adapter `{name}` within {seconds} s. Try again later."
            );
            let refusal = Refusal::new(Reason::UpstreamTimeout).with_message(why);
            return Err(Stop::Refused(refusal));
        }
    }
}

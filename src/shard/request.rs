//! The path of one request, stage by stage. Each stage's module has the details.

use super::attempt::{self, Attempt};
use super::choose::{self, Target};
use super::connection::{After, Slot};
use super::read::{self, NoRequest};
use super::refuse::{self, Labels};
use super::state::Shard;
use super::{models, outcome, record};
use crate::account::{Count, Stage};
use crate::ingress::Conn;
use crate::parse::{Endpoint, Refusal, route, scan};
use crate::relay::RelayError;

/// Why a request ended without an answer from a worker.
#[derive(Debug)]
pub(super) enum Stop {
    /// Refused on its head alone; the body is still on its way.
    BeforeBody(Refusal),
    /// Refused in the middle of its body; where the next request starts is unknown.
    InBody(Refusal),
    /// Refused after it was read completely.
    Refused(Refusal),
    /// Nobody is left to answer.
    ClientGone,
    /// Broken off after the client had seen the head of an answer.
    Cut(RelayError),
}

/// Serves the request whose head stands parsed in the slot.
pub(super) async fn serve(shard: &Shard, conn: &mut Conn, slot: &mut Slot) -> After {
    let started = shard.now();
    let mut labels = Labels::default();
    let served = stages(shard, conn, slot, &mut labels).await;
    shard.time(Stage::Total, started);
    if shard.config.log.requests {
        record::write(shard, slot, &labels, &served, started);
    }
    match served {
        Ok(after) => after,
        Err(Stop::BeforeBody(refusal)) => {
            refuse::before_body(shard, conn, slot, &refusal, &labels).await
        }
        Err(Stop::InBody(refusal)) => refuse::and_close(shard, conn, &refusal, &labels).await,
        Err(Stop::Refused(refusal)) => refuse::request(shard, conn, slot, &refusal, &labels).await,
        Err(Stop::ClientGone | Stop::Cut(RelayError::ClientGone | RelayError::ClientStalled)) => {
            shard.counters.add(Count::ClientGone, 1);
            After::Drop
        }
        Err(Stop::Cut(_)) => {
            shard.counters.add(Count::CutMidStream, 1);
            After::Drop
        }
    }
}

async fn stages(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    labels: &mut Labels,
) -> Result<After, Stop> {
    // parse: the route. admit: the exact limits, before any of the body is read.
    let endpoint =
        route(&slot.head.method, slot.head.path(&conn.input)).map_err(Stop::BeforeBody)?;
    labels.endpoint = Some(endpoint);
    let full = |_| Stop::BeforeBody(outcome::in_flight_full());
    let mut admitted = shard.in_flight.admit().map_err(full)?;

    // ingress: the whole body. parse: one scan of it.
    let body_bytes = read::body(shard, conn, slot, &mut admitted).await?;
    slot.take_message(conn, body_bytes, shard.random.borrow_mut().u64(..));
    let read_at = shard.now();
    slot.request.clear();
    if endpoint != Endpoint::Models {
        let body = slot.message.get(slot.head.head_bytes..).unwrap_or_default();
        scan(body, endpoint, &mut slot.request).map_err(|error| Stop::Refused(error.into()))?;
        labels.stream = slot.request.stream;
        shard.time(Stage::Parse, read_at);
    }
    let fleet = shard.fleet();
    if endpoint == Endpoint::Models && !models::is_forwarded(&fleet) {
        labels.status = 200;
        return Ok(models::answer(shard, conn, slot, &fleet).await);
    }
    let (model_index, model) =
        choose::model(&fleet, endpoint, &slot.request).map_err(Stop::Refused)?;
    labels.model = Some(model_index.index());

    // render, index, select, dispatch, relay: again with another worker while no byte has reached the client.
    shard.retry.borrow_mut().deposit();
    let mut tried = Vec::new();
    let mut failed = None;
    loop {
        let target = Target { fleet: &fleet, model_index, model, tried: &tried };
        // When no other worker is left, the client hears what the last one did.
        let refused = |refusal| failed.take().unwrap_or(Stop::Refused(refusal));
        let chosen = choose::rank(shard, slot, &target).map_err(refused)?;
        let rank = chosen.lease.rank();
        labels.rank = Some(rank);
        match attempt::run(shard, conn, slot, Attempt { endpoint, chosen, read_at }).await {
            Ok(after) => {
                labels.status = slot.response.status;
                return Ok(after);
            }
            Err(error) if may_retry(shard, error, tried.len()) => {
                failed = Some(outcome::stop(&fleet, rank, error));
                tried.push(rank);
            }
            Err(error) => return Err(outcome::stop(&fleet, rank, error)),
        }
    }
}

/// Another worker may be asked if nothing reached the client, attempts are left, and the retry budget allows it.
fn may_retry(shard: &Shard, error: RelayError, retries: usize) -> bool {
    let attempts = u32::try_from(retries).unwrap_or(u32::MAX).saturating_add(1);
    let may = error.may_retry()
        && attempts < shard.config.retry.attempts_max
        && shard.retry.borrow_mut().withdraw();
    if may {
        shard.counters.add(Count::Retries, 1);
    }
    may
}

impl From<NoRequest> for Stop {
    fn from(none: NoRequest) -> Self {
        match none {
            NoRequest::Silent => Self::ClientGone,
            NoRequest::Refused(refusal) => Self::InBody(refusal),
        }
    }
}

//! Limits of tenants on the way of a request: requests and requests in flight are taken on the head
//! alone, tokens once the body has been read. What a request has taken comes back when it ends,
//! corrected by what its engine says.

use super::bill;
use crate::exchange::quota_use::{Held, QuotaUse};
use crate::exchange::slot::Slot;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_fleet::tenant::{Quota, RateRefusal, Tenant, TenantCell};
use forebay_fleet::worker::FleetSnapshot;
use forebay_prompt::parse::{Endpoint, Reason, Refusal};
use forebay_router::request::Ratios;
use std::time::Duration;

/// Takes a request, and a place in flight, of the tenant's limits.
///
/// # Errors
/// A refusal where a limit is reached; nothing is taken then.
pub(crate) fn enter(shard: &Shard, slot: &mut Slot, endpoint: Endpoint) -> Result<(), Refusal> {
    let fleet = shard.workers.fleet.borrow();
    let Some(tenant) = limited(&fleet, slot).filter(|_| endpoint.is_inference()) else {
        return Ok(());
    };
    let billed = tenant.billed;
    let quota = tenant.quota;
    let now = shard.env.now();
    let Some(cell) = shard.workers.board.tenants().of(billed) else { return Ok(()) };
    let has_place = quota.in_flight_max > 0;
    if has_place && !cell.enter(quota.in_flight_max) {
        tell(slot, cell, quota, now);
        return Err(Refusal::new(Reason::RejectedTenantInFlight));
    }
    let board = shard.workers.board.clone();
    let clock = shard.env.clock;
    slot.told.quota.held = Some(Held { board, clock, billed, has_place, tokens: None });
    let taken = quota.requests.map_or(Ok(()), |rate| cell.take_request(rate, now));
    tell(slot, cell, quota, now);
    taken.map_err(|why| refused(Reason::RejectedRequests, why))
}

/// Takes the tokens that a request is expected to need.
///
/// # Errors
/// A refusal where the limit is reached; nothing is taken then.
pub(crate) fn charge(
    env: &Env,
    slot: &mut Slot,
    fleet: &FleetSnapshot,
    ratios: &Ratios,
    model: ModelIndex,
    output_tokens: u32,
) -> Result<(), Refusal> {
    if !fleet.tenants.are_counted() {
        return Ok(());
    }
    let body_bytes = u64::try_from(slot.body().len()).unwrap_or(u64::MAX);
    let prompt = tokens_of(slot.request.text_bytes(body_bytes), ratios.of(model));
    slot.told.quota.count(prompt);
    let Some(Tenant { quota, billed, .. }) = limited(fleet, slot) else { return Ok(()) };
    // A reload since the head may bill the tenant elsewhere: its place stays where it was taken.
    let held = slot.told.quota.held.as_mut().filter(|held| held.billed == *billed);
    let Some(held) = held else { return Ok(()) };
    let board = held.board.clone();
    let now = env.now();
    let (Some(rate), Some(cell)) = (quota.tokens, board.tenants().of(*billed)) else {
        return Ok(());
    };
    let answers = u64::from(slot.request.answer_count.max(1));
    let wanted = prompt.saturating_add(u64::from(output_tokens).saturating_mul(answers));
    let taken = cell.take_tokens(rate, now, wanted);
    held.tokens = taken.ok();
    tell(slot, cell, *quota, now);
    taken.map(|_| ()).map_err(|why| refused(Reason::RejectedTokens, why))
}

/// Counts what a request has cost, and gives back what it has taken and not used.
pub(crate) fn settle(shard: &Shard, slot: &mut Slot, model: Option<usize>) {
    let usage = bill::total(slot);
    slot.answer.usage.set(usage);
    if let Some(usage) = usage {
        let tenant = slot.told.whom.tenant;
        shard.env.counters.tokens_used(tenant, model.unwrap_or(usize::MAX), usage);
    }
    let QuotaUse { held, .. } = &mut slot.told.quota;
    if let Some(mut held) = held.take() {
        held.settle(usage.map_or(0, |usage| usage.prompt.saturating_add(usage.output)));
    }
}

/// The tenant of a request, if it has limits.
fn limited<'a>(fleet: &'a FleetSnapshot, slot: &Slot) -> Option<&'a Tenant> {
    let tenant = fleet.tenants.get(slot.told.whom.tenant)?;
    (tenant.quota != Quota::default()).then_some(tenant)
}

/// The client hears what is left, whether or not its request passes.
fn tell(slot: &mut Slot, cell: &TenantCell, quota: Quota, now: NanosSinceStart) {
    let requests = quota.requests.map(|rate| cell.requests(rate, now));
    let tokens = quota.tokens.map(|rate| cell.tokens(rate, now));
    slot.answer.limits.set(requests, tokens);
}

fn refused(reason: Reason, why: RateRefusal) -> Refusal {
    match why {
        RateRefusal::NotNow { wait_ns } => {
            Refusal::new(reason).with_retry_after(Duration::from_nanos(wait_ns))
        }
        RateRefusal::Never => Refusal::new(Reason::RejectedTooManyTokens),
    }
}

fn tokens_of(text_bytes: u64, bytes_per_token: f32) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let tokens = text_bytes as f64 / f64::from(bytes_per_token.max(1.0));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    let tokens = tokens.ceil() as u64;
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_estimated_by_its_bytes() {
        for (bytes, ratio, tokens) in [(0, 4.0, 0), (9, 4.0, 3), (400, 4.0, 100), (7, 0.0, 7)] {
            assert_eq!(tokens_of(bytes, ratio), tokens);
        }
        assert_eq!(tokens_of(u64::MAX, 1.0), u64::MAX);
    }
}

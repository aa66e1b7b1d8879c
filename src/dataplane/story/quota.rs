//! Tenant limits of a request. Requests and places in flight are taken on the head, tokens once the
//! body is read. The end of the request returns the place, and corrects the tokens by the usage
//! that the engine reports.

use super::bill::Bill;
use super::quota_hold::QuotaHold;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_board::TenantCell;
use forebay_fleet::tenant::{Quota, RateRefusal, RateStatus, Tenant};
use forebay_fleet::worker::FleetSnapshot;
use forebay_prompt::parse::{ApiRequest, Endpoint, Reason, Refusal};
use std::time::Duration;

/// Standing of a tenant's limits, for the `x-ratelimit-*` fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuotaStanding {
    pub(crate) requests: Option<RateStatus>,
    pub(crate) tokens: Option<RateStatus>,
}

/// Result of a quota check: whether the request passes, and the standing for its client. `None`:
/// the tenant has no limits.
pub(crate) type QuotaCheck = (Result<(), Refusal>, Option<QuotaStanding>);

const NO_LIMITS: QuotaCheck = (Ok(()), None);

/// Takes a request and a place in flight from the tenant's limits. If a limit is reached, takes
/// neither.
pub(crate) fn enter(
    shard: &Shard,
    bill: &mut Bill,
    tenant: TenantIndex,
    endpoint: Endpoint,
) -> QuotaCheck {
    let fleet = shard.workers.fleet.borrow();
    let Some(tenant) = limited(&fleet, tenant).filter(|_| endpoint.is_inference()) else {
        return NO_LIMITS;
    };
    let billed = tenant.billed;
    let quota = tenant.quota;
    let now = shard.env.now();
    let Some(cell) = shard.workers.board.tenants().of(billed) else { return NO_LIMITS };
    let has_place = quota.in_flight_max > 0;
    if has_place && !cell.enter(quota.in_flight_max) {
        let refusal = Refusal::new(Reason::RejectedTenantInFlight);
        return (Err(refusal), Some(standing(cell, quota, now)));
    }
    let board = shard.workers.board.clone();
    let clock = shard.env.clock;
    bill.held = Some(QuotaHold { board, clock, billed, has_place, tokens: None });
    let taken = quota.requests.map_or(Ok(()), |rate| cell.take_request(rate, now));
    let taken = taken.map_err(|why| refused(Reason::RejectedRequests, why));
    (taken, Some(standing(cell, quota, now)))
}

/// Request to charge for tokens.
pub(crate) struct Charge<'a> {
    pub(crate) tenant: TenantIndex,
    pub(crate) endpoint: Endpoint,
    pub(crate) api: &'a ApiRequest,
    pub(crate) body_bytes: u64,
    pub(crate) bytes_per_token: f32,
    pub(crate) output_tokens: u32,
}

/// Takes the expected tokens of a request. If the limit is reached, takes none.
pub(crate) fn charge(
    env: &Env,
    bill: &mut Bill,
    fleet: &FleetSnapshot,
    charge: &Charge<'_>,
) -> QuotaCheck {
    if !fleet.tenants.are_counted() {
        return NO_LIMITS;
    }
    let Charge { tenant, endpoint, api, body_bytes, bytes_per_token, output_tokens } = *charge;
    let prompt = tokens_of(api.text_bytes(body_bytes), bytes_per_token);
    bill.count(endpoint, api, prompt);
    let Some(Tenant { quota, billed, .. }) = limited(fleet, tenant) else { return NO_LIMITS };
    // A reload since the head may bill another tenant: the place stays where it was taken, and no
    // tokens are taken.
    let held = bill.held.as_mut().filter(|held| held.billed == *billed);
    let Some(held) = held else { return NO_LIMITS };
    let board = held.board.clone();
    let now = env.now();
    let (Some(rate), Some(cell)) = (quota.tokens, board.tenants().of(*billed)) else {
        return NO_LIMITS;
    };
    let answers = u64::from(api.answer_count);
    let wanted = prompt.saturating_add(u64::from(output_tokens).saturating_mul(answers));
    let taken = cell.take_tokens(rate, now, wanted);
    held.tokens = taken.ok();
    let result = taken.map(|_| ()).map_err(|why| refused(Reason::RejectedTokens, why));
    (result, Some(standing(cell, *quota, now)))
}

/// Tenant of a request, if it has limits.
fn limited(fleet: &FleetSnapshot, tenant: TenantIndex) -> Option<&Tenant> {
    fleet.tenants.get(tenant).filter(|tenant| tenant.quota != Quota::default())
}

fn standing(cell: &TenantCell, quota: Quota, now: NanosSinceStart) -> QuotaStanding {
    QuotaStanding {
        requests: quota.requests.map(|rate| cell.requests(rate, now)),
        tokens: quota.tokens.map(|rate| cell.tokens(rate, now)),
    }
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

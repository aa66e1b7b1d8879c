//! Waiting requests of each tenant in a queue, and the tenant's share beside other waiting tenants.
//! All shards write the words. They are read only when a bound refuses, and while a rejection
//! window is open; a queue with room reads no share.

use forebay_fleet::tenant::{TENANT_SLOTS, tenant_slot};
use forebay_ring::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// A loom model has two tenants.
const SLOTS: usize = if cfg!(feature = "loom") { 2 } else { TENANT_SLOTS };
/// A tenant in [`QueueTenants::present`], beside the sum of weights.
const ONE_TENANT: u64 = 1 << 48;
/// A request in [`TenantSum::requests`], beside the weight.
const ONE_REQUEST: u64 = 1 << 32;
const _: () = assert!((SLOTS as u64) * (u32::MAX as u64) < ONE_TENANT);

/// Resources that a request takes of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDemand {
    pub bytes: u64,
    pub tokens: u64,
    pub class: u8,
    pub tenant: u64,
    /// Weight of the tenant beside other tenants.
    pub weight: u32,
}

/// The tenants of a queue.
#[derive(Debug, Default)]
pub(crate) struct QueueTenants {
    /// Number of waiting tenants, times [`ONE_TENANT`], plus the sum of their weights.
    present: AtomicU64,
    /// Allocated when the first request waits: most queues are never used.
    sums: OnceLock<Box<[TenantSum]>>,
}

/// Waiting requests of a tenant.
#[derive(Debug, Default)]
struct TenantSum {
    /// Number of requests, times [`ONE_REQUEST`], plus the weight of the first request.
    requests: AtomicU64,
    bytes: AtomicU64,
    tokens: AtomicU64,
}

/// Waiting requests of a tenant at a moment, beside the other tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueShare {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
    /// Other tenants that wait.
    pub(crate) others: u64,
    weight: u64,
    /// Sum of the weights of all waiting tenants, this tenant included.
    weights: u64,
}

impl QueueShare {
    /// The share if another request of the tenant waited, with no bytes and tokens.
    pub(crate) const fn with_one_more(self) -> Self {
        Self { requests: self.requests + 1, ..self }
    }

    /// Does `held` stay within the tenant's share of `max`, by its weight? A tenant's only request
    /// does if an empty queue would take it: `wanted` of `max`. A tenant that waits alone has the
    /// whole queue.
    pub(crate) fn covers(&self, held: u64, wanted: u64, max: u64) -> bool {
        if self.requests <= 1 {
            return wanted <= max;
        }
        u128::from(held) * u128::from(self.weights) <= u128::from(max) * u128::from(self.weight)
    }
}

impl QueueTenants {
    /// Counts a request in. Returns the tenant's share, this request included.
    pub(crate) fn enter(&self, wanted: QueueDemand) -> QueueShare {
        let Some(sum) = self.sum(wanted.tenant) else { return QueueShare::default() };
        let weight = u64::from(wanted.weight.max(1));
        let one_more = |word: u64| {
            // The weight of the first request stays until the last request leaves: a reloaded
            // weight would leave a remainder in the sum of weights.
            let word = if requests_of(word) == 0 { weight } else { word };
            Some(word + ONE_REQUEST)
        };
        // ordering: its order decides which request is the first. Release, with the Acquire in
        // `exit`, in a row of updates: see there.
        let before = sum.requests.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        let before = before.unwrap_or_default();
        if requests_of(before) == 0 {
            // ordering: a sum.
            self.present.fetch_add(ONE_TENANT + weight, Ordering::Relaxed);
        }
        // ordering: independent sums; pair with nothing.
        let bytes = sum.bytes.fetch_add(wanted.bytes, Ordering::Relaxed);
        // ordering: as above.
        let tokens = sum.tokens.fetch_add(wanted.tokens, Ordering::Relaxed);
        let own_weight = if requests_of(before) == 0 { weight } else { weight_of(before) };
        QueueShare {
            requests: requests_of(before) + 1,
            bytes: bytes.saturating_add(wanted.bytes),
            tokens: tokens.saturating_add(wanted.tokens),
            ..self.beside(true, own_weight)
        }
    }

    /// Counts a request out. Once for each [`Self::enter`].
    pub(crate) fn exit(&self, wanted: QueueDemand) {
        let Some(sum) = self.sum(wanted.tenant) else { return };
        // ordering: independent sums; pair with nothing.
        let bytes = sum.bytes.fetch_sub(wanted.bytes, Ordering::Relaxed);
        debug_assert!(bytes >= wanted.bytes, "a tenant left with more bytes than it came with");
        // ordering: as above.
        let tokens = sum.tokens.fetch_sub(wanted.tokens, Ordering::Relaxed);
        debug_assert!(tokens >= wanted.tokens, "a tenant left with more tokens");
        let one_less = |word: u64| match requests_of(word) {
            0 => None,
            1 => Some(0),
            _ => Some(word - ONE_REQUEST),
        };
        // ordering: AcqRel. The first request has added to `present` before its own exit, which
        // releases here; the exit of the last request acquires it. So the sum never falls below the
        // subtracted amount.
        let before = sum.requests.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        debug_assert!(before.is_ok(), "a tenant left twice");
        let last = before.ok().filter(|&word| requests_of(word) == 1);
        if let Some(word) = last {
            // ordering: a sum, see above.
            self.present.fetch_sub(ONE_TENANT + weight_of(word), Ordering::Relaxed);
        }
    }

    pub(crate) fn share(&self, tenant: u64, weight: u32) -> QueueShare {
        let none = QueueShare::default();
        let Some(sum) = self.sums.get().and_then(|sums| sums.get(slot(tenant))) else {
            return none;
        };
        // ordering: statistics; pair with nothing. `join` decides by the result of `enter`.
        let word = sum.requests.load(Ordering::Relaxed);
        let requests = requests_of(word);
        let own_weight = if requests == 0 { u64::from(weight.max(1)) } else { weight_of(word) };
        QueueShare {
            requests,
            // ordering: as above.
            bytes: sum.bytes.load(Ordering::Relaxed),
            // ordering: as above.
            tokens: sum.tokens.load(Ordering::Relaxed),
            ..self.beside(requests > 0, own_weight)
        }
    }

    /// The other waiting tenants. `is_counted`: the sums include the tenant itself.
    fn beside(&self, is_counted: bool, weight: u64) -> QueueShare {
        // ordering: a sum; a read during an enter or an exit may return either value.
        let present = self.present.load(Ordering::Relaxed);
        let count = present / ONE_TENANT;
        let sum = present % ONE_TENANT;
        let (own_count, own_sum) = if is_counted { (1, 0) } else { (0, weight) };
        QueueShare {
            others: count.saturating_sub(own_count),
            weight,
            // Another shard may have counted the tenant's first request, and not its weight yet.
            weights: sum.saturating_add(own_sum).max(weight),
            ..QueueShare::default()
        }
    }

    fn sum(&self, tenant: u64) -> Option<&TenantSum> {
        let sums = self.sums.get_or_init(|| (0..SLOTS).map(|_| TenantSum::default()).collect());
        sums.get(slot(tenant))
    }
}

const fn requests_of(word: u64) -> u64 {
    word / ONE_REQUEST
}

const fn weight_of(word: u64) -> u64 {
    word % ONE_REQUEST
}

fn slot(tenant: u64) -> usize {
    tenant_slot(tenant).min(SLOTS - 1)
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    fn wanted(tenant: u64, weight: u32) -> QueueDemand {
        QueueDemand { bytes: 10, tokens: 3, tenant, weight, ..QueueDemand::default() }
    }

    #[test]
    fn a_weight_that_changes_leaves_no_rest() {
        let tenants = QueueTenants::default();
        assert_eq!(tenants.share(7, 4), QueueShare::default());
        tenants.enter(wanted(7, 4));
        tenants.enter(wanted(7, 9));
        let share = tenants.enter(wanted(8, 0));
        assert_eq!((share.requests, share.weight, share.weights, share.others), (1, 1, 5, 1));
        tenants.exit(wanted(7, 4));
        let share = tenants.share(7, 9);
        assert_eq!((share.requests, share.bytes, share.tokens, share.weight), (1, 10, 3, 4));
        tenants.exit(wanted(7, 9));
        assert_eq!(tenants.share(8, 1).weights, 1);
        assert_eq!(tenants.share(7, 2).weights, 3, "as if it came");
        tenants.exit(wanted(8, 0));
        assert_eq!(tenants.share(9, 1).others, 0);
    }

    #[test]
    fn a_share_goes_by_weight_and_holds_one_request() {
        let tenants = QueueTenants::default();
        for _ in 0..3 {
            tenants.enter(wanted(1, 1));
        }
        let alone = tenants.share(1, 1);
        assert!(alone.covers(100, 1, 100) && !alone.covers(101, 1, 100));
        let first = tenants.enter(wanted(2, 3));
        assert!(first.covers(1, 1, 1) && !first.covers(1, 2, 1), "one that an empty queue takes");
        let second = tenants.enter(wanted(2, 3));
        assert!(second.covers(75, 1, 100) && !second.covers(76, 1, 100));
        let greedy = tenants.share(1, 1);
        assert!(greedy.covers(25, 1, 100) && !greedy.covers(26, 1, 100));
    }
}

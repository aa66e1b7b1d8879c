//! Limits of a shard: requests in flight and bytes of request bodies held. Guards count both, so
//! every path gives back what it took.
//!
//! | limit reached | a tenant gets more |
//! |---|---|
//! | requests | up to its share by weight beside the tenants that have requests here |
//! | the first seven eighths of the bytes | for a single request, or up to an eighth of all |
//! | all bytes | never: they bound the memory |
//!
//! With a single tenant, both limits are exact.

use forebay_fleet::tenant::{TENANT_SLOTS, TenantPart, tenant_slot};
use std::cell::Cell;
use std::rc::Rc;

/// This part of the bytes is reserved for tenants that hold no more than this part.
const RESERVED_PART: usize = 8;

/// The limits and their use.
#[derive(Debug)]
pub struct InFlight {
    requests_max: Cell<usize>,
    body_bytes_max: Cell<usize>,
    requests: Cell<usize>,
    body_bytes: Cell<usize>,
    /// Indexed by [`tenant_slot`], see there.
    tenants: Box<[TenantInFlight]>,
    /// Weights of the tenants that have requests in flight.
    weights: Cell<u64>,
}

/// Requests and bytes of a tenant in flight.
#[derive(Debug, Default)]
struct TenantInFlight {
    requests: Cell<usize>,
    body_bytes: Cell<usize>,
    /// The weight of its first request in flight.
    weight: Cell<u32>,
}

/// The limit that refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededLimit {
    /// `limits.in_flight_max` requests are in flight on this shard.
    Requests,
    /// `limits.buffered_bytes_max` bytes of bodies are held on this shard.
    BodyBytes,
}

/// An admitted request. Dropping it gives everything back.
#[derive(Debug)]
pub struct AdmittedRequest {
    limits: Rc<InFlight>,
    body_bytes: usize,
    tenant: TenantPart,
}

/// Bytes that outlive their request. Dropping it gives them back.
#[derive(Debug)]
pub struct HeldBytes {
    limits: Rc<InFlight>,
    bytes: usize,
}

impl InFlight {
    #[must_use]
    pub fn new(requests_max: usize, body_bytes_max: usize) -> Self {
        Self {
            tenants: (0..TENANT_SLOTS).map(|_| TenantInFlight::default()).collect(),
            weights: Cell::new(0),
            requests_max: Cell::new(requests_max),
            body_bytes_max: Cell::new(body_bytes_max),
            requests: Cell::new(0),
            body_bytes: Cell::new(0),
        }
    }

    /// Sets the limits for new requests. Admitted requests stay.
    pub fn set_limits(&self, requests_max: usize, body_bytes_max: usize) {
        self.requests_max.set(requests_max);
        self.body_bytes_max.set(body_bytes_max);
    }

    /// Admits a request of a tenant.
    ///
    /// # Errors
    /// [`ExceededLimit::Requests`] when the shard is full and the tenant has its share.
    pub fn admit(self: &Rc<Self>, tenant: TenantPart) -> Result<AdmittedRequest, ExceededLimit> {
        let most = self.requests_max.get();
        if self.requests.get() >= most && !self.has_share(tenant, most) {
            return Err(ExceededLimit::Requests);
        }
        self.requests.set(self.requests.get() + 1);
        if let Some(held) = self.held(tenant) {
            if held.requests.get() == 0 {
                held.weight.set(tenant.weight.max(1));
                self.weights.set(self.weights.get() + u64::from(held.weight.get()));
            }
            held.requests.set(held.requests.get() + 1);
        }
        Ok(AdmittedRequest { limits: Rc::clone(self), body_bytes: 0, tenant })
    }

    /// Would another request of the tenant stay within its share of `requests_max`? The first
    /// request always does. While no other tenant has requests here, the share is the whole limit.
    #[must_use]
    pub fn has_share(&self, tenant: TenantPart, requests_max: usize) -> bool {
        let Some(held) = self.held(tenant).filter(|_| !tenant.is_only) else { return false };
        let wide = |count: usize| u128::try_from(count).unwrap_or(u128::MAX);
        let next = wide(held.requests.get()) + 1;
        let weight = u128::from(held.weight.get());
        let share = wide(requests_max).saturating_mul(weight);
        next == 1 || next.saturating_mul(self.weights.get().into()) <= share
    }

    fn held(&self, tenant: TenantPart) -> Option<&TenantInFlight> {
        self.tenants.get(tenant_slot(tenant.tenant))
    }

    /// Counts bytes that stay in memory after the end of a request. Never refuses; with too many
    /// bytes, the next request is refused.
    pub fn hold(self: &Rc<Self>, bytes: usize) -> HeldBytes {
        // The offload thread may hold a body longer than its request. When these bytes were not
        // counted, 150 clients that left held 2.7 GB.
        self.body_bytes.set(self.body_bytes.get().saturating_add(bytes));
        HeldBytes { limits: Rc::clone(self), bytes }
    }

    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.get()
    }
}

impl AdmittedRequest {
    /// Could the request hold a body of `body_bytes` now? Counts nothing.
    #[must_use]
    pub fn has_room_for(&self, body_bytes: usize) -> bool {
        let wanted = self.wanted(body_bytes);
        let most = self.limits.body_bytes_max.get();
        // Reserved for tenants that hold little: unlike requests, bytes must never exceed the
        // limit.
        let is_reserved = !self.tenant.is_only && wanted > most - most / RESERVED_PART;
        let has_much = |held: &TenantInFlight| {
            self.of_tenant(held, body_bytes) > most / RESERVED_PART && held.requests.get() > 1
        };
        wanted <= most && !(is_reserved && self.limits.held(self.tenant).is_some_and(has_much))
    }

    /// Bytes that the tenant holds if this request's body has `body_bytes`.
    fn of_tenant(&self, held: &TenantInFlight, body_bytes: usize) -> usize {
        held.body_bytes.get().saturating_sub(self.body_bytes).saturating_add(body_bytes)
    }

    /// Bytes of all bodies if this request's body has `body_bytes`.
    fn wanted(&self, body_bytes: usize) -> usize {
        // A body grows while it is read: bytes that this request holds already are not counted
        // twice.
        self.limits.body_bytes.get().saturating_sub(self.body_bytes).saturating_add(body_bytes)
    }

    /// Sets the bytes that the request's body holds in memory.
    ///
    /// # Errors
    /// [`ExceededLimit::BodyBytes`] when the shard may not hold the additional bytes.
    pub fn hold_body(&mut self, body_bytes: usize) -> Result<(), ExceededLimit> {
        debug_assert!(self.limits.body_bytes.get() >= self.body_bytes, "own bytes not counted");
        if !self.has_room_for(body_bytes) {
            return Err(ExceededLimit::BodyBytes);
        }
        if let Some(held) = self.limits.held(self.tenant) {
            held.body_bytes.set(self.of_tenant(held, body_bytes));
        }
        self.limits.body_bytes.set(self.wanted(body_bytes));
        self.body_bytes = body_bytes;
        Ok(())
    }
}

impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        let requests = self.limits.requests.get();
        let bytes = self.limits.body_bytes.get();
        debug_assert!(requests > 0 && bytes >= self.body_bytes, "given back twice");
        self.limits.requests.set(requests.saturating_sub(1));
        self.limits.body_bytes.set(bytes.saturating_sub(self.body_bytes));
        let Some(held) = self.limits.held(self.tenant) else { return };
        let requests = held.requests.get();
        let bytes = held.body_bytes.get();
        debug_assert!(requests > 0 && bytes >= self.body_bytes, "a tenant gave back twice");
        held.requests.set(requests.saturating_sub(1));
        held.body_bytes.set(bytes.saturating_sub(self.body_bytes));
        if requests == 1 {
            let weights = self.limits.weights.get().saturating_sub(held.weight.get().into());
            self.limits.weights.set(weights);
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let bytes = self.limits.body_bytes.get();
        debug_assert!(bytes >= self.bytes, "given back twice");
        self.limits.body_bytes.set(bytes.saturating_sub(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLY: TenantPart = TenantPart::ONLY;

    #[test]
    fn both_limits_are_exact_and_come_back() {
        let limits = Rc::new(InFlight::new(2, 100));
        let mut first = limits.admit(ONLY).unwrap();
        let mut second = limits.admit(ONLY).unwrap();
        assert_eq!(limits.admit(ONLY).unwrap_err(), ExceededLimit::Requests);
        first.hold_body(60).unwrap();
        assert!(second.has_room_for(40) && !second.has_room_for(41) && first.has_room_for(100));
        assert_eq!(second.hold_body(41), Err(ExceededLimit::BodyBytes));
        second.hold_body(40).unwrap();
        first.hold_body(50).unwrap();
        let left = limits.hold(60);
        drop(first);
        assert_eq!(second.hold_body(41), Err(ExceededLimit::BodyBytes), "60 are still in memory");
        drop(left);
        second.hold_body(41).unwrap();
        drop(second);
        assert_eq!((limits.requests.get(), limits.body_bytes.get()), (0, 0));
    }

    /// Issue 35: a tenant that takes all places does not shut other tenants out.
    #[test]
    fn a_full_shard_admits_a_tenant_up_to_its_share() {
        let limits = Rc::new(InFlight::new(8, 800));
        let part = |tenant, weight| TenantPart { tenant, weight, is_only: false };
        let all = |tenant, weight| -> Vec<AdmittedRequest> {
            std::iter::from_fn(|| limits.admit(part(tenant, weight)).ok()).collect()
        };
        let greedy = all(1, 1);
        assert_eq!(greedy.len(), 8, "alone, it has all");
        let heavy = all(2, 3);
        assert_eq!(heavy.len(), 6, "six of eight by weight");
        let light = all(300, 1);
        assert_eq!((light.len(), limits.requests()), (1, 15));
        assert!(limits.admit(part(1, 1)).is_err());
        drop(greedy);
        drop(heavy);
        assert_eq!(all(1, 1).len(), 7, "up to the limit without looking at shares");
        drop(light);
        assert_eq!((limits.requests(), limits.weights.get()), (0, 0));
    }

    #[test]
    fn the_last_bytes_are_kept_for_tenants_that_hold_little() {
        let limits = Rc::new(InFlight::new(8, 800));
        let part = |tenant| TenantPart { tenant, weight: 1, is_only: false };
        let mut large = limits.admit(part(1)).unwrap();
        large.hold_body(790).unwrap();
        large.hold_body(500).unwrap();
        let mut second = limits.admit(part(1)).unwrap();
        second.hold_body(200).unwrap();
        assert_eq!(second.hold_body(201), Err(ExceededLimit::BodyBytes), "700 of 800");
        let mut small = limits.admit(part(2)).unwrap();
        small.hold_body(100).unwrap();
        assert_eq!(small.hold_body(101), Err(ExceededLimit::BodyBytes), "never more than all");
        drop((large, second, small));
        assert_eq!((limits.requests(), limits.body_bytes.get(), limits.weights.get()), (0, 0, 0));
        assert!(limits.tenants.iter().all(|held| held.body_bytes.get() == 0));
    }
}

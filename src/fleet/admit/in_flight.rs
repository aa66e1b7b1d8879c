//! Exact limits of one shard: requests in flight and bytes of request bodies held. Both are counted
//! by guards, so every path gives back what it took.

use std::cell::Cell;
use std::rc::Rc;

/// The limits and what is taken of them.
#[derive(Debug)]
pub struct InFlight {
    requests_max: Cell<usize>,
    body_bytes_max: Cell<usize>,
    requests: Cell<usize>,
    body_bytes: Cell<usize>,
}

/// Which limit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// `limits.in_flight_max` requests are in flight on this shard.
    Requests,
    /// `limits.buffered_bytes_max` bytes of bodies are held on this shard.
    BodyBytes,
}

/// One admitted request. Dropping it gives everything back.
#[derive(Debug)]
pub struct Admitted {
    limits: Rc<InFlight>,
    body_bytes: usize,
}

/// Bytes that outlive their request. Dropping it gives them back.
#[derive(Debug)]
pub struct HeldBytes {
    limits: Rc<InFlight>,
    bytes: usize,
}

impl InFlight {
    /// Nothing taken.
    #[must_use]
    pub const fn new(requests_max: usize, body_bytes_max: usize) -> Self {
        Self {
            requests_max: Cell::new(requests_max),
            body_bytes_max: Cell::new(body_bytes_max),
            requests: Cell::new(0),
            body_bytes: Cell::new(0),
        }
    }

    /// Admits so much from now on. What was admitted before stays.
    pub fn set_limits(&self, requests_max: usize, body_bytes_max: usize) {
        self.requests_max.set(requests_max);
        self.body_bytes_max.set(body_bytes_max);
    }

    /// Admits one request.
    ///
    /// # Errors
    /// [`Full::Requests`] when the shard is full.
    pub fn admit(self: &Rc<Self>) -> Result<Admitted, Full> {
        if self.requests.get() >= self.requests_max.get() {
            return Err(Full::Requests);
        }
        self.requests.set(self.requests.get() + 1);
        debug_assert!(self.requests.get() <= self.requests_max.get(), "admitted past the limit");
        Ok(Admitted { limits: Rc::clone(self), body_bytes: 0 })
    }

    /// Counts bytes that a request which ends leaves in memory. Nothing is refused here; the next
    /// request is, if they are too many.
    pub fn hold(self: &Rc<Self>, bytes: usize) -> HeldBytes {
        // The offload thread may hold a body past its request. Not counted, 150 clients that left
        // held 2.7 GB.
        self.body_bytes.set(self.body_bytes.get().saturating_add(bytes));
        HeldBytes { limits: Rc::clone(self), bytes }
    }

    /// Requests in flight.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.get()
    }
}

impl Admitted {
    /// The request's body now holds `body_bytes` in memory.
    ///
    /// # Errors
    /// [`Full::BodyBytes`] when the shard may not hold that much more.
    pub fn hold_body(&mut self, body_bytes: usize) -> Result<(), Full> {
        debug_assert!(self.limits.body_bytes.get() >= self.body_bytes, "own bytes not counted");
        // A body grows while it is read: what this request holds already is not asked for again.
        let others = self.limits.body_bytes.get().saturating_sub(self.body_bytes);
        let wanted = others.saturating_add(body_bytes);
        if wanted > self.limits.body_bytes_max.get() {
            return Err(Full::BodyBytes);
        }
        self.limits.body_bytes.set(wanted);
        self.body_bytes = body_bytes;
        Ok(())
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let (requests, bytes) = (self.limits.requests.get(), self.limits.body_bytes.get());
        debug_assert!(requests > 0 && bytes >= self.body_bytes, "given back twice");
        self.limits.requests.set(requests.saturating_sub(1));
        self.limits.body_bytes.set(bytes.saturating_sub(self.body_bytes));
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

    #[test]
    fn both_limits_are_exact_and_come_back() {
        let limits = Rc::new(InFlight::new(2, 100));
        let mut first = limits.admit().unwrap();
        let mut second = limits.admit().unwrap();
        assert_eq!(limits.admit().unwrap_err(), Full::Requests);
        first.hold_body(60).unwrap();
        assert_eq!(second.hold_body(41), Err(Full::BodyBytes));
        second.hold_body(40).unwrap();
        first.hold_body(50).unwrap();
        let left = limits.hold(60);
        drop(first);
        assert_eq!(second.hold_body(41), Err(Full::BodyBytes), "60 are still in memory");
        drop(left);
        second.hold_body(41).unwrap();
        drop(second);
        assert_eq!((limits.requests.get(), limits.body_bytes.get()), (0, 0));
    }
}

//! Two legs of a request: bodies, rooms, the prefill leg, aborts.

pub(crate) mod abort;
pub(crate) mod begin;
pub(crate) mod leg_bodies;

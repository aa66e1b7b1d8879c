//! Owner of the published fleet.

mod warming;

pub(super) use warming::Warming;

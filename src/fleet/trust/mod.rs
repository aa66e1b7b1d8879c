//! Trust in predicted cache hits, by model and shape of request: what engines report as cached
//! against what the router predicted. Shards count [`TrustSample`]s, the control plane judges the
//! counts ([`ShapeJudge`]) and publishes the verdicts with the model ([`ModelTrust`]). Pure: no
//! clock, no I/O, no atomics.

mod judge;
mod model_trust;
mod sample;
mod shape;
mod tally;

pub use judge::{ShapeJudge, TrustPhase};
pub use model_trust::{GuessUse, ModelTrust, ModelTrusts, SHARES, ShapeTrust};
pub use sample::TrustSample;
pub use shape::RequestShape;
pub use tally::{TRUST_GROUPS, TrustCount, TrustTally, trust_group};

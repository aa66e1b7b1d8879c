//! Sending to a chosen rank: the send plan, the retry budget, the errors of an exchange. Pure. Runs
//! on the shard's thread, called by `dataplane::request`.

mod busy;
mod engine_order;
mod plans;
mod relay_error;
mod retry;
mod send_plan;

pub use busy::{has_no_room, retry_after_s};
pub use engine_order::EngineOrder;
pub use plans::SendPlans;
pub use relay_error::RelayError;
pub use retry::RetryBudget;
pub use send_plan::{DpPlace, PlannedEngine, SendPlan, pin_in_body};

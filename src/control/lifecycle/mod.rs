//! Owner of the life of the process.

mod admin_rules;
mod drain;
mod handover;
mod reload;
mod stop;
mod systemd;
mod watchdog;

pub(super) use admin_rules::AdminRules;
pub use admin_rules::admin_tokens;
pub(super) use drain::Drain;
pub(super) use handover::Handover;
pub use handover::{HandoverOffer, HandoverSetup};
pub(super) use reload::{reload, take_image_key};
pub(super) use stop::{StopOrder, StopSignal};
pub(super) use systemd::Systemd;
pub(super) use watchdog::Watchdog;

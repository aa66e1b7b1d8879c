//! The subcommands: each converts flags into calls, and results into text.

pub(crate) mod check;
#[cfg(feature = "engine")]
pub(crate) mod demo;
pub(crate) mod doctor;
#[cfg(feature = "engine")]
pub(crate) mod engine;
#[cfg(feature = "engine")]
pub(crate) mod engine_role;
pub(crate) mod explain;
mod fleet_findings;
pub(crate) mod key;
pub(crate) mod machine;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod router_ports;
pub(crate) mod serve;
#[cfg(feature = "engine")]
pub(crate) mod shadow;
pub(crate) mod shell;
#[cfg(feature = "engine")]
pub(crate) mod simulate;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod upgrade;

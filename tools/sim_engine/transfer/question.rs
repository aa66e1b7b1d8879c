//! The question for KV and its answers on the wire.

use super::offers::{HandedKv, TransferResult};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A question on the wire.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct TransferQuestion {
    pub(super) key: String,
    /// Longest time until an answer, in milliseconds.
    pub(super) wait_ms: u64,
    #[serde(default)]
    pub(super) engine_id: Option<String>,
}

/// An answer on the wire.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireAnswer {
    Kv(HandedKv),
    Failed(String),
    NotYet,
}

impl From<TransferResult> for WireAnswer {
    fn from(taken: TransferResult) -> Self {
        match taken {
            TransferResult::Kv(kv) => Self::Kv(kv),
            TransferResult::Failed(why) => Self::Failed(why),
        }
    }
}

/// Route for questions of decode engines; no real engine has this route.
pub(super) const TAKE_PATH: &str = "/forebay/kv/take";
/// Longest time until a question is answered.
pub(super) const ASK_TIME_MAX: Duration = Duration::from_secs(5);

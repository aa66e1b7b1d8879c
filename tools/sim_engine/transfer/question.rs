//! The question for KV and its answers, as both sides of a transfer write them.

use super::offers::{HandedKv, TransferTaken};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A question, as it is written.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct TransferQuestion {
    pub(super) key: String,
    /// Longest time until an answer, in milliseconds.
    pub(super) wait_ms: u64,
    #[serde(default)]
    pub(super) engine_id: Option<String>,
}

/// The answer to a question, as it is written.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answered {
    Kv(HandedKv),
    Failed(String),
    NotYet,
}

impl From<TransferTaken> for Answered {
    fn from(taken: TransferTaken) -> Self {
        match taken {
            TransferTaken::Kv(kv) => Self::Kv(kv),
            TransferTaken::Failed(why) => Self::Failed(why),
        }
    }
}

/// Where decode engines ask; no engine has such a route.
pub(super) const TAKE_PATH: &str = "/forebay/kv/take";
/// Longest that one question stays unanswered.
pub(super) const ASK_TIME_MAX: Duration = Duration::from_secs(5);

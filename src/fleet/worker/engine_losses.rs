//! What an engine had before and has no more, by its own descriptions.

use std::sync::Arc;

/// Losses of a rank's engine, mostly after a start with other flags. A loss ends when the engine
/// has the part again, when the configuration has the part in place of the engine, or when the
/// worker leaves. A reload ends no loss: a reload for another key would hide the loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineLosses {
    /// Endpoint of KV events that the engine announced, and announces no more.
    pub kv_events: Option<Arc<str>>,
    /// Models that the engine listed, and lists no more.
    pub models: Vec<Arc<str>>,
}

impl EngineLosses {
    /// The lost KV events, and what an operator does about them.
    #[must_use]
    pub fn kv_events_fault(&self) -> Option<String> {
        let endpoint = self.kv_events.as_ref()?;
        Some(format!(
            "no KV events: the engine announced {endpoint} before, and announces none now; start \
             it with --kv-events-config as before, or set `kv_events`"
        ))
    }

    /// The first lost model, and what an operator does about the loss.
    #[must_use]
    pub fn models_fault(&self) -> Option<String> {
        let first = self.models.first()?;
        let more = match self.models.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("its engine serves {first}{more} no more; {}", Self::MODELS_HELP))
    }

    /// What an operator does about lost models.
    pub const MODELS_HELP: &str =
        "start it with the model as before, or set `models` of the worker to what it serves now";
}

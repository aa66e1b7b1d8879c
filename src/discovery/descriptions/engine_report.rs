//! What an engine reports of values that keys of its worker replace.

use forebay_fleet::worker::{Dialect, Role};
use std::sync::Arc;

/// What an engine reports of itself, before the keys of its worker replace any of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineReport {
    /// Engine by the owner of its models.
    pub dialect: Option<Dialect>,
    /// Number of ranks behind the URL.
    pub rank_count: Option<usize>,
    /// Names that the engine lists.
    pub models: Box<[Arc<str>]>,
    /// Disaggregation role of an SGLang engine.
    pub role: Option<Role>,
    /// Port of the registry of an SGLang engine.
    pub bootstrap_port: Option<u16>,
}

impl EngineReport {
    /// False for a name that is missing in the list of the engine. An empty list is no list.
    #[must_use]
    pub fn may_serve(&self, name: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|listed| **listed == *name)
    }
}

//! Result of looking at a worker.

use super::descriptions::description::Description;
use super::model_text::FoundText;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Result of looking at a worker.
#[derive(Debug)]
pub(crate) struct WorkerLook {
    /// Address that the name resolved to.
    pub(crate) address: SocketAddr,
    pub(crate) description: Description,
    /// Tokenizers and templates, by model.
    pub(crate) texts: BTreeMap<Arc<str>, FoundText>,
}

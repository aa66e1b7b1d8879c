//! What one look at a worker found.

use super::described::Description;
use super::model_text::FoundText;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// What one look at a worker found.
#[derive(Debug)]
pub(crate) struct WorkerLook {
    /// Address that its name stands for.
    pub(crate) address: SocketAddr,
    pub(crate) description: Description,
    /// Tokenizers and templates, by model.
    pub(crate) texts: BTreeMap<Arc<str>, FoundText>,
}

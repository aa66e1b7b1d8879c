//! Properties of a worker that decide whether a prefill and a decode worker can be a pair. Unknown
//! properties exclude no pair.

use crate::sections::worker::KvFlow;
use std::num::NonZeroU32;

/// Engine, connector, pages and part of the network of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairPlace<'a> {
    pub is_sglang: Option<bool>,
    pub kv_flow: Option<KvFlow>,
    pub topology: Option<&'a str>,
    /// Tokens of a page of SGLang's KV.
    pub page_tokens: Option<NonZeroU32>,
}

/// Why two workers cannot be a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairObstacle {
    /// SGLang, and another engine.
    Engines,
    /// Different labels of `topology`.
    Topologies,
    /// Different connectors that move the KV.
    Connectors,
    /// Pages of different sizes (SGLang).
    Pages,
}

impl PairPlace<'_> {
    /// The first obstacle between the two workers.
    #[must_use]
    pub fn obstacle(&self, other: &Self) -> Option<PairObstacle> {
        match () {
            () if differ(self.is_sglang, other.is_sglang) => Some(PairObstacle::Engines),
            () if differ(self.topology, other.topology) => Some(PairObstacle::Topologies),
            () if differ(self.kv_flow, other.kv_flow) => Some(PairObstacle::Connectors),
            () if differ(self.page_tokens, other.page_tokens) => Some(PairObstacle::Pages),
            () => None,
        }
    }
}

impl PairObstacle {
    /// The difference, in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Engines => "one is SGLang and the other is not",
            Self::Topologies => "they have different labels of `topology`",
            Self::Connectors => "they move KV by different connectors (`kv_flow`)",
            Self::Pages => "the pages of their KV have different sizes, and SGLang refuses the KV",
        }
    }

    /// Advice for the operator.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            Self::Engines => "start prefill and decode workers of the model with the same engine",
            Self::Topologies => {
                "give both one label of `topology` if KV reaches the other, or add a partner with \
                 the same label"
            }
            Self::Connectors => "start both engines with one connector, and correct `kv_flow`",
            Self::Pages => "start both with the same --page-size",
        }
    }
}

/// Are both known and different?
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

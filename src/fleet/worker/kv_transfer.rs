//! Prefill and decode on different ranks: who does what, and how the KV cache gets from one to the
//! other.

use std::sync::Arc;

/// Which legs of a disaggregated request a rank serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Whole requests.
    #[default]
    Both,
    /// Prefill legs only.
    Prefill,
    /// Decode legs; engines that can also compute a prompt themselves get whole requests too.
    Decode,
}

/// What a rank is asked to do for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leg {
    /// Everything.
    #[default]
    Whole,
    /// Compute the prompt and hand its KV over.
    Prefill,
    /// Take the KV and answer.
    Decode,
}

/// How the KV of a prefill rank reaches a decode rank. The fields are what the decode engine has to
/// be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvTransfer {
    /// SGLang: both legs at once, they meet in a room.
    Bootstrap(Bootstrap),
    /// vLLM `NixlConnector`: decode is sent what prefill has answered.
    TwoPhase,
    /// vLLM `NixlPushConnector`: both legs at once.
    Push(PushSource),
    /// vLLM `MooncakeConnector`: both legs at once, they meet under a transfer id.
    Mooncake(MooncakeSource),
}

impl KvTransfer {
    /// The same with strings of its own: handles of the copy write no count of the original's.
    #[must_use]
    pub fn copied(&self) -> Self {
        let copied = |text: &Arc<str>| Arc::from(&**text);
        match self {
            Self::Bootstrap(found) => {
                Self::Bootstrap(Bootstrap { host: copied(&found.host), ..found.clone() })
            }
            Self::TwoPhase => Self::TwoPhase,
            Self::Push(source) => {
                let engine_id = copied(&source.engine_id);
                let host = copied(&source.host);
                Self::Push(PushSource { engine_id, host, ..source.clone() })
            }
            Self::Mooncake(source) => Self::Mooncake(MooncakeSource {
                bootstrap_addr: copied(&source.bootstrap_addr),
                engine_id: copied(&source.engine_id),
            }),
        }
    }

    /// Prefill's answer comes when decode has the KV, so a decode rank that hangs makes both legs
    /// hang.
    #[must_use]
    pub const fn prefill_waits_for_decode(&self) -> bool {
        matches!(self, Self::Bootstrap(_))
    }
}

/// Registry of an SGLang prefill worker (SGLang 0.5.23, `disaggregation/common/conn.py`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Its host, as the decode workers reach it.
    pub host: Arc<str>,
    /// Its port; `None` lets decode use its own setting.
    pub port: Option<u16>,
    /// Data-parallel ranks of the prefill worker: a room belongs to the rank `room % dp_size`.
    pub dp_size: u32,
    /// The prefill worker goes by the room, and refuses one that belongs to another rank.
    pub follows_room: bool,
}

/// Where a `NixlPushConnector` sends from (vLLM 0.24 and newer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushSource {
    /// `engine_id` of its `--kv-transfer-config`; with several ranks that of this rank.
    pub engine_id: Arc<str>,
    /// Host of its side channel.
    pub host: Arc<str>,
    /// Port of this rank's side channel.
    pub port: u16,
    /// Tensor-parallel size.
    pub tp_size: u32,
    /// Pipeline-parallel size.
    pub pp_size: u32,
}

/// Where a `MooncakeConnector` is found (vLLM 0.13 and newer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MooncakeSource {
    /// URL of its registry.
    pub bootstrap_addr: Arc<str>,
    /// This rank's engine id, from the registry.
    pub engine_id: Arc<str>,
}

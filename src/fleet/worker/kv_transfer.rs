//! Disaggregation: the roles of ranks, and the transfer of KV from prefill to decode.

use std::sync::Arc;

/// Which legs of a disaggregated request a rank serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Whole requests, no single legs.
    #[default]
    Both,
    Prefill,
    /// Decode legs; engines that can also compute a prompt get whole requests too.
    Decode,
}

impl Role {
    /// Value of the key `role`, and the word for operators.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// The part of a request that a rank computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leg {
    /// Both prompt and answer.
    #[default]
    Whole,
    /// Compute the prompt and send its KV to the decode rank.
    Prefill,
    /// Receive the KV and answer.
    Decode,
}

/// How the KV of a prefill rank reaches a decode rank. The fields are parameters for the decode
/// engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvTransfer {
    /// SGLang: both legs at once; they meet in a bootstrap room.
    Bootstrap(Bootstrap),
    /// vLLM `NixlConnector`: decode gets the parameters of prefill's answer.
    TwoPhase,
    /// vLLM `NixlPushConnector`: both legs at once.
    Push(PushSource),
    /// vLLM `MooncakeConnector`: both legs at once; they meet under a transfer id.
    Mooncake(MooncakeSource),
}

impl KvTransfer {
    /// A copy with its own strings: its handles do not touch the reference counts of the original.
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

    /// Does prefill answer only when decode has the KV? Then a hanging decode rank makes both legs
    /// hang.
    #[must_use]
    pub const fn prefill_waits_for_decode(&self) -> bool {
        matches!(self, Self::Bootstrap(_))
    }
}

/// Registry of an SGLang prefill worker (SGLang 0.5.23, `disaggregation/common/conn.py`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Its host, as decode workers reach it.
    pub host: Arc<str>,
    /// Its port; without a port, decode uses its own setting.
    pub port: Option<u16>,
    /// Data-parallel ranks of the prefill worker: a room belongs to the rank `room % dp_size`.
    pub dp_size: u32,
    /// The prefill worker checks the room, and refuses a room of another rank.
    pub follows_room: bool,
}

/// Source of a transfer by `NixlPushConnector` (vLLM 0.24 and newer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushSource {
    /// `engine_id` of its `--kv-transfer-config`; of this rank, if there are several.
    pub engine_id: Arc<str>,
    /// Host of its side channel.
    pub host: Arc<str>,
    /// Port of this rank's side channel.
    pub port: u16,
    pub tp_size: u32,
    pub pp_size: u32,
}

/// Registration of a `MooncakeConnector` (vLLM 0.13 and newer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MooncakeSource {
    /// URL of its registry.
    pub bootstrap_addr: Arc<str>,
    /// This rank's engine id, from the registry.
    pub engine_id: Arc<str>,
}

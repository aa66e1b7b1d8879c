//! Settings of disaggregation: ports, time-outs, connectors. Plain data; defaults are the engines'.

use std::str::FromStr;
use std::time::Duration;

/// How vLLM engines hand KV over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvConnector {
    /// NixlConnector: the prefill's answer tells where its KV is, the decode pulls it.
    #[default]
    Nixl,
    /// NixlPushConnector: both at once, matched by request id.
    NixlPush,
    /// MooncakeConnector: both at once, matched by transfer id.
    Mooncake,
}

impl FromStr for KvConnector {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "nixl" => Ok(Self::Nixl),
            "nixl-push" => Ok(Self::NixlPush),
            "mooncake" => Ok(Self::Mooncake),
            _ => Err("expected nixl, nixl-push or mooncake".into()),
        }
    }
}

/// How an engine with a role meets its peers.
#[derive(Clone, Debug, Default)]
pub struct TransferSettings {
    /// Port of the registry of a prefill engine (SGLang's bootstrap server, vLLM's side channel);
    /// `None`: the port of its HTTP. Of an SGLang decode engine: the port where requests tell none.
    pub bootstrap_port: Option<u16>,
    /// Time after the start from which the registry knows the engine.
    pub register_after: Duration,
    /// What counts where the engine speaks SGLang's wire.
    pub sglang: SglangTransfer,
    /// What counts where the engine speaks vLLM's wire.
    pub vllm: VllmTransfer,
}

/// How long SGLang's halves wait.
#[derive(Clone, Debug)]
pub struct SglangTransfer {
    /// Prefill: longest wait for the decode's first sign.
    pub bootstrap_timeout: Duration,
    /// Longest wait of a decode for its KV, and of a computed prefill for its decode.
    pub waiting_timeout: Duration,
    /// Decode: longest time that a prefill engine may be silent. `None`: 15 s for an engine that
    /// was never reached, 10 s for an engine that was.
    pub prefill_lost_after: Option<Duration>,
    /// Time from a client's going to the end of its request. `None`: 2 s for streams, 4 s for
    /// others.
    pub abort_on_close_after: Option<Duration>,
}

/// How vLLM's halves hand KV over, and how long they wait.
#[derive(Clone, Debug)]
pub struct VllmTransfer {
    /// How KV is transferred.
    pub connector: KvConnector,
    /// Name of the engine among its peers; `None`: made up.
    pub engine_id: Option<String>,
    /// Pull: how long a prefill engine holds KV for its decode.
    pub kv_lease: Duration,
    /// Push and Mooncake: longest wait of either side for the other.
    pub push_timeout: Duration,
    /// Longest time that a prefill engine may be silent to a decode.
    pub kv_load_timeout: Duration,
}

impl Default for SglangTransfer {
    fn default() -> Self {
        Self {
            bootstrap_timeout: Duration::from_secs(300),
            waiting_timeout: Duration::from_secs(300),
            prefill_lost_after: None,
            abort_on_close_after: None,
        }
    }
}

impl Default for VllmTransfer {
    fn default() -> Self {
        Self {
            connector: KvConnector::Nixl,
            engine_id: None,
            kv_lease: Duration::from_secs(30),
            push_timeout: Duration::from_secs(480),
            kv_load_timeout: Duration::from_secs(1),
        }
    }
}

impl VllmTransfer {
    /// Name of a rank among the engines that hand KV over.
    #[must_use]
    pub fn engine_id_of(&self, dp_rank: u32, rank_count: u32) -> String {
        let id = self.engine_id.as_deref().unwrap_or_default();
        if rank_count > 1 { format!("{id}_dp{dp_rank}") } else { id.to_owned() }
    }
}

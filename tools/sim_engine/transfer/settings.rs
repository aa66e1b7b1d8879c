//! Settings of disaggregation: ports, timeouts, connectors. Plain data with the engines' defaults.

use std::str::FromStr;
use std::time::Duration;

/// Connector of vLLM engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvConnector {
    /// NixlConnector: the prefill's answer contains the address of its KV, and the decode pulls it.
    #[default]
    Nixl,
    /// NixlPushConnector: both legs at once, matched by request id.
    NixlPush,
    /// MooncakeConnector: both legs at once, matched by transfer id.
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

/// Connection of an engine with a role to its peers.
#[derive(Clone, Debug, Default)]
pub struct TransferSettings {
    /// Port of a prefill engine's registry (SGLang's bootstrap server, vLLM's side channel); `None`
    /// is the port of its HTTP. For an SGLang decode engine: port for requests without a port.
    pub bootstrap_port: Option<u16>,
    /// Time after the start at which the engine is registered.
    pub register_after: Duration,
    /// Settings for SGLang's wire only.
    pub sglang: SglangTransfer,
    /// Settings for vLLM's wire only.
    pub vllm: VllmTransfer,
}

/// Timeouts of SGLang's legs.
#[derive(Clone, Debug)]
pub struct SglangTransfer {
    /// Prefill: longest wait for the decode's first message.
    pub bootstrap_timeout: Duration,
    /// Longest wait of a decode for its KV, and of a computed prefill for its decode.
    pub waiting_timeout: Duration,
    /// Decode: longest silence of a prefill engine. `None` is 15 s for an engine that was never
    /// reached, and 10 s for an engine that was.
    pub prefill_lost_after: Option<Duration>,
    /// Time from the client's disconnect to the end of its request. `None` is 2 s for streams, and
    /// 4 s otherwise.
    pub abort_on_close_after: Option<Duration>,
}

/// KV transfer and timeouts of vLLM's legs.
#[derive(Clone, Debug)]
pub struct VllmTransfer {
    /// Connector of the KV transfer.
    pub connector: KvConnector,
    /// Id of the engine among its peers; `None` is a random id.
    pub engine_id: Option<String>,
    /// Pull: time for which a prefill engine holds KV for its decode.
    pub kv_lease: Duration,
    /// Push and Mooncake: longest wait of either leg for the other.
    pub push_timeout: Duration,
    /// Longest silence of a prefill engine towards a decode.
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
    /// Id of a rank among the engines of a KV transfer.
    #[must_use]
    pub fn engine_id_of(&self, dp_rank: u32, rank_count: u32) -> String {
        let id = self.engine_id.as_deref().unwrap_or_default();
        if rank_count > 1 { format!("{id}_dp{dp_rank}") } else { id.to_owned() }
    }
}

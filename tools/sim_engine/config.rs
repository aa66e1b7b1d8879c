//! Settings of a simulated engine. Plain data with its checks; any thread.

use super::batching::schedule::EnginePace;
use super::refusal::EngineRefusal;
use super::transfer::TransferSettings;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// HTTP interface of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineWire {
    /// The wire of vLLM 0.33.
    #[default]
    Vllm,
    /// The wire of SGLang 0.5.23.
    Sglang,
}

/// Part of the work that the engine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineRole {
    /// Prefill and decode of each request.
    #[default]
    Both,
    /// The prompt and the first token, for a decode engine that takes its KV.
    Prefill,
    /// The tokens after the first, with KV that a prefill engine computed.
    Decode,
}

impl EngineWire {
    /// The imitated release of the engine.
    pub(super) fn release(self) -> &'static str {
        match self {
            Self::Vllm => "0.33.0",
            Self::Sglang => "0.5.23",
        }
    }
}

impl FromStr for EngineWire {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "vllm" => Ok(Self::Vllm),
            "sglang" => Ok(Self::Sglang),
            _ => Err("expected vllm or sglang".into()),
        }
    }
}

impl FromStr for EngineRole {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "both" => Ok(Self::Both),
            "prefill" => Ok(Self::Prefill),
            "decode" => Ok(Self::Decode),
            _ => Err("expected both, prefill or decode".into()),
        }
    }
}

/// Settings of a simulated engine; the flags of `forebay engine`.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// HTTP address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Served model name; `None` answers to any name and lists [`DEFAULT_MODEL`].
    pub model: Option<String>,
    /// Folder with `tokenizer.json` and a chat template; `None` uses the built-in tokenizer.
    pub model_dir: Option<PathBuf>,
    /// The HTTP interface that the engine speaks.
    pub wire: EngineWire,
    /// Data-parallel ranks, each with its own cache and batch; at least 1.
    pub ranks: u32,
    /// `tcp://host:port` on which rank 0 publishes KV events, rank r on port + r (port 0: any free
    /// ports). A host `*` is every interface. `None` publishes nothing.
    pub kv_events: Option<String>,
    /// Same for the replay sockets. Needs `kv_events`.
    pub replay: Option<String>,
    /// Cache capacity of a rank, in blocks; at least 1.
    pub kv_blocks: u32,
    /// Tokens in a block; at least 1.
    pub block_size: u32,
    /// Computed blocks are cached for later prompts, and reported in KV events.
    pub prefix_caching: bool,
    /// Requests that run at the same time in a rank; at least 1. Further requests wait.
    pub concurrency: usize,
    /// Prompt tokens that a rank computes per second; more than 0.
    pub prefill_tokens_per_s: f64,
    /// Milliseconds between two tokens of a request.
    pub itl_ms: f64,
    /// Part of the work that the engine does.
    pub role: EngineRole,
    /// Most requests that wait in a rank beside the `concurrency` running requests; further
    /// requests are refused. `None` is without limit.
    pub queued_max: Option<usize>,
    /// Form of refusals of requests past `queued_max`.
    pub refusal: EngineRefusal,
    /// Answer `/server_info` with the concurrency, as vLLM does only in development mode.
    pub dev_mode: bool,
    /// Accept `x-override-` fields, as SGLang does only with
    /// `SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES`.
    pub header_overrides: bool,
    /// File for a line per request: `received_ns ended_ns outcome first_ns role meeting`.
    pub log_times: Option<PathBuf>,
    /// KV transfer with the engine of the other role.
    pub transfer: TransferSettings,
}

/// Model name when none is configured.
pub const DEFAULT_MODEL: &str = "sim";

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            model: None,
            model_dir: None,
            wire: EngineWire::Vllm,
            ranks: 1,
            kv_events: None,
            replay: None,
            kv_blocks: 4_096,
            block_size: 16,
            prefix_caching: true,
            concurrency: 64,
            prefill_tokens_per_s: 20_000.0,
            itl_ms: 10.0,
            role: EngineRole::Both,
            queued_max: None,
            refusal: EngineRefusal::Vllm,
            dev_mode: false,
            header_overrides: false,
            log_times: None,
            transfer: TransferSettings::default(),
        }
    }
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting out of range.
    #[error("{setting}: {problem}")]
    Setting {
        /// Name of the flag, without dashes.
        setting: &'static str,
        /// The problem with the setting.
        problem: String,
    },
    /// A file cannot be written.
    #[error("{path}: {problem}")]
    File {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        problem: String,
    },
    /// The tokenizer or the chat template cannot be used.
    #[error("{0}")]
    ModelText(String),
    /// A socket cannot be opened.
    #[error("cannot listen on {address}: {problem}")]
    Listen {
        /// Address as it was configured.
        address: String,
        /// Error of the operating system.
        problem: String,
    },
    /// A thread or a runtime cannot be started.
    #[error("cannot start the engine: {0}")]
    Start(#[from] std::io::Error),
}

impl EngineConfig {
    /// Name under which `/v1/models` lists the model.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }

    /// Longest prompt plus answer, in tokens: the cache capacity of a rank.
    #[must_use]
    pub fn model_tokens_max(&self) -> usize {
        (self.kv_blocks as usize).saturating_mul(self.block_size as usize).min(MODEL_TOKENS_MAX)
    }

    /// Speed of a rank.
    #[must_use]
    pub fn pace(&self) -> EnginePace {
        EnginePace {
            concurrency_max: self.concurrency,
            queued_max: self.queued_max,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            inter_token: Duration::try_from_secs_f64(self.itl_ms / 1_000.0).unwrap_or_default(),
        }
    }

    /// Checks every setting; the first problem is the error.
    pub fn check(&self) -> Result<(), EngineError> {
        let range = |setting, good: bool, problem: &str| {
            if good {
                Ok(())
            } else {
                Err(EngineError::Setting { setting, problem: problem.into() })
            }
        };
        range("ranks", (1..=RANKS_MAX).contains(&self.ranks), "must be 1 to 1024")?;
        range("kv-blocks", self.kv_blocks > 0, "must be at least 1")?;
        range("block-size", self.block_size > 0, "must be at least 1")?;
        range("concurrency", self.concurrency > 0, "must be at least 1")?;
        let rate = self.prefill_tokens_per_s;
        range("prefill-tokens-per-s", rate > 0.0 && rate.is_finite(), "must be more than 0")?;
        let itl = self.itl_ms;
        range("itl-ms", (0.0..=60_000.0).contains(&itl), "must be 0 to 60000")?;
        let orphan = self.replay.is_some() && self.kv_events.is_none();
        range("replay", !orphan, "needs kv-events")
    }
}

const MODEL_TOKENS_MAX: usize = 1 << 20;
const RANKS_MAX: u32 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_every_bound_is_checked() {
        let good = EngineConfig::default;
        assert!(good().check().is_ok());
        let bad = [
            EngineConfig { ranks: 0, ..good() },
            EngineConfig { kv_blocks: 0, ..good() },
            EngineConfig { block_size: 0, ..good() },
            EngineConfig { concurrency: 0, ..good() },
            EngineConfig { prefill_tokens_per_s: 0.0, ..good() },
            EngineConfig { prefill_tokens_per_s: f64::NAN, ..good() },
            EngineConfig { itl_ms: -1.0, ..good() },
            EngineConfig { replay: Some("tcp://*:1".into()), ..good() },
        ];
        for config in bad {
            assert!(matches!(config.check(), Err(EngineError::Setting { .. })), "{config:?}");
        }
        assert!(EngineConfig { wire: EngineWire::Sglang, ..good() }.check().is_ok());
        assert_eq!("sglang".parse(), Ok(EngineWire::Sglang));
        assert_eq!("decode".parse(), Ok(EngineRole::Decode));
        assert!("Both".parse::<EngineRole>().is_err() && "".parse::<EngineWire>().is_err());
    }
}

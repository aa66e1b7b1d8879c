//! Flags of `forebay engine` for disaggregation.

use clap::{Args, ValueEnum};
use forebay_config::parse_duration;
use forebay_sim_engine::{EngineRole, KvConnector, SglangTransfer, TransferSettings, VllmTransfer};
use std::time::Duration;

/// The flags; durations are written `250ms`, `10s`, `5m`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prefill and decode apart")]
pub(crate) struct RoleArgs {
    /// Part of the work that it does
    #[arg(long, value_enum, default_value = "both")]
    role: RoleArg,
    /// Port of a prefill engine's registry, where decode engines ask for KV; left out: the port of
    /// --listen
    #[arg(long, value_name = "PORT")]
    bootstrap_port: Option<u16>,
    /// The registry knows the engine only after that time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    register_after: Option<Duration>,
    #[command(flatten)]
    sglang: SglangRoleArgs,
    #[command(flatten)]
    vllm: VllmRoleArgs,
}

/// Flags for SGLang's wire.
#[derive(Debug, Args)]
struct SglangRoleArgs {
    /// SGLang prefill: longest wait for a sign of the decode [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    bootstrap_timeout: Option<Duration>,
    /// SGLang: longest wait of a decode for KV and of computed KV for its decode [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    waiting_timeout: Option<Duration>,
    /// SGLang decode: longest silence of a prefill engine [default: 15s if never reached, else 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    prefill_lost_after: Option<Duration>,
    /// SGLang: how long a request goes on without its client [default: streams 2s, others 4s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    abort_on_close_after: Option<Duration>,
}

/// Flags for vLLM's wire.
#[derive(Debug, Args)]
struct VllmRoleArgs {
    /// vLLM: how KV is transferred: nixl (pull), nixl-push or mooncake
    #[arg(long, value_name = "NAME", default_value = "nixl")]
    kv_connector: KvConnector,
    /// vLLM: name among the engines that hand KV over [default: made up]
    #[arg(long, value_name = "NAME")]
    engine_id: Option<String>,
    /// vLLM nixl: how long a prefill engine holds KV for its decode [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    kv_lease: Option<Duration>,
    /// vLLM nixl-push and mooncake: longest wait of either half for the other [default: 8m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    push_timeout: Option<Duration>,
    /// vLLM decode: longest silence of a prefill engine [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    kv_load_timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    Both,
    Prefill,
    Decode,
}

impl RoleArgs {
    pub(crate) fn role(&self) -> EngineRole {
        match self.role {
            RoleArg::Both => EngineRole::Both,
            RoleArg::Prefill => EngineRole::Prefill,
            RoleArg::Decode => EngineRole::Decode,
        }
    }

    pub(crate) fn transfer(self) -> TransferSettings {
        TransferSettings {
            bootstrap_port: self.bootstrap_port,
            register_after: self.register_after.unwrap_or_default(),
            sglang: self.sglang.transfer(),
            vllm: self.vllm.transfer(),
        }
    }
}

impl SglangRoleArgs {
    fn transfer(self) -> SglangTransfer {
        let default = SglangTransfer::default();
        SglangTransfer {
            bootstrap_timeout: self.bootstrap_timeout.unwrap_or(default.bootstrap_timeout),
            waiting_timeout: self.waiting_timeout.unwrap_or(default.waiting_timeout),
            prefill_lost_after: self.prefill_lost_after,
            abort_on_close_after: self.abort_on_close_after,
        }
    }
}

impl VllmRoleArgs {
    fn transfer(self) -> VllmTransfer {
        let default = VllmTransfer::default();
        VllmTransfer {
            connector: self.kv_connector,
            engine_id: self.engine_id,
            kv_lease: self.kv_lease.unwrap_or(default.kv_lease),
            push_timeout: self.push_timeout.unwrap_or(default.push_timeout),
            kv_load_timeout: self.kv_load_timeout.unwrap_or(default.kv_load_timeout),
        }
    }
}

//! `forebay engine`: a simulated engine, until a signal ends it.

use super::engine_role::RoleArgs;
use crate::cli::logging;
use crate::cli::process::{failed, signalled};
use clap::{Args, ValueEnum};
use forebay_config::LogConfig;
use forebay_sim_engine::{self, EngineConfig, EngineRefusal, EngineWire};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `forebay engine`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay engine --listen 127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557\n  \
    forebay engine --listen 127.0.0.1:8000 --ranks 2 --model tiny --itl-ms 5 --concurrency 16\n  \
    forebay engine --listen 127.0.0.1:8001 --wire sglang --role prefill\n  \
    forebay engine --listen 127.0.0.1:8002 --wire sglang --role decode\n\n\
    Without --model-dir it uses a small built-in tokenizer and answers to any model name.\n\
    Without the feature `tokenizers`, tokenizer.json has to be of GPT-2's kind.\n\
    Rank r publishes its KV events on the port of --kv-events plus r.")]
pub(crate) struct EngineArgs {
    /// Address of its HTTP interface
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    #[command(flatten)]
    model: EngineModelArgs,
    /// Whose HTTP interface it speaks
    #[arg(long, value_enum, default_value = "vllm")]
    wire: WireArg,
    /// Data-parallel ranks, each with its own cache
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: u32,
    #[command(flatten)]
    switches: EngineSwitchArgs,
    #[command(flatten)]
    cache: EngineCacheArgs,
    #[command(flatten)]
    load: EngineLoadArgs,
    #[command(flatten)]
    role: RoleArgs,
}

/// Flags of the model.
#[derive(Debug, Args)]
struct EngineModelArgs {
    /// Served model name; other names are refused
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Folder with tokenizer.json, tokenizer_config.json and chat_template.jinja
    #[arg(long, value_name = "DIR")]
    model_dir: Option<PathBuf>,
}

/// Flags of features that engines have off by default, and the log of times.
#[derive(Debug, Args)]
struct EngineSwitchArgs {
    /// Tell --concurrency in /server_info, as vLLM does in development mode
    #[arg(long)]
    dev_mode: bool,
    /// Keep no computed blocks for later prompts, as vLLM's --no-enable-prefix-caching
    #[arg(long)]
    no_prefix_caching: bool,
    /// Believe x-override- fields, as SGLang with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1
    #[arg(long)]
    header_overrides: bool,
    /// Write a line for each request there: received_ns ended_ns outcome first_ns role meeting
    #[arg(long, value_name = "FILE")]
    log_times: Option<PathBuf>,
}

/// Flags of the cache and its events.
#[derive(Debug, Args)]
struct EngineCacheArgs {
    /// Publish KV events there, for example tcp://127.0.0.1:5557
    #[arg(long, value_name = "ENDPOINT", help_heading = "KV events")]
    kv_events: Option<String>,
    /// Answer requests for old KV events there
    #[arg(long, value_name = "ENDPOINT", help_heading = "KV events")]
    replay: Option<String>,
    /// Cache of one rank, in blocks
    #[arg(long, value_name = "N", help_heading = "KV events")]
    kv_blocks: Option<u32>,
    /// Tokens in a block
    #[arg(long, value_name = "TOKENS", help_heading = "KV events")]
    block_size: Option<u32>,
}

/// Flags of speed, and of behavior under overload.
#[derive(Debug, Args)]
struct EngineLoadArgs {
    /// Requests that run at the same time in one rank
    #[arg(long, value_name = "N", help_heading = "Speed")]
    concurrency: Option<usize>,
    /// Prompt tokens that one rank computes per second
    #[arg(long, value_name = "N", help_heading = "Speed")]
    prefill_tokens_per_s: Option<f64>,
    /// Milliseconds from one token of a request to its next
    #[arg(long, value_name = "X", help_heading = "Speed")]
    itl_ms: Option<f64>,
    /// Refuse requests when this many wait for a place in a rank, as vLLM's --max-num-queued-reqs
    #[arg(long, value_name = "N", help_heading = "Overload")]
    queued_max: Option<usize>,
    /// How it refuses: vllm (503), sglang (503, streams an error event), 429 or 529
    #[arg(long, value_name = "HOW", default_value = "vllm", help_heading = "Overload")]
    refuse: EngineRefusal,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WireArg {
    Vllm,
    Sglang,
}

pub(crate) fn run(args: EngineArgs) -> ExitCode {
    let _logging = match logging::start(&LogConfig::default()) {
        Ok(logging) => logging,
        Err(reason) => return failed(reason),
    };
    let config = args.config();
    let model = config.model_name().to_owned();
    let ready = |address| tracing::info!(%address, model, "engine listens");
    match forebay_sim_engine::run(config, signalled(), ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

impl EngineArgs {
    pub(crate) fn config(self) -> EngineConfig {
        let Self { listen, model, wire, ranks, switches, cache, load, role } = self;
        let default = EngineConfig::default();
        EngineConfig {
            listen,
            model: model.model,
            model_dir: model.model_dir,
            wire: match wire {
                WireArg::Vllm => EngineWire::Vllm,
                WireArg::Sglang => EngineWire::Sglang,
            },
            ranks,
            kv_events: cache.kv_events,
            replay: cache.replay,
            kv_blocks: cache.kv_blocks.unwrap_or(default.kv_blocks),
            block_size: cache.block_size.unwrap_or(default.block_size),
            prefix_caching: !switches.no_prefix_caching,
            concurrency: load.concurrency.unwrap_or(default.concurrency),
            prefill_tokens_per_s: load.prefill_tokens_per_s.unwrap_or(default.prefill_tokens_per_s),
            itl_ms: load.itl_ms.unwrap_or(default.itl_ms),
            role: role.role(),
            queued_max: load.queued_max,
            refusal: load.refuse,
            dev_mode: switches.dev_mode,
            header_overrides: switches.header_overrides,
            log_times: switches.log_times,
            transfer: role.transfer(),
        }
    }
}

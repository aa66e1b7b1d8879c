//! The command line.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Back pressure measured over sockets: router processes in front of simulated engines. See
/// benches/overload/README.md.
#[derive(Clone, Debug, Parser)]
#[command(name = "overload")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) what: What,
    /// The program under test [default: $FOREBAY, else the one built with this]
    #[arg(long, global = true)]
    program: Option<PathBuf>,
    /// Ports count up from here
    #[arg(long, global = true, default_value_t = 27_400)]
    pub(crate) port: u16,
    /// Routers in front of the same engines; requests go to them in turn
    #[arg(
        long,
        global = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=8)
    )]
    pub(crate) replicas: u8,
    /// Further flag of the routers, as --router=--nats --router=nats://127.0.0.1:4222
    #[arg(long = "router", global = true, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) router_flags: Vec<String>,
    /// Passed by cargo
    #[arg(long, global = true, hide = true)]
    pub(crate) bench: bool,
}

/// What is measured.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum What {
    /// Ten times what the engines can do: limits, goodput, gaps, refusals
    Burst(BurstOptions),
    /// A queue in the router against the engine's own
    Modes(ModesOptions),
}

/// Of `burst`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BurstOptions {
    /// Engines
    #[arg(long, default_value_t = 8)]
    pub(crate) engines: usize,
    /// Requests that each may have at a time; kept by the router alone
    #[arg(long, default_value_t = 4)]
    pub(crate) places: usize,
    /// What is sent, as a multiple of what the engines can do
    #[arg(long, default_value_t = 10.0)]
    pub(crate) times: f64,
    /// Seconds of overload
    #[arg(long, default_value_t = 6)]
    pub(crate) seconds: u64,
    /// Tokens of an answer
    #[arg(long, default_value_t = 4)]
    pub(crate) tokens: u32,
    /// Milliseconds from token to token
    #[arg(long, default_value_t = 25.0)]
    pub(crate) itl_ms: f64,
    /// Answers as streams
    #[arg(long)]
    pub(crate) stream: bool,
    /// pool, endpoint, off; empty for the router's default
    #[arg(long, default_value = "")]
    pub(crate) queue_mode: String,
    /// Requests that may wait in all queues of a router together; empty for the router's default
    #[arg(long)]
    pub(crate) waiting: Option<usize>,
    /// kv, least_loaded, ...; empty for the router's default
    #[arg(long, default_value = "")]
    pub(crate) policy: String,
    /// Only report; a figure out of bounds is no failure
    #[arg(long)]
    pub(crate) report: bool,
}

/// Of `modes`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModesOptions {
    /// Engines
    #[arg(long, default_value_t = 4)]
    pub(crate) engines: usize,
    /// Requests that each runs at a time; the engine keeps it, and in the modes with a queue the
    /// router too
    #[arg(long, default_value_t = 4)]
    pub(crate) places: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Loads, as multiples of what the engines can do
    #[arg(long, value_delimiter = ',', default_value = "0.8,1.5")]
    pub(crate) times: Vec<f64>,
    /// Modes: pool, pool-fifo (the same, strictly first come, first served), endpoint, off (a limit
    /// and no queue), engine (no limit in the router: the engine's own queue takes all),
    /// engine-bounded (the same with a bound on it)
    #[arg(long, value_delimiter = ',', default_value = "engine,engine-bounded,off,endpoint,pool")]
    pub(crate) modes: Vec<String>,
    /// Tokens of an answer
    #[arg(long, value_delimiter = ',', default_value = "8,64")]
    pub(crate) tokens: Vec<u32>,
    /// Routers in front of the engines
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) routers: Vec<u8>,
    /// Beginnings that prompts share; 0: no two prompts are alike
    #[arg(long, default_value_t = 24)]
    pub(crate) beginnings: u64,
    /// Tokens of what prompts share, or of the whole prompt where they share nothing
    #[arg(long, default_value_t = 1_200, value_parser = clap::value_parser!(u64).range(1..=8_192))]
    pub(crate) prompt_tokens: u64,
    /// Requests that the router may have at a time in each engine, where it keeps a limit [default:
    /// --places]
    #[arg(long)]
    pub(crate) router_places: Option<usize>,
    /// Milliseconds to the first token within which an answer counts as good
    #[arg(long, default_value_t = 1_000)]
    pub(crate) target_ms: u64,
}

impl Options {
    /// The program under test.
    pub(crate) fn program(&self) -> PathBuf {
        let named = self.program.clone().or_else(|| std::env::var_os("FOREBAY").map(Into::into));
        named.unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into())
    }
}

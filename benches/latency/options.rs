//! The command line.

use clap::Parser;

/// Latency that the router adds, measured on loopback with open-loop load. See
/// benches/latency/README.md.
#[derive(Clone, Debug, Parser)]
#[command(name = "latency")]
pub(crate) struct Options {
    /// One short round, to see that it works: the figures mean little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also measure nginx, if it is installed
    #[arg(long)]
    pub(crate) nginx: bool,
    /// Only answers, without and with so many blocks per second of KV events from 64 ranks
    #[arg(
        long,
        value_name = "BLOCKS_PER_S",
        num_args = 0..=1,
        default_missing_value = "1000000",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    pub(crate) kv_blocks: Option<u64>,
    /// Requests per second
    #[arg(
        long,
        default_value_t = 2_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub(crate) rate: u64,
    /// Connections that the requests take in turn
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) connections: u32,
    /// Concurrent streams
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) streams: u32,
    /// Milliseconds between two events of a stream
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) event_interval_ms: u64,
    /// Times that everything is measured, in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Seconds of one measurement, without its warm-up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Passed by cargo
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Options {
    /// Time of one measurement.
    pub(crate) fn measured_ms(&self) -> u64 {
        if self.quick { 150 } else { self.seconds * 1_000 }
    }

    /// Time before it in which nothing counts.
    pub(crate) fn warm_ms(&self) -> u64 {
        if self.quick { 50 } else { 500 }
    }

    /// Rounds to run.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }
}

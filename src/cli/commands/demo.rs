//! `forebay demo`: shows the benefit of KV-aware routing in a single process.

use crate::cli::process::failed;
use crate::demo::{self, DemoConfig};
use clap::Args;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `forebay demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay demo\n  forebay demo --seconds 5 --json demo.json")]
pub(crate) struct DemoArgs {
    /// Time under load, of each act
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3_600)
    )]
    seconds: u64,
    /// Also write the figures there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &DemoArgs) -> ExitCode {
    let config = DemoConfig {
        duration: Duration::from_secs(args.seconds),
        json: args.json.clone(),
        terminal: io::stdout().is_terminal(),
    };
    match demo::run(&config, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

//! The command line: flags in, exit code out. Each subcommand has its own file; none holds logic of its own beyond
//! turning flags into the configuration of what it starts. Runs on the main thread, before and after everything
//! else.

mod check;
mod cores;
mod demo;
mod engine;
mod findings;
mod logging;
mod serve;
#[cfg(test)]
mod tests;

use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Everything that can be asked for.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "LLM request router: sends each request to the vLLM or SGLang rank that already holds its prefix",
    after_help = "Examples:\n  \
        forebay serve --worker http://127.0.0.1:8000 --worker http://127.0.0.1:8001\n  \
        forebay serve -c /etc/forebay.toml\n  \
        forebay check -c /etc/forebay.toml\n  \
        forebay demo\n\n\
        Exit codes: 0 done, 1 refused or failed (the reason is on standard error), 2 wrong usage."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Route requests to workers
    Serve(serve::ServeArgs),
    /// Run one simulated engine that speaks vLLM's wire: HTTP, SSE, KV events, metrics
    Engine(engine::EngineArgs),
    /// Compare KV-aware routing with round robin on simulated engines, in this process
    Demo(demo::DemoArgs),
    /// Check a configuration file and report everything that is wrong with it
    Check(check::CheckArgs),
}

/// Parses the command line, runs what it asks for and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    match CommandLine::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Engine(args) => engine::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Check(args) => check::run(&args),
    }
}

/// Says on standard error why nothing happened.
fn failed(reason: impl Display) -> ExitCode {
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "forebay: {reason}");
    ExitCode::FAILURE
}

//! The command line: flags in, exit code out. Each subcommand has its own file, which only converts
//! flags into the configuration of its task. Runs on the main thread, before and after everything
//! else.

mod check;
#[cfg(feature = "engine")]
mod demo;
mod doctor;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod engine_role;
mod explain;
mod findings;
mod key;
mod key_flags;
mod logging;
mod machine;
mod process;
#[cfg(feature = "engine")]
mod progress;
mod record;
mod replay;
mod router_stream;
mod serve;
mod shell;
#[cfg(feature = "engine")]
mod simulate;
#[cfg(test)]
#[cfg(feature = "engine")]
mod tests;
#[cfg(feature = "top")]
mod top;
mod upgrade;

use clap::{CommandFactory, Parser, Subcommand};
use process::finish;
use std::process::ExitCode;

/// All commands and flags.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "LLM request router: sends each request to the vLLM or SGLang rank that already holds its prefix",
    after_help = "Examples:\n  \
        forebay serve --worker http://127.0.0.1:8000 --worker http://127.0.0.1:8001\n  \
        forebay serve -c /etc/forebay.toml\n  \
        forebay check -c /etc/forebay.toml\n  \
        forebay doctor -c /etc/forebay.toml\n  \
        forebay key add --file keys.toml --tenant search\n  \
        forebay upgrade -c /etc/forebay.toml\n  \
        forebay demo\n  \
        forebay top --router http://127.0.0.1:9090\n  \
        forebay record --from tcp://gpu1:5557 --out gpu1.kvrec\n  \
        forebay record --router http://127.0.0.1:9090 --seconds 600 --out day.kvrec\n  \
        forebay explain --recording day.kvrec\n  \
        forebay replay gpu1.kvrec\n  \
        forebay simulate --trace conversation_trace.jsonl --policy kv,round_robin\n\n\
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
    #[cfg(feature = "engine")]
    /// Run one simulated engine that speaks vLLM's wire: HTTP, SSE, KV events, metrics
    Engine(Box<engine::EngineArgs>),
    #[cfg(feature = "engine")]
    /// Compare KV-aware routing with round robin on simulated engines, in this process
    Demo(demo::DemoArgs),
    /// Replace the running router by a new process, without a lost request
    Upgrade(upgrade::UpgradeArgs),
    #[cfg(feature = "top")]
    /// Show a router's fleet in the terminal
    Top(top::TopArgs),
    /// Write KV-event streams to a file, with their times
    Record(record::RecordArgs),
    /// Say where the hits of a recording went: what was possible, and what was reached
    Explain(explain::ExplainArgs),
    /// Put a recording into an index here, or publish it again for a router to follow
    Replay(replay::ReplayArgs),
    #[cfg(feature = "engine")]
    /// Compare policies on a trace, with simulated ranks in virtual time
    Simulate(simulate::SimulateArgs),
    /// Make, list and remove the API keys of clients
    Key(key::KeyArgs),
    /// Check a configuration file and report everything that is wrong with it
    Check(check::CheckArgs),
    /// Look for what keeps the router from running well: machine, workers, engines' flags
    Doctor(doctor::DoctorArgs),
    /// Print the completions of a shell
    Completions(shell::CompletionsArgs),
    /// Write the man pages
    Man(shell::ManArgs),
}

/// The definition of the command line, for the reference page.
#[must_use]
pub fn definition() -> clap::Command {
    CommandLine::command()
}

/// Parses the command line, runs the command and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    match CommandLine::parse().command {
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "engine")]
        Command::Engine(args) => engine::run(*args),
        #[cfg(feature = "engine")]
        Command::Demo(args) => demo::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => replay::run(&args),
        #[cfg(feature = "engine")]
        Command::Simulate(args) => simulate::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => finish(shell::completions(&args, definition())),
        Command::Man(args) => finish(shell::man(&args, definition())),
    }
}

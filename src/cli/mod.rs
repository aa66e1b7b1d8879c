//! The command line: flags in, exit code out. Each subcommand has its own file; none holds logic of
//! its own beyond turning flags into the configuration of what it starts. Runs on the main thread,
//! before and after everything else.

mod check;
#[cfg(feature = "engine")]
mod demo;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod engine_role;
mod findings;
mod key_flags;
mod logging;
mod record;
mod replay;
mod serve;
mod shell;
#[cfg(test)]
#[cfg(feature = "engine")]
mod tests;

use crate::base::limits::LOG_FLUSH_TIME_MAX;
use clap::{CommandFactory, Parser, Subcommand};
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
        forebay demo\n  \
        forebay record --from tcp://gpu1:5557 --out gpu1.kvrec\n  \
        forebay replay gpu1.kvrec\n\n\
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
    /// Write KV-event streams to a file, with their times
    Record(record::RecordArgs),
    /// Put a recording into an index here, or publish it again for a router to follow
    Replay(replay::ReplayArgs),
    /// Check a configuration file and report everything that is wrong with it
    Check(check::CheckArgs),
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

/// Parses the command line, runs what it asks for and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    match CommandLine::parse().command {
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "engine")]
        Command::Engine(args) => engine::run(*args),
        #[cfg(feature = "engine")]
        Command::Demo(args) => demo::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => finish(shell::completions(&args, definition())),
        Command::Man(args) => finish(shell::man(&args, definition())),
    }
}

/// The exit code of a command that has nothing to say when it is done.
fn finish(done: Result<(), String>) -> ExitCode {
    done.map_or_else(failed, |()| ExitCode::SUCCESS)
}

/// Runs a task on a runtime of this thread alone.
fn run_local<T>(task: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, task))
}

/// SIGTERM or SIGINT.
async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Says on standard error why nothing happened. Who does not read that must not keep the process
/// from ending.
fn failed(reason: impl Display) -> ExitCode {
    let text = format!("forebay: {reason}\n");
    let (done, written) = std::sync::mpsc::sync_channel(1);
    let writing = std::thread::Builder::new().spawn(move || {
        // Nobody is left to tell if standard error is closed.
        let _ = io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    });
    if writing.is_ok() {
        let _ = written.recv_timeout(LOG_FLUSH_TIME_MAX);
    }
    ExitCode::FAILURE
}

//! The command line: flags in, exit code out. Each subcommand has its own file, which only converts
//! flags into the configuration of its task. Runs on the main thread, before and after everything
//! else.

mod commands;
mod answerer;
mod findings;
mod key_flags;
mod log_line;
mod logging;
mod orders;
mod process;
#[cfg(feature = "engine")]
mod progress;
mod router_client;
mod router_stream;
#[cfg(test)]
#[cfg(feature = "engine")]
mod tests;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use forebay_config::{keys_for, nearest};
use forebay_handover::report_failed_start;
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
        forebay workers\n  \
        forebay drain gpu1 --wait\n  \
        forebay reload -c /etc/forebay.toml\n  \
        forebay demo\n  \
        forebay top --router http://127.0.0.1:9090\n  \
        forebay record --from tcp://gpu1:5557 --out gpu1.kvrec\n  \
        forebay record --router http://127.0.0.1:9090 --seconds 600 --out day.kvrec\n  \
        forebay explain --recording day.kvrec\n  \
        forebay replay gpu1.kvrec\n  \
        forebay simulate --trace conversation_trace.jsonl --policy kv,round_robin\n  \
        forebay shadow --worker http://gpu1:8000 --worker http://gpu2:8000\n\n\
        Exit codes: 0 done, 1 refused or failed (the reason is on standard error), 2 wrong usage."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Route requests to workers
    Serve(commands::serve::ServeArgs),
    #[cfg(feature = "engine")]
    /// Run one simulated engine that speaks vLLM's wire: HTTP, SSE, KV events, metrics
    Engine(Box<commands::engine::EngineArgs>),
    #[cfg(feature = "engine")]
    /// Compare KV-aware routing with round robin on simulated engines, in this process
    Demo(commands::demo::DemoArgs),
    /// Replace the running router by a new process, without a lost request
    Upgrade(commands::upgrade::UpgradeArgs),
    /// Read the configuration again, in the running router
    Reload(orders::reload::ReloadArgs),
    /// Show the workers of a running router
    Workers(orders::workers::WorkersArgs),
    /// Send a worker no new requests, so that its engine can stop
    Drain(orders::drain::DrainArgs),
    /// Send a drained worker requests again
    Undrain(orders::drain::UndrainArgs),
    /// Show, open and close rejection windows
    Window(orders::window::WindowArgs),
    #[cfg(feature = "top")]
    /// Show a router's fleet in the terminal
    Top(commands::top::TopArgs),
    /// Write KV-event streams to a file, with their times
    Record(commands::record::RecordArgs),
    /// Explain where a request would go, or where the hits of a recording went
    Explain(commands::explain::ExplainArgs),
    /// Put a recording into an index here, or publish it again for a router to follow
    Replay(commands::replay::ReplayArgs),
    #[cfg(feature = "engine")]
    /// Compare policies on a trace, with simulated ranks in virtual time
    Simulate(commands::simulate::SimulateArgs),
    #[cfg(feature = "engine")]
    /// Take mirrored requests, forward nothing, and show what policy kv would have given
    Shadow(Box<commands::shadow::ShadowArgs>),
    /// Make, list and remove the API keys of clients
    Key(commands::key::KeyArgs),
    /// Check a configuration file and report everything that is wrong with it
    Check(commands::check::CheckArgs),
    /// Look for what keeps the router from running well: machine, workers, engines' flags
    Doctor(commands::doctor::DoctorArgs),
    /// Print the completions of a shell
    Completions(commands::shell::CompletionsArgs),
    /// Write the man pages
    Man(commands::shell::ManArgs),
}

/// The definition of the command line, for the reference page.
#[must_use]
pub fn definition() -> clap::Command {
    CommandLine::command()
}

/// The command line. In an upgrade, a new version may refuse the flags of the running process.
fn parsed() -> CommandLine {
    CommandLine::try_parse().unwrap_or_else(|mut error| {
        suggest_flag(&mut error, &definition(), std::env::args().nth(1).as_deref());
        if error.use_stderr() {
            report_failed_start(&error.to_string());
        }
        error.exit()
    })
}

/// Replaces the library's suggestion for an unknown flag, which goes by letters, by the flag of the
/// command that shares most words with it. Keys of the file have the same rule.
fn suggest_flag(error: &mut clap::Error, definition: &clap::Command, command: Option<&str>) {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return };
    let command = command.and_then(|name| definition.find_subcommand(name));
    if error.kind() != ErrorKind::UnknownArgument || command.is_none() {
        return;
    }
    let is_serve = command.is_some_and(|command| command.get_name() == "serve");
    if let Some(advice) = advice_for_value(wrong).filter(|_| is_serve) {
        let advice = ContextValue::StyledStrs(vec![advice.into()]);
        error.insert(ContextKind::Suggested, advice);
        return;
    }
    let flags = command.into_iter().flat_map(clap::Command::get_arguments);
    let flags: Vec<&str> = flags.filter_map(clap::Arg::get_long).collect();
    let of = |word: &str| nearest(word, &flags, |flag| format!("--{flag}"));
    let word = wrong.trim_start_matches('-');
    // The name of a key in another program, before names that look alike.
    let words = keys_for(word).iter().copied().chain([word]);
    let near = words.map(of).find(|near| !near.is_empty());
    if let Some(near) = near {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(near));
    }
}

/// What to do about a value of `serve` without a flag: other routers take several values behind a
/// flag, as in `--worker-urls URL URL` and `--prefill URL PORT`.
fn advice_for_value(word: &str) -> Option<&'static str> {
    if word.starts_with('-') {
        return None;
    }
    let is_port = word == "none" || word.bytes().all(|byte| byte.is_ascii_digit());
    Some(if is_port {
        "leave out the bootstrap port behind --prefill URL: it is asked of SGLang; \
         `worker.bootstrap_port` of the file sets another"
    } else {
        "give each worker a flag of its own: --worker URL --worker URL"
    })
}

/// Parses the command line, runs the command and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    match parsed().command {
        Command::Serve(args) => commands::serve::run(&args),
        #[cfg(feature = "engine")]
        Command::Engine(args) => commands::engine::run(*args),
        #[cfg(feature = "engine")]
        Command::Demo(args) => commands::demo::run(&args),
        Command::Upgrade(args) => commands::upgrade::run(&args),
        Command::Reload(args) => orders::reload::run(&args),
        Command::Workers(args) => orders::workers::run(&args),
        Command::Drain(args) => orders::drain::drain(&args),
        Command::Undrain(args) => orders::drain::undrain(&args),
        Command::Window(args) => orders::window::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => commands::top::run(&args),
        Command::Record(args) => commands::record::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        #[cfg(feature = "engine")]
        Command::Simulate(args) => commands::simulate::run(&args),
        #[cfg(feature = "engine")]
        Command::Shadow(args) => commands::shadow::run(&args),
        Command::Key(args) => commands::key::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => finish(commands::shell::completions(&args, definition())),
        Command::Man(args) => finish(commands::shell::man(&args, definition())),
    }
}

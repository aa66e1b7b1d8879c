//! `forebay serve`: builds, checks and logs the configuration from file and flags, and starts the
//! router.

use super::machine::available_cores;
use crate::cli::findings;
use crate::cli::key_flags::KeyFlags;
use crate::cli::logging::{self, START};
use crate::cli::process::failed;
use crate::server;
use clap::Args;
use forebay_config::{
    Config, ConfigSource, Finding, Flags, LoadedConfig, LogConfig, Reloader, changed_json,
};
use forebay_control::ControlError;
use forebay_handover::report_failed_start;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `serve`. Each is also a key of the file under the same words; flags win.
#[derive(Debug, Default, Args)]
#[command(after_help = "Examples:\n  \
    forebay serve --worker http://127.0.0.1:8000 --worker http://127.0.0.1:8001\n  \
    forebay serve --listen 0.0.0.0:8080 --cores 0-3 --worker http://gpu1:8000 --model-dir /models/qwen3\n  \
    forebay serve --prefill http://gpu1:30000 --decode http://gpu2:30000 --decode http://gpu3:30000\n  \
    forebay serve -c /etc/forebay.toml --policy least_loaded\n\n\
    SIGTERM or SIGINT drains: no new connections, open streams finish within timeouts.drain.\n\
    The second signal cuts. SIGHUP reads the file again and takes over limits, queues, window, tenants and API keys.\n\
    Health, metrics and workers: GET /healthz /readyz /metrics /workers on --admin;\n\
    GET /debug/overlap?model=…&prompt=… there, or POST a request's body, to see which rank it would get and why.")]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML); flags win over it
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A worker; repeat for more. Everything else about it is discovered
    #[arg(long = "worker", value_name = "URL", help_heading = "Workers")]
    workers: Vec<String>,
    /// A worker that computes prompts for decode workers; repeat for more
    #[arg(long, value_name = "URL", help_heading = "Workers")]
    prefill: Vec<String>,
    /// A worker that takes over computed prompts and answers; repeat for more
    #[arg(long, value_name = "URL", help_heading = "Workers")]
    decode: Vec<String>,
    /// KV event endpoint where it cannot be discovered; one per worker, in the order
    /// --worker, --prefill, --decode; `-` for none
    #[arg(long, value_name = "ENDPOINT", help_heading = "Workers", allow_hyphen_values = true)]
    kv_events: Vec<String>,
    /// Replace the router that runs on this address: it drains. Without this flag or
    /// `forebay upgrade`, such a router is an error
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    keys: KeyFlags,
}

pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    let source = ConfigSource { file: args.config.clone(), flags: args.flags() };
    match source.load() {
        Ok(mut loaded) => {
            loaded.findings.extend(findings::of_environment());
            run_logged(loaded, source, args.take_over)
        }
        // The keys of the log are not known.
        Err(reason) => {
            report_failed_start(&reason);
            match logging::start(&LogConfig::default()) {
                Ok(_logging) => not_started(&reason, logging::takes_faults(&LogConfig::default())),
                Err(_) => failed(reason),
            }
        }
    }
}

/// Starts the log, and serves. From here on each fault is in the format of the log.
fn run_logged(loaded: LoadedConfig, source: ConfigSource, takes_over: bool) -> ExitCode {
    let mut log = loaded.config.log.clone();
    let level = logging::check_level(&log);
    if level.is_err() {
        log.level = LogConfig::default().level;
    }
    let logging = match logging::start(&log) {
        Ok(logging) => logging,
        Err(reason) => {
            report_failed_start(&reason);
            return failed(reason);
        }
    };
    let is_logged = logging::takes_faults(&log);
    let config = configure(loaded, is_logged);
    let config = config.and_then(|config| level.map(|()| config).map_err(EndFault::NotStarted));
    match config.and_then(|config| serve(config, source, takes_over)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(EndFault::Ended(ControlError::ShardStalled { .. })) => {
            // The core dump shows where the shard hangs.
            drop(logging);
            std::process::abort();
        }
        Err(EndFault::Ended(error)) if is_logged => {
            // The log has the reason already, unless its level keeps errors away.
            if !tracing::enabled!(tracing::Level::ERROR) {
                tracing::error!(target: START, error = error.to_string(), "ended");
            }
            ExitCode::FAILURE
        }
        Err(EndFault::Ended(error)) => failed(error),
        Err(EndFault::Findings(found)) => {
            report_failed_start(&findings::lines(&found));
            let summary = findings::summary(&found);
            not_started(&format!("{summary} in the configuration"), is_logged)
        }
        Err(EndFault::NotStarted(reason)) => {
            report_failed_start(&reason);
            not_started(&reason, is_logged)
        }
    }
}

/// Reports why the router has not started: in the log, or as a plain line.
fn not_started(reason: &str, is_logged: bool) -> ExitCode {
    if !is_logged {
        return failed(format!("not started: {reason}"));
    }
    tracing::error!(target: START, error = reason, "not started");
    ExitCode::FAILURE
}

/// Why the process ends with a failure.
enum EndFault {
    Findings(Vec<Finding>),
    NotStarted(String),
    Ended(ControlError),
}

/// The effective configuration, or the reason why it is unusable. Findings go to standard error.
fn configure(loaded: LoadedConfig, is_logged: bool) -> Result<Config, EndFault> {
    if is_logged {
        findings::log(&loaded.findings);
    } else {
        // A warning that cannot be printed does not prevent the start.
        let _ = findings::write(&loaded.findings, &mut io::stderr().lock());
    }
    loaded.usable().map_err(EndFault::Findings)
}

fn serve(mut config: Config, source: ConfigSource, takes_over: bool) -> Result<(), EndFault> {
    // Before `resolve_cores`: a reload compares the keys as written.
    let cores = available_cores();
    let reloader = Reloader::new(source, config.clone()).with_cores(cores.clone());
    config.resolve_cores(&cores);
    if let Some(core) = config.missing_cores(&cores).first() {
        return Err(EndFault::NotStarted(format!(
            "`cores`: core {core} is not available to this process; available cores: {cores:?}"
        )));
    }
    let shown = changed_json(&config);
    let handle = server::start_process(config, reloader, takes_over);
    let handle = handle.map_err(|error| EndFault::NotStarted(error.to_string()))?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %handle.listen,
        admin = %handle.admin_address,
        configuration = %shown,
        "started"
    );
    let ended = handle.join();
    if let Err(error) = &ended {
        tracing::error!(%error, "ended");
    } else {
        tracing::info!("ended");
    }
    ended.map_err(EndFault::Ended)
}

impl ServeArgs {
    pub(crate) fn flags(&self) -> Flags {
        Flags {
            keys: self.keys.0.clone(),
            workers: self.workers.clone(),
            prefill: self.prefill.clone(),
            decode: self.decode.clone(),
            kv_events: self.kv_events.clone(),
        }
    }
}

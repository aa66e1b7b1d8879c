//! `forebay serve`: builds, checks and logs the configuration from file and flags, and starts the
//! router.

use super::machine::available_cores;
use crate::cli::findings;
use crate::cli::key_flags::KeyFlags;
use crate::cli::logging;
use crate::cli::process::failed;
use crate::server;
use clap::Args;
use forebay_config::{Config, ConfigSource, Flags, Reloader, changed_json};
use forebay_control::ControlError;
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
    match configure(&source).and_then(|config| serve(config, source, args.take_over)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

/// The effective configuration, or the reason why it is unusable. Findings go to standard error.
fn configure(source: &ConfigSource) -> Result<Config, String> {
    let loaded = source.load()?;
    // A warning that cannot be printed does not prevent the start.
    let _ = findings::write(&loaded.findings, &mut io::stderr().lock());
    let summary = findings::summary(&loaded.findings);
    loaded.usable().map_err(|_| format!("not started: {summary} in the configuration"))
}

fn serve(mut config: Config, source: ConfigSource, takes_over: bool) -> Result<(), String> {
    let logging = logging::start(&config.log)?;
    // Before `resolve_cores`: a reload compares the keys as written.
    let reloader = Reloader::new(source, config.clone());
    let cores = available_cores();
    config.resolve_cores(&cores);
    if let Some(core) = config.cores.iter().find(|core| !cores.contains(core)) {
        return Err(format!(
            "`cores`: core {core} is not available to this process; available cores: {cores:?}"
        ));
    }
    let shown = changed_json(&config);
    let handle = server::start_process(config, reloader, takes_over);
    let handle = handle.map_err(|error| error.to_string())?;
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
    if matches!(ended, Err(ControlError::ShardStalled { .. })) {
        // The core dump shows where the shard hangs.
        drop(logging);
        std::process::abort();
    }
    ended.map_err(|error| error.to_string())
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

//! `forebay serve`: file and flags to one configuration, checked, logged, started.

use super::cores::CoreList;
use super::{failed, findings, logging};
use crate::config::{Config, ConfigSource, Flags, Reloader, to_json};
use crate::control::ControlError;
use crate::server;
use clap::Args;
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
    The second signal cuts. SIGHUP reads the file again and takes over limits, queues, window and tenants.\n\
    Health, metrics and workers: GET /healthz /readyz /metrics /workers on --admin;\n\
    GET /debug/overlap?model=…&prompt=… there, or POST a request's body, to see which rank it would get and why.")]
pub(super) struct ServeArgs {
    /// Configuration file (TOML); flags win over it
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Health, metrics and worker listing [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Share the port of --listen with another router, which gets its share of the connections
    #[arg(long)]
    listen_shared: bool,
    /// File with the token that calls to --admin need which change something
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Cores to run on, one shard each [default: all but the last]
    #[arg(long, value_name = "LIST")]
    cores: Option<CoreList>,
    /// A worker; repeat for more. Everything else about it is discovered
    #[arg(long = "worker", value_name = "URL", help_heading = "Workers")]
    workers: Vec<String>,
    /// A worker that computes prompts for decode workers; repeat for more
    #[arg(long, value_name = "URL", help_heading = "Workers")]
    prefill: Vec<String>,
    /// A worker that takes over computed prompts and answers; repeat for more
    #[arg(long, value_name = "URL", help_heading = "Workers")]
    decode: Vec<String>,
    /// What the workers speak: auto, vllm, sglang, openai [default: auto]
    #[arg(long, value_name = "KIND", help_heading = "Workers")]
    engine: Option<String>,
    /// Active health checks and discovery: on, off [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Workers")]
    health: Option<String>,
    /// tokenizer.json, tokenizer_config.json and chat_template.jinja of the model
    #[arg(long, value_name = "DIR", help_heading = "Workers")]
    model_dir: Option<PathBuf>,
    /// KV event endpoint where it cannot be discovered; one per worker, in the order
    /// --worker, --prefill, --decode; `-` for none
    #[arg(long, value_name = "ENDPOINT", help_heading = "Workers", allow_hyphen_values = true)]
    kv_events: Vec<String>,
    /// kv, least_loaded, power_of_two, round_robin, random [default: kv]
    #[arg(long, value_name = "POLICY", help_heading = "Routing")]
    policy: Option<String>,
    /// Most requests in flight on one rank; 0 for no limit [default: what the engine declares, else
    /// none]
    #[arg(long, value_name = "N", help_heading = "Back pressure")]
    rank_concurrency_max: Option<u32>,
    /// pool: one queue, the rank chosen last; endpoint: one per rank; off [default: pool]
    #[arg(long, value_name = "MODE", help_heading = "Back pressure")]
    queue_mode: Option<String>,
    /// Requests that one queue holds [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Back pressure")]
    queue_depth_max: Option<u32>,
    /// Longest wait in a queue [default: the client's own time-out, else timeouts.first_byte]
    #[arg(long, value_name = "DURATION", help_heading = "Back pressure")]
    queue_wait_max: Option<String>,
    /// How long all are refused once the queue is full; 0s for never [default: 1s]
    #[arg(long, value_name = "DURATION", help_heading = "Back pressure")]
    rejection_window: Option<String>,
    /// Where replicas of this router meet, for example nats://127.0.0.1:4222
    #[arg(long, value_name = "URL", help_heading = "Back pressure")]
    nats: Option<String>,
    /// Write logs as JSON, one object per line
    #[arg(long, help_heading = "Logging")]
    log_json: bool,
    /// Write one record per request
    #[arg(long, help_heading = "Logging")]
    log_requests: bool,
    /// error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL", help_heading = "Logging")]
    log_level: Option<String>,
}

pub(super) fn run(args: &ServeArgs) -> ExitCode {
    let source = ConfigSource { file: args.config.clone(), flags: args.flags() };
    match configure(&source).and_then(|config| serve(config, source)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

/// The effective configuration, or why there is none; findings go to standard error.
fn configure(source: &ConfigSource) -> Result<Config, String> {
    let loaded = source.load()?;
    // A warning that nobody reads keeps no router from starting.
    let _ = findings::write(&loaded.findings, &mut io::stderr().lock());
    let summary = findings::summary(&loaded.findings);
    loaded.usable().map_err(|_| format!("not started: {summary} in the configuration"))
}

fn serve(mut config: Config, source: ConfigSource) -> Result<(), String> {
    let logging = logging::start(&config.log)?;
    let reloader = Reloader::new(source, config.clone());
    let cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    config.resolve_cores(&cores);
    if let Some(core) = config.cores.iter().find(|core| !cores.contains(core)) {
        return Err(format!(
            "`cores`: core {core} is not available to this process; these are: {cores:?}"
        ));
    }
    let shown = to_json(&config);
    let handle =
        server::start_reloadable(config, true, reloader).map_err(|error| error.to_string())?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %handle.listen,
        admin = %handle.admin,
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
        // A core dump shows where the shard hangs.
        drop(logging);
        std::process::abort();
    }
    ended.map_err(|error| error.to_string())
}

impl ServeArgs {
    pub(super) fn flags(&self) -> Flags {
        Flags {
            listen: self.listen.clone(),
            admin: self.admin.clone(),
            listen_shared: self.listen_shared,
            admin_token_file: self.admin_token_file.clone(),
            cores: self.cores.clone().map_or_else(Vec::new, |cores| cores.0),
            workers: self.workers.clone(),
            prefill: self.prefill.clone(),
            decode: self.decode.clone(),
            engine: self.engine.clone(),
            health: self.health.clone(),
            model_dir: self.model_dir.clone(),
            kv_events: self.kv_events.clone(),
            policy: self.policy.clone(),
            rank_concurrency_max: self.rank_concurrency_max,
            queue_mode: self.queue_mode.clone(),
            queue_depth_max: self.queue_depth_max,
            queue_wait_max: self.queue_wait_max.clone(),
            rejection_window: self.rejection_window.clone(),
            nats: self.nats.clone(),
            log_json: self.log_json,
            log_requests: self.log_requests,
            log_level: self.log_level.clone(),
        }
    }
}

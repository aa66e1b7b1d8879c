//! `forebay shadow`: mirrored requests in, the figures of policy `kv` out.

use super::doctor::{examine_all, resolve_all};
use crate::cli::findings;
use crate::cli::logging;
use crate::cli::process::{finish, run_local, signalled};
use crate::server;
use clap::Args;
use forebay_config::{Config, ConfigSource, Flags, parse_duration};
use forebay_discovery::WorkerClients;
use forebay_shadow::{self as shadow, GivenFigures, ShadowSettings, ShadowTimes, ShadowWorker};
use forebay_simulate::Rule;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Pause before engines that were not reached are queried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Flags of `forebay shadow`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay shadow --worker http://gpu1:8000 --worker http://gpu2:8000\n  \
    forebay shadow -c /etc/forebay.toml --listen 0.0.0.0:8090 --json shadow.json\n\n\
    Mirror requests to --listen with nginx, Envoy or Traefik, and open the page on --admin.\n\
    Each mirrored request is answered with 204. Engines get GET requests only: /v1/models,\n\
    /metrics and the like. Simulated ranks have the speed and the KV capacity of the engines.\n\
    Ends at SIGINT or SIGTERM.")]
pub(crate) struct ShadowArgs {
    /// Configuration of the router that would come: workers, limits, queues
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// An engine behind the present balancer; repeat for more
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
    /// Address that takes mirrored requests
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Address of the page, and of GET /shadow
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9091")]
    admin: SocketAddr,
    /// Write the figures there every ten seconds
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    model: ShadowModelArgs,
}

/// Flags of the simulated fleets.
#[derive(Debug, Args)]
struct ShadowModelArgs {
    /// Rule of the present balancer, for the control; names as of `forebay simulate`
    #[arg(long, value_name = "P", default_value = "round_robin")]
    present: String,
    /// Least time in which the engines' counters are read before the simulation starts
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    calibrate: Duration,
    /// Longest time in which the simulated caches fill; it ends when each cache was filled once
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    warm_up: Duration,
    /// KV tokens of a rank [default: as the engine reports]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_tokens: Option<u32>,
    /// Prompt tokens that a rank computes per second [default: by the engines' counters]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prefill_tokens_per_s: Option<u32>,
}

pub(crate) fn run(args: &ShadowArgs) -> ExitCode {
    finish(shadowed(args))
}

fn shadowed(args: &ShadowArgs) -> Result<(), String> {
    let rule: Rule = args.model.present.parse().map_err(|what| format!("--present: {what}"))?;
    let flags = Flags { workers: args.workers.clone(), ..Flags::default() };
    let mut loaded = ConfigSource { file: args.config.clone(), flags }.load()?;
    let of_file = loaded.read_workers();
    // A warning that cannot be printed does not prevent the start.
    let _ = findings::write(&loaded.findings, &mut io::stderr().lock());
    let summary = findings::summary(&loaded.findings);
    let mut config =
        loaded.usable().map_err(|_| format!("not started: {summary} in the configuration"))?;
    findings::add_workers(&mut config.workers, of_file);
    let _logging = logging::start(&config.log)?;
    run_local(async {
        // From here on the signal of the shadow itself ends the command, with the last figures.
        let begun = tokio::select! {
            begun = begin(config) => begun?,
            () = signalled() => return Ok(()),
        };
        follow(args, begun, rule).await
    })?
}

/// The configuration with all workers, and the workers' descriptions.
async fn begin(mut config: Config) -> Result<(Arc<Config>, Vec<ShadowWorker>), String> {
    for (name, found) in resolve_all(&config.discovery).await {
        let found =
            found.map_err(|fault| format!("{name}: {}. help: {}", fault.what, fault.help))?;
        findings::add_workers(&mut config.workers, found.workers);
    }
    let config = Arc::new(config);
    let workers = described(&config).await?;
    Ok((config, workers))
}

async fn follow(
    args: &ShadowArgs,
    begun: (Arc<Config>, Vec<ShadowWorker>),
    rule: Rule,
) -> Result<(), String> {
    let (config, workers) = begun;
    let connectors = config.connectors().map_err(|error| error.to_string())?;
    let clients = WorkerClients::new(&config, &connectors).map_err(|error| error.to_string())?;
    let model = &args.model;
    let settings = ShadowSettings {
        listen: args.listen,
        admin: args.admin,
        json: args.json.clone(),
        config: (*config).clone(),
        present: (model.present.clone(), rule),
        times: ShadowTimes { calibrate: model.calibrate, warm_up: model.warm_up },
        given: GivenFigures {
            kv_tokens: model.kv_tokens,
            prefill_tokens_per_s: model.prefill_tokens_per_s,
        },
        seed: server::random().map_err(|error| format!("no randomness: {error}"))?,
    };
    let ready = |listen, admin| info!(%listen, %admin, "shadow takes mirrored requests");
    let last = |figures: String| {
        // A closed standard output leaves the log and the file.
        let _ = io::stdout().write_all(figures.as_bytes());
    };
    shadow::run(settings, workers, clients, ready, signalled(), last).await
}

/// All workers with their descriptions. Waits for workers that are not reached.
async fn described(config: &Arc<Config>) -> Result<Vec<ShadowWorker>, String> {
    let mut is_logged = false;
    loop {
        let examined = examine_all(config, false).await?;
        let mut found = Vec::new();
        for (worker, (url, examined)) in config.workers.iter().zip(&examined) {
            match examined {
                Ok(examined) => {
                    let worker = config.with_defaults(worker).config;
                    found.extend(ShadowWorker::of(&worker, &examined.description));
                }
                Err(why) if !is_logged => warn!(worker = url, why, "not reached: trying again"),
                Err(_) => {}
            }
        }
        if found.len() == config.workers.len() {
            return Ok(found);
        }
        is_logged = true;
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

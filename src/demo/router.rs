//! The router under test: starts it with a policy in front of engines, waits until it is ready,
//! stops it. No other file of the demo uses the router.

use super::error::DemoError;
use super::policy::DemoPolicy;
use crate::server::{self, ServerHandle};
use forebay_config::{Config, Policy, WorkerConfig};
use forebay_sim_engine::{EngineHandle, KvEndpoints};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// A running router in this process.
#[derive(Debug)]
pub(super) struct DemoRouter {
    server: ServerHandle,
}

/// Client of a router's admin API.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    http: reqwest::Client,
    url: String,
}

#[derive(Debug, Deserialize)]
struct WorkersPage {
    workers: Vec<WorkerRow>,
}

#[derive(Debug, Deserialize)]
struct WorkerRow {
    url: String,
    state: String,
}

impl DemoRouter {
    /// Starts a router; returns once it is ready. `admin` is the page address of an earlier router,
    /// so that a browser with the page reconnects.
    pub(super) async fn start(
        policy: DemoPolicy,
        engines: &[EngineHandle],
        model_dir: &Path,
        admin: Option<SocketAddr>,
    ) -> Result<Self, DemoError> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            listen: any_port,
            admin: admin.unwrap_or(any_port).into(),
            workers: engines.iter().map(worker).collect(),
            model_dir: Some(model_dir.to_owned()),
            policy: match policy {
                DemoPolicy::Kv => Policy::Kv,
                DemoPolicy::RoundRobin => Policy::RoundRobin,
            },
            ..Config::default()
        };
        config.timeouts.drain = DRAIN;
        config.health.interval = HEALTH_PERIOD;
        config.retry.after_send = true;
        let server = match server::start(config.clone(), false) {
            // Another process has taken the port of the page.
            Err(_) if admin.is_some() => {
                config.admin = any_port.into();
                server::start(config, false)
            }
            started => started,
        };
        let server = server.map_err(|error| DemoError::Router(error.to_string()))?;
        let router = Self { server };
        router.wait_until_ready().await?;
        Ok(router)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.server.listen)
    }

    /// Address of the router's page.
    pub(super) fn admin(&self) -> SocketAddr {
        self.server.admin
    }

    /// A client of the router's admin API.
    pub(super) fn admin_client(&self) -> Result<AdminClient, DemoError> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build()?;
        Ok(AdminClient { http, url: format!("http://{}", self.server.admin) })
    }

    /// Drains the router and waits for its end.
    pub(super) fn stop(self) {
        self.server.stop();
        if let Err(error) = self.server.join() {
            tracing::error!(%error, "the router ended");
        }
    }

    async fn wait_until_ready(&self) -> Result<(), DemoError> {
        let AdminClient { http, url } = self.admin_client()?;
        for _ in 0..READY_TRIES_MAX {
            let answer = http.get(format!("{url}/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(READY_PERIOD).await;
        }
        Err(DemoError::Router("it found no usable engine".into()))
    }
}

impl AdminClient {
    /// Waits until the router reports a worker down.
    pub(super) async fn until_down(&self, worker_url: &str) {
        loop {
            let page = self.page("/workers").await.unwrap_or_default();
            let page = serde_json::from_slice::<WorkersPage>(&page);
            let is_down = |row: &WorkerRow| row.url == worker_url && row.state == "down";
            if page.is_ok_and(|page| page.workers.iter().any(is_down)) {
                return;
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Requests that were resent to a second worker.
    pub(super) async fn retries(&self) -> Option<u64> {
        let page = self.page("/metrics").await?;
        let page = String::from_utf8_lossy(&page);
        let value = |line: &str| line.strip_prefix("forebay_retries_total ")?.parse().ok();
        page.lines().find_map(value)
    }

    async fn page(&self, path: &str) -> Option<Vec<u8>> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.ok()?;
        Some(answer.error_for_status().ok()?.bytes().await.ok()?.to_vec())
    }
}

fn worker(engine: &EngineHandle) -> WorkerConfig {
    let sources = engine.kv_sources();
    let replay = |source: &KvEndpoints| source.replay_endpoint.clone();
    WorkerConfig {
        url: engine.url(),
        kv_events: sources.iter().map(|source| source.endpoint.clone()).collect(),
        replay: sources.iter().filter_map(replay).collect(),
        ..WorkerConfig::default()
    }
}

/// A killed engine is down after three checks.
const HEALTH_PERIOD: Duration = Duration::from_millis(250);
const LOOK_PERIOD: Duration = Duration::from_millis(10);
const DRAIN: Duration = Duration::from_secs(1);
const READY_PERIOD: Duration = Duration::from_millis(20);
const READY_TRIES_MAX: usize = 500;

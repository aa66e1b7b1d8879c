//! The router under test as the demo sees it: start it with a policy in front of some engines, wait
//! until it is ready, stop it. The only file of the demo that knows the router.

use super::error::DemoError;
use super::policy::DemoPolicy;
use crate::server::{self, ServerHandle};
use forebay_config::{Config, Policy, WorkerConfig};
use forebay_sim_engine::{EngineHandle, KvEndpoints};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// A running router in this process.
#[derive(Debug)]
pub(super) struct DemoRouter {
    server: ServerHandle,
}

impl DemoRouter {
    /// Starts a router; returns once it is ready to serve.
    pub(super) async fn start(
        policy: DemoPolicy,
        engines: &[EngineHandle],
        model_dir: &Path,
    ) -> Result<Self, DemoError> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            listen: any_port,
            admin: any_port.into(),
            workers: engines.iter().map(worker).collect(),
            model_dir: Some(model_dir.to_owned()),
            policy: match policy {
                DemoPolicy::Kv => Policy::Kv,
                DemoPolicy::RoundRobin => Policy::RoundRobin,
            },
            ..Config::default()
        };
        config.timeouts.drain = DRAIN;
        let server = server::start(config, false);
        let server = server.map_err(|error| DemoError::Router(error.to_string()))?;
        let router = Self { server };
        router.wait_until_ready().await?;
        Ok(router)
    }

    /// Where requests go in.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.server.listen)
    }

    /// Drains the router and waits for its end.
    pub(super) fn stop(self) {
        self.server.stop();
        if let Err(error) = self.server.join() {
            tracing::error!(%error, "the router ended");
        }
    }

    async fn wait_until_ready(&self) -> Result<(), DemoError> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build()?;
        let url = format!("http://{}/readyz", self.server.admin);
        for _ in 0..READY_TRIES_MAX {
            let answer = http.get(&url).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(READY_PERIOD).await;
        }
        Err(DemoError::Router("it found no usable engine".into()))
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

const DRAIN: Duration = Duration::from_secs(1);
const READY_PERIOD: Duration = Duration::from_millis(20);
const READY_TRIES_MAX: usize = 500;

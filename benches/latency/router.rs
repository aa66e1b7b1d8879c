//! The router under test, in this process: one shard on a core of its own.

use crate::kv_source::{BLOCK_TOKENS, KvSource};
use crate::load::{Target, ask_once};
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::server::{ServerHandle, start};
use forebay_bench_rig::{CpuMeter, Rig, threads_named};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Longer than any run: pooled connections stay for all rounds, as they do under steady load.
const POOLED: Duration = Duration::from_secs(3_600);
const READY_TRIES_MAX: u32 = 200;
const READY_PAUSE: Duration = Duration::from_millis(50);

const APPLIED_METRIC: &str = "forebay_kv_ops_applied_total";

/// A running router. Field order is drop order.
pub(crate) struct Router {
    pub(crate) target: Target,
    handle: ServerHandle,
    kv: Option<KvSource>,
}

/// The tokenizer and the template of the load's model.
pub(crate) fn model_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer"))
}

impl Router {
    /// Spreads by turns: bodies are scanned, not rendered.
    pub(crate) fn round_robin(rig: &mut Rig, core: usize, probe: &[u8]) -> io::Result<Self> {
        let worker = WorkerConfig { url: worker_url(rig)?, ..WorkerConfig::default() };
        let config = Config { policy: Policy::RoundRobin, ..config(core, worker) };
        Self::start(rig, "forebay round_robin", config, None, probe)
    }

    /// Renders every prompt and finds all of it in the index. The worker has a further rank for
    /// each endpoint of `others`.
    pub(crate) fn kv(
        rig: &mut Rig,
        core: usize,
        bodies: &[Vec<u8>],
        requests: &[Rc<[u8]>],
        others: &[String],
    ) -> io::Result<Self> {
        let kv = KvSource::start(&model_dir(), bodies)?;
        let endpoints = [std::slice::from_ref(&kv.endpoint), others].concat();
        let worker = WorkerConfig {
            url: worker_url(rig)?,
            kv_events: endpoints,
            model_dir: Some(model_dir()),
            models: vec!["bench".to_owned()],
            block_size_tokens: Some(BLOCK_TOKENS),
            ..WorkerConfig::default()
        };
        let config = Config { policy: Policy::Kv, ..config(core, worker) };
        let probe = requests.first().map(|request| &**request).unwrap_or_default();
        let router = Self::start(rig, "forebay kv", config, Some(kv), probe)?;
        if let Some(kv) = &router.kv {
            kv.wait_until_known(rig, router.target.address, requests)?;
        }
        Ok(router)
    }

    /// Operations of KV events that the shard has applied so far.
    pub(crate) fn ops_applied(&self) -> io::Result<f64> {
        let mut admin = TcpStream::connect(self.handle.admin)?;
        admin
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        admin.read_to_string(&mut text)?;
        let value = text.lines().find_map(|line| line.strip_prefix(APPLIED_METRIC));
        let value = value.and_then(|rest| rest.rsplit(' ').next()?.parse().ok());
        value.ok_or_else(|| io::Error::other("no such metric"))
    }

    fn start(
        rig: &mut Rig,
        name: &str,
        config: Config,
        kv: Option<KvSource>,
        probe: &[u8],
    ) -> io::Result<Self> {
        let before = threads_named("shard-0");
        let handle = start(config, false).map_err(io::Error::other)?;
        let address = handle.listen;
        let mut tries = 0;
        while ask_once(rig, address, probe)?.0 != 200 {
            tries += 1;
            if tries > READY_TRIES_MAX {
                return Err(io::Error::other(format!("{name} does not forward")));
            }
            rig.pause(READY_PAUSE)?;
        }
        let mut shard = threads_named("shard-0");
        shard.retain(|thread| !before.contains(thread));
        let cpu = Some(CpuMeter::of_threads(&shard));
        let target = Target { name: name.to_owned(), address, cpu };
        Ok(Self { target, handle, kv })
    }
}

fn config(core: usize, worker: WorkerConfig) -> Config {
    let mut config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        admin: ([127, 0, 0, 1], 0).into(),
        cores: vec![core],
        workers: vec![worker],
        ..Config::default()
    };
    config.health.enabled = false;
    config.timeouts.upstream_idle = POOLED;
    config
}

fn worker_url(rig: &Rig) -> io::Result<String> {
    Ok(format!("http://{}", rig.stub.address()?))
}

//! Checks the keys of disaggregation: roles that do not fit.

use super::check::Check;
use crate::keys::setting::Word;
use crate::sections::flow::{DisaggregationConfig, Fallback};
use crate::sections::schema::Config;
use crate::sections::worker::{KvFlow, WorkerConfig, WorkerRole};
use crate::values::engine::EngineKind;
use crate::values::host::check_bracketed_host;
use crate::values::pair_place::{PairObstacle, PairPlace};
use crate::values::url::WorkerUrl;
use std::net::IpAddr;

/// No context is longer.
const PROMPT_TOKENS_SENSIBLE: u32 = 1 << 24;

impl Check<'_> {
    pub(crate) fn disaggregation(&mut self, split: &DisaggregationConfig) {
        if split.uncached_tokens_min > PROMPT_TOKENS_SENSIBLE {
            let key = "disaggregation.uncached_tokens_min";
            let what = format!("`{key}` is {}: no prompt is longer", split.uncached_tokens_min);
            self.warning(key, what, "no request would be split");
        }
    }

    pub(crate) fn roles(&mut self, config: &Config) {
        for (position, worker) in config.workers.iter().enumerate() {
            let engine = config.engine_of(worker);
            let path = format!("worker.{position}");
            self.role(&path, worker, engine);
            self.bootstrap(&path, worker);
            self.kv_flow(&path, worker, engine);
            self.engine_id(&path, worker, config);
        }
        self.partners(config);
        self.flows(config);
        self.legs_apart(config);
        self.loopback(config);
    }

    /// By default decode workers receive the prefill worker's own address. A loopback address then
    /// fails on any other host.
    fn loopback(&mut self, config: &Config) {
        if config.workers.iter().all(is_loopback) {
            return;
        }
        for (position, worker) in config.workers.iter().enumerate() {
            let kv_transfer = &worker.kv_transfer;
            let engine = config.engine_of(worker);
            let key = match (engine, kv_transfer.kv_flow) {
                (EngineKind::Vllm, None | Some(KvFlow::TwoPhase)) | (EngineKind::Openai, _) => {
                    continue;
                }
                (_, Some(KvFlow::Push)) => ("kv_host", kv_transfer.kv_host.is_some()),
                _ => ("bootstrap_host", kv_transfer.bootstrap_host.is_some()),
            };
            let (key, is_given) = key;
            if worker.role == WorkerRole::Prefill && is_loopback(worker) && !is_given {
                let what = format!(
                    "decode workers on other machines are told to find this one at {}",
                    worker.url
                );
                let help = format!("set `{key}` to where they reach it");
                self.warning(&format!("worker.{position}.url"), what, help);
            }
        }
    }

    fn role(&mut self, path: &str, worker: &WorkerConfig, engine: EngineKind) {
        if worker.role == WorkerRole::Prefill && engine == EngineKind::Openai {
            let what =
                "`role` is \"prefill\", but an `openai` worker cannot hand its KV cache over";
            let help = "vLLM and SGLang can; say which it is with `engine`";
            self.error(&format!("{path}.role"), what, help);
        }
        let printable = |text: &str| text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if worker.topology.as_deref().is_some_and(|label| label.is_empty() || !printable(label)) {
            let what = "`topology` is a label: visible ASCII without spaces";
            self.error(&format!("{path}.topology"), what, "leave it out where the network is one");
        }
        let own_ports = worker.port_per_rank == Some(true);
        if own_ports && worker.ranks.is_none() && engine != EngineKind::Sglang {
            let what = "`port_per_rank` is true, but nothing says how many ranks there are";
            self.warning(&format!("{path}.port_per_rank"), what, "give `ranks` too");
        }
    }

    fn bootstrap(&mut self, path: &str, worker: &WorkerConfig) {
        self.host(path, "bootstrap_host", worker.kv_transfer.bootstrap_host.as_deref());
    }

    fn host(&mut self, path: &str, key: &str, host: Option<&str>) {
        let Some(host) = host else { return };
        if let Err(fault) = check_bracketed_host(host) {
            let help = fault.help("give a name or an address, without a port");
            self.error(&format!("{path}.{key}"), format!("`{key}` {host:?}: {fault}"), help);
        }
    }

    fn kv_flow(&mut self, path: &str, worker: &WorkerConfig, engine: EngineKind) {
        let kv_transfer = &worker.kv_transfer;
        let key = format!("{path}.kv_flow");
        if kv_transfer.kv_flow.is_some()
            && matches!(engine, EngineKind::Sglang | EngineKind::Openai)
        {
            let what = format!("`kv_flow` is for vLLM, and this worker is {:?}", engine.word());
            let help = "SGLang's prefill and decode workers find each other \
                by `bootstrap_host` and `bootstrap_port`";
            self.error(&key, what, help);
        }
        self.host(path, "kv_host", kv_transfer.kv_host.as_deref());
        self.kv_port(path, worker);
    }

    /// Each rank's port is the previous rank's port plus 1.
    fn kv_port(&mut self, path: &str, worker: &WorkerConfig) {
        let Some(first) = worker.kv_transfer.kv_port else { return };
        let last = u32::from(first).saturating_add(worker.ranks.unwrap_or(1).saturating_sub(1));
        if last > u32::from(u16::MAX) {
            let what = format!("the last rank's port, counted up from `kv_port`, would be {last}");
            self.error(&format!("{path}.kv_port"), what, "ports end at 65535");
        }
    }

    fn engine_id(&mut self, path: &str, worker: &WorkerConfig, config: &Config) {
        let kv_transfer = &worker.kv_transfer;
        let key = format!("{path}.kv_flow");
        let lacks = |flow| {
            worker.role.may_prefill()
                && kv_transfer.kv_flow == Some(flow)
                && kv_transfer.kv_engine_id.is_none()
        };
        let help = "set `engine_id` in the worker's --kv-transfer-config, and the same here";
        let is_push = lacks(KvFlow::Push);
        if is_push && config.flow.disaggregation.fallback == Fallback::TwoPhase {
            let what = "`kv_engine_id` is missing: the worker is used in two phases";
            self.warning(&key, what, help);
        } else if is_push || (lacks(KvFlow::Mooncake) && !config.health.enabled) {
            let what = "`kv_engine_id` is missing: decode workers have to be told it \
                before prefill answers";
            self.error(&key, what, help);
        }
        let printable = |text: &str| text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if kv_transfer.kv_engine_id.as_deref().is_some_and(|id| id.is_empty() || !printable(id)) {
            let what = "`kv_engine_id` has to be visible ASCII without spaces";
            self.error(&format!("{path}.kv_engine_id"), what, "");
        }
    }

    /// Warns of a decode worker whose KV flow no prefill worker uses.
    fn flows(&mut self, config: &Config) {
        let is_vllm = |worker: &&WorkerConfig| config.engine_of(worker) != EngineKind::Sglang;
        let of = |role| config.workers.iter().filter(is_vllm).filter(move |w| w.role == role);
        let flow = |worker: &WorkerConfig| worker.kv_transfer.kv_flow.unwrap_or_default();
        let handed: Vec<KvFlow> = of(WorkerRole::Prefill).map(flow).collect();
        for (position, worker) in config.workers.iter().enumerate() {
            let Some(taken) = worker.kv_transfer.kv_flow else { continue };
            let is_decode = worker.role == WorkerRole::Decode && is_vllm(&worker);
            if is_decode && !handed.is_empty() && !handed.contains(&taken) {
                let what = format!(
                    "this decode worker takes KV by {:?}, and no prefill worker hands it over so",
                    taken.word()
                );
                let help = "workers with different `kv_flow` are no pair: \
                    start both engines with the same connector";
                self.warning(&format!("worker.{position}.kv_flow"), what, help);
            }
        }
    }

    /// Warns of the first worker of a leg that can be a pair with no worker of the other leg: by
    /// their engines or labels. [`Self::flows`] compares the connectors.
    fn legs_apart(&mut self, config: &Config) {
        let is_undecided = |worker: &WorkerConfig| {
            let may_have_role = config.engine_of(worker) != EngineKind::Vllm;
            worker.role == WorkerRole::Auto && may_have_role
        };
        if config.workers.iter().any(is_undecided) {
            return;
        }
        let is_sglang = |worker: &WorkerConfig| match config.engine_of(worker) {
            EngineKind::Auto => None,
            engine => Some(engine == EngineKind::Sglang),
        };
        for (position, worker) in config.workers.iter().enumerate() {
            let (other, leg) = match worker.role {
                WorkerRole::Prefill => (WorkerRole::Decode, "decode"),
                WorkerRole::Decode if is_sglang(worker) == Some(true) => {
                    (WorkerRole::Prefill, "prefill")
                }
                _ => continue,
            };
            let own = pair_place(worker, is_sglang(worker));
            let obstacle =
                |partner: &WorkerConfig| own.obstacle(&pair_place(partner, is_sglang(partner)));
            let others = config.workers.iter().filter(|partner| partner.role == other);
            let obstacles: Vec<Option<PairObstacle>> = others.map(obstacle).collect();
            let have_all = obstacles.iter().all(Option::is_some);
            let Some(first) = obstacles.first().copied().flatten().filter(|_| have_all) else {
                continue;
            };
            let what =
                format!("this worker can be no pair with any {leg} worker: {}", first.text());
            self.warning(&format!("worker.{position}.role"), what, first.help());
            return;
        }
    }

    /// Warns of a leg without workers for the other leg.
    fn partners(&mut self, config: &Config) {
        let first = |role| config.workers.iter().position(|worker| worker.role == role);
        let may_be = |role: WorkerRole| {
            let undecided = |worker: &WorkerConfig| {
                let engine = config.engine_of(worker);
                worker.role == WorkerRole::Auto
                    && matches!(engine, EngineKind::Auto | EngineKind::Sglang)
            };
            config.workers.iter().any(|worker| worker.role == role || undecided(worker))
        };
        if let Some(position) = first(WorkerRole::Prefill).filter(|_| !may_be(WorkerRole::Decode)) {
            let what = "there are prefill workers but no decode worker: \
                nothing takes over what they compute";
            let help = "give role = \"decode\" to the workers that answer";
            self.warning(&format!("worker.{position}.role"), what, help);
        }
        let is_sglang = |worker: &&WorkerConfig| {
            worker.role == WorkerRole::Decode && config.engine_of(worker) == EngineKind::Sglang
        };
        let lonely = config.workers.iter().find(is_sglang).is_some();
        if let Some(position) =
            first(WorkerRole::Decode).filter(|_| lonely && !may_be(WorkerRole::Prefill))
        {
            let what = "there are SGLang decode workers but no prefill worker: \
                they refuse requests that come alone";
            let help = "give role = \"prefill\" to the workers that compute prompts";
            self.warning(&format!("worker.{position}.role"), what, help);
        }
    }
}

impl WorkerRole {
    pub(crate) const fn may_prefill(self) -> bool {
        matches!(self, Self::Auto | Self::Prefill)
    }
}

fn pair_place(worker: &WorkerConfig, is_sglang: Option<bool>) -> PairPlace<'_> {
    PairPlace { is_sglang, kv_flow: None, topology: worker.topology.as_deref(), page_tokens: None }
}

fn is_loopback(worker: &WorkerConfig) -> bool {
    let host = WorkerUrl::parse(&worker.url).map(|url| url.host).unwrap_or_default();
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

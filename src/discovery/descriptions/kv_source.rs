//! Source of a prefill worker's KV: from its configuration, its responses, and its registry.
//! Sans-IO: texts in, [`KvTransfer`]s out; [`super::registry`] sends the queries.

use forebay_config::{
    KvFlow, KvTransferConfig, MOONCAKE_PORT, SIDE_CHANNEL_PORT, WorkerConfig, WorkerRole, WorkerUrl,
};
use forebay_fleet::worker::{Bootstrap, Dialect, KvTransfer, MooncakeSource, PushSource, Role};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Default of SGLang's `--disaggregation-bootstrap-port` (SGLang 0.5.23, `server_args.py`).
const SGLANG_REGISTRY_PORT: u16 = 8_998;
/// No deployment has more ranks.
const DP_SIZE_MAX: u64 = 1 << 16;
/// Longest engine id that a registry may name, in bytes.
const ENGINE_ID_BYTES_MAX: usize = 256;

const NO_PORTS: &str = "a `kv_port` that leaves a port to each of its ranks";

/// Source of a prefill worker's KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Known from the start: a transfer for each rank, by position.
    Known(Vec<KvTransfer>),
    /// A push source that lacks this setting, as text for the log.
    PushUnknown(&'static str),
    /// Known once all ranks are registered.
    Registry(Registry),
}

/// A registry of prefill ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// Engine of the registry.
    pub kind: RegistryKind,
    /// Base URL for queries, `http://host:port`.
    pub base: String,
    /// Address sent to decode workers: host, without brackets, and port.
    pub told: (Arc<str>, u16),
    /// The host sent to decode workers was configured, so it must resolve.
    pub host_is_configured: bool,
    /// Numbers of the worker's ranks within its deployment, by position.
    pub ranks: Vec<u32>,
}

/// Engine of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryKind {
    /// The bootstrap server of SGLang.
    Sglang,
    /// The registry of vLLM's Mooncake connector.
    Mooncake,
}

/// Usable ranks of a prefill worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// A transfer for each rank, by position; `None` if the rank takes no traffic.
    pub ranks: Vec<Option<KvTransfer>>,
    /// Missing condition, as text for the log.
    pub lacks: Option<Arc<str>>,
}

/// A server's disaggregation role and registry port, as it reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SglangPlace {
    pub(crate) role: Option<Role>,
    /// Port of its registry. Omitted by decode servers, which report only a default for their
    /// prefill servers.
    pub(crate) bootstrap_port: Option<u16>,
}

/// Legs that the worker serves. The configuration takes precedence over SGLang's report.
pub(crate) fn role(config: &WorkerConfig, reported: Option<Role>) -> Role {
    match config.role {
        WorkerRole::Auto => reported.unwrap_or_default(),
        WorkerRole::Both => Role::Both,
        WorkerRole::Prefill => Role::Prefill,
        WorkerRole::Decode => Role::Decode,
    }
}

/// Source of the KV of a prefill worker with these ranks. `asks`: registries may be queried.
pub(crate) fn source(
    config: &WorkerConfig,
    dialect: Dialect,
    url: &WorkerUrl,
    place: &SglangPlace,
    ranks: &[u32],
    asks: bool,
) -> KvSource {
    let kv_transfer = &config.kv_transfer;
    match (dialect, kv_transfer.kv_flow.unwrap_or_default()) {
        (Dialect::Sglang, _) => {
            let port = kv_transfer.bootstrap_port.or(place.bootstrap_port);
            if asks {
                let port = port.unwrap_or(SGLANG_REGISTRY_PORT);
                let told = (host(kv_transfer.bootstrap_host.as_ref(), url), port);
                // The registry listens on the worker's host; decode workers may use another
                // network.
                let base = base(&url.host, port);
                return KvSource::Registry(registry(
                    RegistryKind::Sglang,
                    base,
                    told,
                    config,
                    ranks,
                ));
            }
            let dp_size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
            let host = host(kv_transfer.bootstrap_host.as_ref(), url);
            let bootstrap = Bootstrap { host, port, dp_size, follows_room: true };
            KvSource::Known(vec![KvTransfer::Bootstrap(bootstrap); ranks.len()])
        }
        (_, KvFlow::TwoPhase) => KvSource::Known(vec![KvTransfer::TwoPhase; ranks.len()]),
        (_, KvFlow::Push) => match &kv_transfer.kv_engine_id {
            Some(id) => push(kv_transfer, id, url, ranks)
                .map_or(KvSource::PushUnknown(NO_PORTS), KvSource::Known),
            None => KvSource::PushUnknown("`kv_engine_id` of its push connector"),
        },
        (_, KvFlow::Mooncake) => {
            let port = kv_transfer.bootstrap_port.unwrap_or(MOONCAKE_PORT);
            let told = (host(kv_transfer.bootstrap_host.as_ref(), url), port);
            let base = base(&told.0, port);
            match (&kv_transfer.kv_engine_id, asks) {
                (Some(id), false) => KvSource::Known(
                    ranks.iter().map(|rank| mooncake(&base, &id_of(id, *rank, ranks))).collect(),
                ),
                _ => {
                    KvSource::Registry(registry(RegistryKind::Mooncake, base, told, config, ranks))
                }
            }
        }
    }
}

fn registry(
    kind: RegistryKind,
    base: String,
    told: (Arc<str>, u16),
    config: &WorkerConfig,
    ranks: &[u32],
) -> Registry {
    let host_is_configured = config.kv_transfer.bootstrap_host.is_some();
    Registry { kind, base, told, host_is_configured, ranks: ranks.to_vec() }
}

/// The configured host, else the worker's host; IPv6 without brackets.
fn host(configured: Option<&String>, url: &WorkerUrl) -> Arc<str> {
    let host = configured.map_or(&*url.host, |host| &**host);
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).into()
}

fn base(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("http://[{host}]:{port}")
    } else {
        format!("http://{host}:{port}")
    }
}

/// vLLM with several ranks adds the rank to the engine id and to the port (vLLM 0.32,
/// `v1/engine/core.py` and `nixl/base_scheduler.py`). `None`: the port range would overflow.
fn push(
    kv_transfer: &KvTransferConfig,
    id: &str,
    url: &WorkerUrl,
    ranks: &[u32],
) -> Option<Vec<KvTransfer>> {
    let first = kv_transfer.kv_port.unwrap_or(SIDE_CHANNEL_PORT);
    let of_rank = |rank: &u32| {
        let offset = if ranks.len() > 1 { u16::try_from(*rank).ok()? } else { 0 };
        Some(KvTransfer::Push(PushSource {
            engine_id: id_of(id, *rank, ranks).into(),
            host: host(kv_transfer.kv_host.as_ref(), url),
            port: first.checked_add(offset)?,
            tp_size: kv_transfer.kv_tp_size.unwrap_or(1),
            pp_size: kv_transfer.kv_pp_size.unwrap_or(1),
        }))
    };
    ranks.iter().map(of_rank).collect()
}

fn id_of(id: &str, rank: u32, ranks: &[u32]) -> String {
    if ranks.len() > 1 { format!("{id}_dp{rank}") } else { id.to_owned() }
}

fn mooncake(base: &str, engine_id: &str) -> KvTransfer {
    let bootstrap_addr = base.into();
    let engine_id = engine_id.into();
    KvTransfer::Mooncake(MooncakeSource { bootstrap_addr, engine_id })
}

impl KvSource {
    /// Usable ranks before the registry was queried.
    #[must_use]
    pub fn at_start(&self) -> Registration {
        match self {
            Self::Known(kv_transfers) => {
                let ranks = kv_transfers.iter().cloned().map(Some).collect();
                Registration { ranks, lacks: None }
            }
            Self::PushUnknown(what) => Registration::lacking(what),
            Self::Registry(registry) => {
                Registration::lacking(&format!("the registry at {}", registry.base))
            }
        }
    }
}

impl Registration {
    /// No rank is usable; names the missing condition.
    pub(crate) fn lacking(what: &str) -> Self {
        Self { ranks: Vec::new(), lacks: Some(what.into()) }
    }
}

impl Registry {
    /// Path to query; a complete and healthy registry answers 200.
    pub(crate) const fn question(&self) -> &'static str {
        match self.kind {
            RegistryKind::Sglang => {
                "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
            }
            RegistryKind::Mooncake => "/query",
        }
    }

    /// Parses the registry's response.
    #[must_use]
    pub fn read(&self, body: &str) -> Registration {
        match self.kind {
            RegistryKind::Sglang => self.read_route(body),
            RegistryKind::Mooncake => self.read_query(body),
        }
    }

    /// `{"dp_size":1,"follow_bootstrap_room":true,...}` (SGLang 0.5.23,
    /// `disaggregation/common/conn.py`).
    fn read_route(&self, body: &str) -> Registration {
        let answer = serde_json::from_str::<Value>(body).unwrap_or(Value::Null);
        let size = answer.get("dp_size").and_then(Value::as_u64);
        let Some(dp_size) = size.filter(|size| (1..=DP_SIZE_MAX).contains(size)) else {
            return Registration::lacking(&format!(
                "the registry at {}: its answer names no number of ranks",
                self.base
            ));
        };
        let dp_size = u32::try_from(dp_size).unwrap_or(u32::MAX);
        let follows_room =
            answer.get("follow_bootstrap_room").and_then(Value::as_bool).unwrap_or(true);
        let host = Arc::clone(&self.told.0);
        let port = Some(self.told.1);
        let bootstrap = Bootstrap { host, port, dp_size, follows_room };
        let of_rank =
            |rank: &u32| (*rank < dp_size).then(|| KvTransfer::Bootstrap(bootstrap.clone()));
        self.registered(self.ranks.iter().map(of_rank).collect())
    }

    /// `{"0":{"engine_id":"...","worker_addr":{...}}}`, by the rank's position (vLLM 0.32,
    /// `mooncake_utils.py`).
    fn read_query(&self, body: &str) -> Registration {
        let entries = serde_json::from_str::<BTreeMap<String, Value>>(body).unwrap_or_default();
        let of_rank = |(position, _): (usize, &u32)| {
            let entry = entries.get(&position.to_string())?;
            let id = entry.get("engine_id")?.as_str()?;
            let is_usable = !id.is_empty() && id.len() <= ENGINE_ID_BYTES_MAX;
            is_usable.then(|| mooncake(&self.base, id))
        };
        self.registered(self.ranks.iter().enumerate().map(of_rank).collect())
    }

    fn registered(&self, ranks: Vec<Option<KvTransfer>>) -> Registration {
        let missing = ranks.iter().filter(|rank| rank.is_none()).count();
        let lacks = (missing > 0).then(|| {
            let all = ranks.len();
            format!("the registry at {} lacks {missing} of {all} ranks", self.base).into()
        });
        Registration { ranks, lacks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worker(kv_transfer: KvTransferConfig) -> WorkerConfig {
        WorkerConfig { role: WorkerRole::Prefill, kv_transfer, ..WorkerConfig::default() }
    }

    fn found(
        kv_transfer: KvTransferConfig,
        dialect: Dialect,
        url: &str,
        port: Option<u16>,
        ranks: &[u32],
    ) -> KvSource {
        let place = SglangPlace { bootstrap_port: port, ..SglangPlace::default() };
        let url = WorkerUrl::parse(url).unwrap();
        source(&worker(kv_transfer), dialect, &url, &place, ranks, true)
    }

    fn of_registry(source: KvSource) -> Registry {
        let KvSource::Registry(registry) = source else { panic!("{source:?}") };
        registry
    }

    #[test]
    fn what_is_configured_wins_over_what_is_told() {
        let told = [None, Some(Role::Prefill), Some(Role::Decode)];
        let auto = WorkerConfig::default();
        assert_eq!(told.map(|told| role(&auto, told)), [Role::Both, Role::Prefill, Role::Decode]);
        for (configured, wanted) in [
            (WorkerRole::Both, Role::Both),
            (WorkerRole::Prefill, Role::Prefill),
            (WorkerRole::Decode, Role::Decode),
        ] {
            let config = WorkerConfig { role: configured, ..WorkerConfig::default() };
            assert!(told.iter().all(|told| role(&config, *told) == wanted));
        }
    }

    #[test]
    fn registries_are_found_by_configuration_then_by_word_then_by_default() {
        let sglang = |kv_transfer, url, told| {
            of_registry(found(kv_transfer, Dialect::Sglang, url, told, &[0]))
        };
        let none = KvTransferConfig::default;
        let usual = sglang(none(), "http://gpu1:30000", None);
        assert_eq!((&*usual.base, usual.told), ("http://gpu1:8998", ("gpu1".into(), 8_998)));
        let told = sglang(none(), "http://gpu1:30000", Some(30_000));
        assert_eq!((&*told.base, told.told.1), ("http://gpu1:30000", 30_000));
        let other = KvTransferConfig {
            bootstrap_host: Some("[fd00::2]".to_owned()),
            bootstrap_port: Some(9),
            ..none()
        };
        let given = sglang(other, "http://[fd00::1]:30000", Some(30_000));
        assert_eq!(&*given.base, "http://[fd00::1]:9", "asked where the worker is");
        assert_eq!(given.told, ("fd00::2".into(), 9), "told without brackets");
        let flow = KvTransferConfig { kv_flow: Some(KvFlow::Mooncake), ..none() };
        let mooncake = of_registry(found(flow, Dialect::Vllm, "http://[::1]:8000", None, &[0]));
        assert_eq!(&*mooncake.base, "http://[::1]:8998");
    }

    #[test]
    fn a_prefill_rank_is_used_once_its_registry_is_whole() {
        let registry = of_registry(found(
            KvTransferConfig::default(),
            Dialect::Sglang,
            "http://p:1",
            Some(7),
            &[0, 1],
        ));
        let read = |body: &str| registry.read(body);
        let both = read(r#"{"attn_tp_size":1,"dp_size":2,"follow_bootstrap_room":true,"x":1}"#);
        let bootstrap =
            Bootstrap { host: "p".into(), port: Some(7), dp_size: 2, follows_room: true };
        let kv_transfer = Some(KvTransfer::Bootstrap(bootstrap.clone()));
        assert_eq!(
            both,
            Registration { ranks: vec![kv_transfer.clone(), kv_transfer], lacks: None }
        );
        let free = read(r#"{"dp_size":3,"follow_bootstrap_room":false}"#);
        let freely = Bootstrap { dp_size: 3, follows_room: false, ..bootstrap };
        assert_eq!(free.ranks[1], Some(KvTransfer::Bootstrap(freely)));
        let short = read(r#"{"dp_size":1}"#);
        assert_eq!((short.ranks[0].is_some(), short.ranks[1].is_some()), (true, false));
        assert!(short.lacks.unwrap().contains("lacks 1 of 2 ranks"));
        for odd in
            ["", "[]", "{}", r#"{"dp_size":0}"#, r#"{"dp_size":-1}"#, r#"{"dp_size":99999999}"#]
        {
            let odd = read(odd);
            assert!(odd.ranks.is_empty() && odd.lacks.is_some(), "{odd:?}");
        }
    }

    #[test]
    fn mooncake_names_an_engine_for_every_rank() {
        let flow =
            KvTransferConfig { kv_flow: Some(KvFlow::Mooncake), ..KvTransferConfig::default() };
        let registry = of_registry(found(flow, Dialect::Vllm, "http://p:1", None, &[4, 5]));
        let entry =
            |id: &str| format!(r#"{{"engine_id":"{id}","worker_addr":{{"0":{{"0":"tcp://x"}}}}}}"#);
        let whole = registry.read(&format!(r#"{{"0":{},"1":{}}}"#, entry("e0"), entry("e1")));
        assert_eq!(whole.ranks[1], Some(mooncake("http://p:8998", "e1")));
        assert_eq!(whole.lacks, None);
        let half = registry.read(&format!(r#"{{"0":{}}}"#, entry("e0")));
        assert_eq!((half.ranks[0].is_some(), half.ranks[1].is_some()), (true, false));
        for odd in ["", "[]", r#"{"0":7}"#, r#"{"0":{"engine_id":""},"1":{}}"#] {
            assert_eq!(registry.read(odd).ranks, [None, None], "{odd}");
        }
    }

    #[test]
    fn push_sources_of_several_ranks_are_numbered_as_vllm_does() {
        let flow = |id: Option<&str>| KvTransferConfig {
            kv_flow: Some(KvFlow::Push),
            kv_engine_id: id.map(str::to_owned),
            kv_tp_size: Some(2),
            ..KvTransferConfig::default()
        };
        let shown = |source: KvSource| {
            let KvSource::Known(kv_transfers) = source else { panic!("{source:?}") };
            let shown = kv_transfers.into_iter().map(|kv_transfer| {
                let KvTransfer::Push(push) = kv_transfer else { panic!("{kv_transfer:?}") };
                format!(
                    "{} {}:{} {}x{}",
                    push.engine_id, push.host, push.port, push.tp_size, push.pp_size
                )
            });
            shown.collect::<Vec<_>>()
        };
        let of =
            |ranks: &[u32]| shown(found(flow(Some("e")), Dialect::Vllm, "http://p:1", None, ranks));
        assert_eq!(of(&[0]), ["e p:5600 2x1"]);
        assert_eq!(of(&[3]), ["e p:5600 2x1"], "alone behind its URL: as configured");
        assert_eq!(of(&[0, 1]), ["e_dp0 p:5600 2x1", "e_dp1 p:5601 2x1"]);
        let unknown = found(flow(None), Dialect::Vllm, "http://p:1", None, &[0]);
        assert!(unknown.at_start().lacks.is_some_and(|lacks| lacks.contains("kv_engine_id")));
        let high = |ranks: &[u32]| {
            let kv_transfer = KvTransferConfig { kv_port: Some(65_534), ..flow(Some("e")) };
            found(kv_transfer, Dialect::Vllm, "http://p:1", None, ranks)
        };
        assert_eq!(shown(high(&[0, 1])), ["e_dp0 p:65534 2x1", "e_dp1 p:65535 2x1"]);
        assert_eq!(shown(high(&[2])), ["e p:65534 2x1"]);
        for beyond in [&[0, 1, 2][..], &[1, 2], &[0, 65_536]] {
            let lacks = high(beyond).at_start().lacks;
            assert!(lacks.is_some_and(|lacks| lacks.contains("kv_port")), "{beyond:?}");
        }
    }

    #[test]
    fn without_questions_the_configuration_is_believed() {
        let url = WorkerUrl::parse("http://p:1").unwrap();
        let config =
            worker(KvTransferConfig { bootstrap_port: Some(9), ..KvTransferConfig::default() });
        let place = SglangPlace::default();
        let believed = source(&config, Dialect::Sglang, &url, &place, &[0, 1], false);
        let bootstrap =
            Bootstrap { host: "p".into(), port: Some(9), dp_size: 2, follows_room: true };
        assert_eq!(believed, KvSource::Known(vec![KvTransfer::Bootstrap(bootstrap); 2]));
        assert_eq!(believed.at_start().lacks, None);
    }

    proptest! {
        #[test]
        fn no_answer_of_a_registry_panics(
            body in "\\PC{0,80}",
            size in any::<i64>(),
            ranks in 0_u32..5,
        ) {
            let ranks: Vec<u32> = (0..ranks).collect();
            for dialect in [Dialect::Sglang, Dialect::Vllm] {
                let kv_flow = Some(KvFlow::Mooncake);
                let flow = KvTransferConfig { kv_flow, ..KvTransferConfig::default() };
                let registry = of_registry(found(flow, dialect, "http://p:1", None, &ranks));
                let read = registry.read(&body);
                prop_assert!(read.ranks.len() <= ranks.len());
                let sized = registry
                    .read(&format!("{{\"dp_size\":{size},\"0\":{{\"engine_id\":{size}}}}}"));
                let whole = sized.ranks.iter().flatten().count();
                prop_assert!(whole == 0 || size > 0);
            }
        }
    }
}

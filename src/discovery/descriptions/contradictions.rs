//! Keys of a worker that its engine contradicts, with the right value. Sans-IO.

use super::description::Description;
use super::kv_source::{KvSource, RegistryKind};
use super::missing_features::MissingFeature;
use forebay_fleet::worker::{Dialect, KvTransfer, Role};

/// Names of models that a finding lists.
const NAMES_MAX: usize = 4;

/// Keys of the worker that its engine contradicts. An engine that does not report a value
/// contradicts nothing.
#[must_use]
pub fn contradictions(description: &Description) -> Vec<MissingFeature> {
    let found = [
        engine(description),
        ranks(description),
        models(description),
        role(description),
        bootstrap_port(description),
    ];
    found.into_iter().flatten().collect()
}

/// Any engine may be used as a plain server, by `engine = "openai"`.
fn engine(description: &Description) -> Option<MissingFeature> {
    let name = |dialect| match dialect {
        Dialect::Vllm => Some("vllm"),
        Dialect::Sglang => Some("sglang"),
        Dialect::Openai => None,
    };
    let own = name(description.reported.dialect?)?;
    let configured = name(description.dialect).filter(|configured| *configured != own)?;
    let what = format!("`engine` is {configured:?}, and the models of the worker are of {own:?}");
    let help = format!(
        "set `engine = {own:?}` for the worker, or remove the key: the router finds the engine"
    );
    Some(MissingFeature::new(what, help))
}

/// With a port for each rank, the engine reports the rank of the first port alone.
fn ranks(description: &Description) -> Option<MissingFeature> {
    let own = description.reported.rank_count.filter(|_| !description.server.port_per_rank)?;
    let configured = description.ranks.len();
    let what = format!("`ranks` is {configured}, and the engine has {own}");
    let help = format!(
        "set `ranks = {own}`, or remove the key; set `port_per_rank` if each rank has a port"
    );
    (configured > own).then(|| MissingFeature::new(what, help))
}

/// An engine refuses the requests of another role, or never answers them.
fn role(description: &Description) -> Option<MissingFeature> {
    let own = description.reported.role.filter(|own| *own != description.role)?;
    let configured = description.role.name();
    let what = match own {
        Role::Both => format!("`role` is {configured:?}, and the engine runs no disaggregation"),
        own => format!("`role` is {configured:?}, and the engine's is {:?}", own.name()),
    };
    let help = "remove the key: the router finds the role of the engine; or start the engine with \
                another --disaggregation-mode";
    Some(MissingFeature::new(what, help))
}

/// Decode workers take the KV from the port that the router names. Behind another host, such as a
/// proxy, the port may be another too.
fn bootstrap_port(description: &Description) -> Option<MissingFeature> {
    let own = description.reported.bootstrap_port.filter(|_| description.role == Role::Prefill)?;
    let configured = match description.source.as_ref()? {
        KvSource::Registry(registry) => match registry.kind {
            RegistryKind::Sglang if !registry.host_is_configured => registry.told.1,
            RegistryKind::Sglang | RegistryKind::Mooncake => return None,
        },
        KvSource::Known(kv_transfers) => match kv_transfers.first()? {
            KvTransfer::Bootstrap(bootstrap) => bootstrap.port?,
            _ => return None,
        },
        KvSource::PushUnknown(_) => return None,
    };
    let what = format!("`bootstrap_port` is {configured}, and the engine's is {own}");
    let help = "remove the key: the router finds the port";
    (configured != own).then(|| MissingFeature::new(what, help))
}

fn models(description: &Description) -> Option<MissingFeature> {
    let reported = &description.reported;
    let mut names = description.models.iter().map(|model| &*model.name);
    let wrong = names.find(|name| !reported.may_serve(name))?;
    let listed: Vec<String> =
        reported.models.iter().take(NAMES_MAX).map(|name| format!("{name:?}")).collect();
    let listed = listed.join(", ");
    let more = match reported.models.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!("`models` has {wrong:?}, and the engine lists {listed}{more}");
    let help = "write a name of GET /v1/models of the engine in `models`, or remove the key";
    Some(MissingFeature::new(what, help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptions::description::{
        DescribedRank, Listing, ServerTraits, configured_model, numbered,
    };
    use crate::descriptions::engine_report::EngineReport;
    use crate::descriptions::kv_source::Registry;
    use crate::descriptions::missing_features::lacks;
    use crate::model_text::FoundText;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// A vLLM engine of two ranks and two models, without KV events.
    fn described(dialect: Dialect, ranks: usize, models: &[&str]) -> Description {
        let rank = DescribedRank { reuses_prefixes: Some(true), ..DescribedRank::default() };
        Description {
            dialect,
            models: models.iter().map(|name| configured_model(name)).collect(),
            listing: Listing::Configured,
            ranks: numbered(0, ranks, &rank),
            role: Role::Both,
            source: None,
            server: ServerTraits::default(),
            reported: EngineReport {
                dialect: Some(Dialect::Vllm),
                rank_count: Some(2),
                models: ["a".into(), "b".into()].into(),
                ..EngineReport::default()
            },
        }
    }

    /// Everything that `forebay doctor` names.
    fn found(description: &Description) -> Vec<MissingFeature> {
        let text = |model: Arc<str>| (model, FoundText::default());
        let texts: BTreeMap<_, _> = description.model_names().into_iter().map(text).collect();
        let contradictions = contradictions(description).into_iter();
        contradictions.chain(lacks(description, &texts)).collect()
    }

    /// Issue 39: more ranks than the engine has were advised to start vLLM with events, a wrong
    /// name to set `model_dir`, and a wrong engine to set `role`.
    #[test]
    fn the_key_that_the_engine_contradicts_is_named_with_the_right_value() {
        for (description, what, help) in [
            (
                described(Dialect::Vllm, 4, &["a"]),
                "`ranks` is 4, and the engine has 2",
                "ranks = 2",
            ),
            (
                described(Dialect::Vllm, 2, &["c"]),
                "`models` has \"c\", and the engine lists \"a\", \"b\"",
                "GET /v1/models",
            ),
            (
                described(Dialect::Sglang, 2, &["a"]),
                "`engine` is \"sglang\", and the models of the worker are of \"vllm\"",
                "engine = \"vllm\"",
            ),
        ] {
            let [only] = &contradictions(&description)[..] else { panic!("{description:?}") };
            assert_eq!(only.what, what);
            assert!(only.help.contains(help), "{only:?}");
            let found = found(&description);
            let misleads = |lack: &MissingFeature| match help {
                "ranks = 2" => false,
                "GET /v1/models" => lack.help.contains("model_dir"),
                _ => lack.help.contains("start SGLang"),
            };
            assert!(!found.iter().any(misleads), "{found:?}");
        }
    }

    /// M1: a prefill worker with the role or the port of another engine was silent, and each
    /// request through it hung.
    #[test]
    fn the_role_and_the_registry_of_another_engine_are_named() {
        let with = |role, reported, port: Option<u16>, host_is_configured| {
            let registry = Registry {
                kind: RegistryKind::Sglang,
                base: "http://p:9000".to_owned(),
                told: ("p".into(), 9_000),
                host_is_configured,
                ranks: vec![0],
            };
            let mut description = described(Dialect::Sglang, 1, &["a"]);
            description.reported = EngineReport {
                dialect: Some(Dialect::Sglang),
                role: reported,
                bootstrap_port: port,
                ..EngineReport::default()
            };
            description.role = role;
            description.source = Some(KvSource::Registry(registry));
            contradictions(&description).into_iter().map(|found| found.what).collect::<Vec<_>>()
        };
        let prefill = Some(Role::Prefill);
        let none = [""; 0];
        for (found, wanted) in [
            (with(Role::Prefill, prefill, Some(9_000), false), &none[..]),
            (with(Role::Prefill, None, None, false), &none),
            (with(Role::Prefill, prefill, Some(9_001), true), &none),
            (
                with(Role::Prefill, prefill, Some(9_001), false),
                &["`bootstrap_port` is 9000, and the engine's is 9001"],
            ),
            (
                with(Role::Prefill, Some(Role::Decode), None, false),
                &["`role` is \"prefill\", and the engine's is \"decode\""],
            ),
            (
                with(Role::Both, prefill, None, false),
                &["`role` is \"both\", and the engine's is \"prefill\""],
            ),
            (
                with(Role::Decode, Some(Role::Both), None, false),
                &["`role` is \"decode\", and the engine runs no disaggregation"],
            ),
        ] {
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn ranks_that_the_engine_lacks_are_not_advised_to_publish() {
        let mut description = described(Dialect::Vllm, 4, &["a"]);
        let events = crate::descriptions::event_announcement::EventAnnouncement::at(
            forebay_zmq::ZmqEndpoint::parse("tcp://h:1", "h").unwrap(),
        );
        for rank in description.ranks.iter_mut().take(2) {
            rank.events = Some(events.clone());
        }
        let found = found(&description);
        assert!(!found.iter().any(|lack| lack.what.contains("no KV events")), "{found:?}");
    }

    #[test]
    fn what_the_engine_does_not_report_contradicts_nothing() {
        let silent = |mut description: Description| {
            description.reported = EngineReport::default();
            contradictions(&description)
        };
        assert_eq!(silent(described(Dialect::Sglang, 4, &["c"])), []);
        assert_eq!(
            contradictions(&described(Dialect::Vllm, 1, &["b"])),
            [],
            "a part of the engine"
        );
        assert_eq!(contradictions(&described(Dialect::Openai, 2, &["a"])), [], "used as a server");
        let mut ports = described(Dialect::Vllm, 4, &["a"]);
        ports.server.port_per_rank = true;
        assert_eq!(contradictions(&ports), []);
    }
}

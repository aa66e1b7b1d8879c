//! Findings of `forebay doctor` that need the descriptions of all workers: names of models that no
//! worker serves, adapters without a worker, and workers of a leg without workers of the other leg.

use forebay_config::{AdapterConfig, Config, PairPlace};
use forebay_discovery::{Description, Examination, Listing, MissingFeature};
use forebay_fleet::worker::{Dialect, Role};
use forebay_keys::read;
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// Most names of models in a finding.
const NAMES_MAX: usize = 4;

/// A finding about a table or a worker.
#[derive(Debug)]
pub(super) struct FleetFinding {
    /// The table or the worker, as the line begins.
    pub(super) subject: String,
    pub(super) fault: MissingFeature,
}

/// Findings about the workers together. None while a worker is not described: it may have what the
/// other workers lack.
pub(super) fn fleet_findings(
    config: &Config,
    examined: &[(String, Result<Examination, String>)],
) -> Vec<FleetFinding> {
    let described: Vec<(&str, &Description)> = examined
        .iter()
        .filter_map(|(url, found)| Some((&**url, &found.as_ref().ok()?.description)))
        .collect();
    if described.len() < examined.len() || described.is_empty() {
        return Vec::new();
    }
    let mut found = lone_legs(&described);
    found.extend(legs_apart(config, &described));
    found.extend(unserved_names(config, &described));
    found.extend(adapters_without_host(config, &described));
    found
}

/// Tables, and keys of clients, with a model that no worker serves.
fn unserved_names(config: &Config, described: &[(&str, &Description)]) -> Vec<FleetFinding> {
    if described.iter().any(|(_, description)| description.listing == Listing::Any) {
        return Vec::new();
    }
    let models = described.iter().flat_map(|(_, description)| &description.models);
    let served: BTreeSet<&str> = models.map(|model| &*model.name).collect();
    let adapters: BTreeSet<&str> = config.adapters.iter().map(|adapter| &*adapter.name).collect();
    let names: Vec<&str> = served.iter().take(NAMES_MAX).copied().collect();
    let names = names.join(", ");
    let finding = |table: &str, key: &str, name: &str, what: &str| FleetFinding {
        subject: format!("{table} {name:?}"),
        fault: MissingFeature {
            what: format!("`{key}` {what}, which no worker serves"),
            help: format!("correct `{key}`, or add a worker of that model; workers serve {names}"),
        },
    };
    let is = |model: &str| format!("is {model:?}");
    let aliases = config.models.iter();
    let aliases = aliases
        .filter(|table| !served.contains(&*table.to) && !adapters.contains(&*table.to))
        .map(|table| finding("[[model]]", "to", &table.name, &is(&table.to)));
    let of_adapters = config.adapters.iter().filter(|table| !served.contains(&*table.of));
    let of_adapters =
        of_adapters.map(|table| finding("[[adapter]]", "of", &table.name, &is(&table.of)));
    // A fault of the file is a finding on the configuration.
    let ring = config.api_keys.as_deref().and_then(|path| read(path).ok()).unwrap_or_default();
    let is_served = |name: &str| served.contains(name) || config.has_table_of(name);
    let of_keys = ring.unserved_models(is_served).into_iter();
    let of_keys =
        of_keys.map(|of| finding("key", "models", of.key, &format!("has {:?}", of.model)));
    aliases.chain(of_adapters).chain(of_keys).collect()
}

/// Adapters with the name of a model, and adapters for more workers than can load them.
fn adapters_without_host(config: &Config, described: &[(&str, &Description)]) -> Vec<FleetFinding> {
    let fault = |AdapterConfig { name, of, copies, .. }: &AdapterConfig| {
        let is_model = |(_, one): &&(&str, &Description)| {
            one.served(name).is_some_and(|model| model.parent.is_none())
        };
        if let Some((url, _)) = described.iter().find(is_model) {
            let what = format!("`name` is the name of a model of {url}");
            return Some((what, "give the adapter a name of its own".to_owned()));
        }
        let serves = |(_, one): &&(&str, &Description)| one.served(of).is_some();
        let serving = || described.iter().filter(serves);
        let hosts = serving().filter(|(_, one)| one.dialect != Dialect::Openai).count();
        if hosts == 0 {
            let help = "vLLM and SGLang load adapters, and other servers do not";
            let what = format!("no worker of {of:?} can load it");
            return serving().next().map(|_| (what, help.to_owned()));
        }
        let what =
            format!("`copies` is {copies}, more than the workers that may load it ({hosts})");
        let help = format!("write {hosts} or less, or add workers of {of:?}");
        u32::try_from(hosts).is_ok_and(|hosts| hosts < *copies).then_some((what, help))
    };
    let finding = |table: &AdapterConfig| {
        let (what, help) = fault(table)?;
        let subject = format!("[[adapter]] {:?}", table.name);
        Some(FleetFinding { subject, fault: MissingFeature { what, help } })
    };
    config.adapters.iter().filter_map(finding).collect()
}

/// Workers of a leg without a worker of the other leg for their models. A decode worker of vLLM
/// takes whole requests too.
fn lone_legs(described: &[(&str, &Description)]) -> Vec<FleetFinding> {
    let has_leg = |role: Role, of: &Description| {
        described.iter().any(|(_, other)| other.role == role && shares_model(of, other))
    };
    let finding = |(url, description): &(&str, &Description)| {
        let (what, help) = match description.role {
            Role::Prefill if !has_leg(Role::Decode, description) => (
                "this prefill worker gets no requests: no worker decodes its model",
                "add a decode worker of the model (`role = \"decode\"`), or start the engine \
                 without disaggregation",
            ),
            Role::Decode
                if description.dialect == Dialect::Sglang
                    && !has_leg(Role::Prefill, description) =>
            {
                (
                    "this decode worker refuses requests: no worker computes the prompts of its \
                     model",
                    "add a prefill worker of the model (`role = \"prefill\"`), or start the \
                     engine without disaggregation",
                )
            }
            _ => return None,
        };
        let fault = MissingFeature { what: what.to_owned(), help: help.to_owned() };
        Some(FleetFinding { subject: format!("worker {url}"), fault })
    };
    described.iter().filter_map(finding).collect()
}

/// Workers of a leg that can be a pair with no worker of the other leg, though there are such
/// workers for their models.
fn legs_apart(config: &Config, described: &[(&str, &Description)]) -> Vec<FleetFinding> {
    let place = |url: &str, description: &Description| {
        let table = config.workers.iter().find(|worker| worker.url == *url);
        let is_sglang = description.dialect == Dialect::Sglang;
        let own = table.and_then(|table| table.kv_transfer.kv_flow);
        let kv_flow = match description.role {
            _ if is_sglang => None,
            Role::Prefill => Some(own.unwrap_or_default()),
            Role::Both | Role::Decode => own,
        };
        let topology = table.and_then(|table| table.topology.as_deref());
        let page_tokens = NonZeroU32::new(description.server.page_tokens);
        PairPlace { is_sglang: Some(is_sglang), kv_flow, topology, page_tokens }
    };
    let finding = |(url, description): &(&str, &Description)| {
        let other = match description.role {
            Role::Prefill => Role::Decode,
            Role::Decode if description.dialect == Dialect::Sglang => Role::Prefill,
            Role::Both | Role::Decode => return None,
        };
        let own = place(url, description);
        let others = || {
            let of_leg = described.iter().filter(|(_, one)| one.role == other);
            of_leg.filter(|(_, one)| shares_model(description, one))
        };
        if others().any(|(url, one)| own.obstacle(&place(url, one)).is_none()) {
            return None;
        }
        let (partner, obstacle) =
            others().find_map(|(url, one)| Some((*url, own.obstacle(&place(url, one))?)))?;
        let leg = if other == Role::Decode { "decode" } else { "prefill" };
        let text = obstacle.text();
        let what = format!("it can be no pair with any {leg} worker, such as {partner}: {text}");
        let fault = MissingFeature { what, help: obstacle.help().to_owned() };
        Some(FleetFinding { subject: format!("worker {url}"), fault })
    };
    described.iter().filter_map(finding).collect()
}

/// A worker that takes any name shares the models of all workers.
fn shares_model(one: &Description, other: &Description) -> bool {
    let is_any = |description: &Description| description.listing == Listing::Any;
    is_any(one)
        || is_any(other)
        || one.models.iter().any(|model| other.served(&model.name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::ModelConfig;
    use forebay_discovery::{DescribedRank, EngineReport, ServerTraits, configured_model};
    use std::net::SocketAddr;

    fn worker(role: Role, dialect: Dialect, model: &str) -> (String, Result<Examination, String>) {
        let description = Description {
            dialect,
            models: vec![configured_model(model)],
            listing: Listing::Listed,
            ranks: vec![DescribedRank::default()],
            role,
            source: None,
            server: ServerTraits::default(),
            reported: EngineReport::default(),
        };
        let address = SocketAddr::from(([10, 0, 0, 1], 1));
        let examination = Examination {
            address,
            description,
            chat_notes: Vec::new(),
            lacks: Vec::new(),
            health_fault: None,
        };
        ("http://w:1".to_owned(), Ok(examination))
    }

    fn shown(config: &Config, examined: &[(String, Result<Examination, String>)]) -> Vec<String> {
        let found = fleet_findings(config, examined).into_iter();
        found
            .map(|one| format!("{}: {}. help: {}", one.subject, one.fault.what, one.fault.help))
            .collect()
    }

    /// Issue 39: legs of two engines, and legs without a common label, were no finding.
    #[test]
    fn legs_that_can_never_meet_are_found_with_the_reason() {
        let at =
            |url: &str, (_, found): (String, Result<Examination, String>)| (url.to_owned(), found);
        let prefill = |dialect| at("http://p:1", worker(Role::Prefill, dialect, "m"));
        let decode = |dialect| at("http://d:1", worker(Role::Decode, dialect, "m"));
        let vllm = Dialect::Vllm;
        let mixed = shown(&Config::default(), &[prefill(vllm), decode(Dialect::Sglang)]);
        let wanted = "worker http://p:1: it can be no pair with any decode worker, such as \
                      http://d:1: one is SGLang and the other is not. help: start";
        assert!(mixed[0].starts_with(wanted), "{mixed:?}");
        assert!(mixed[1].starts_with("worker http://d:1: ") && mixed.len() == 2, "{mixed:?}");
        let config = |keys: [&str; 2]| {
            let [one, two] = keys;
            let tables = format!(
                "[[worker]]\nurl = \"http://p:1\"\n{one}\n[[worker]]\nurl = \"http://d:1\"\n{two}\n"
            );
            Config::from_toml(&tables).expect("valid")
        };
        for (keys, word) in [
            (["topology = \"a\"", "topology = \"b\""], "`topology`"),
            (["", "role = \"decode\"\nkv_flow = \"push\""], "`kv_flow`"),
            (["topology = \"a\"", ""], ""),
        ] {
            let found = shown(&config(keys), &[prefill(vllm), decode(vllm)]);
            assert_eq!(found.len(), usize::from(!word.is_empty()), "{keys:?}: {found:?}");
            assert!(found.iter().all(|line| line.contains(word)), "{keys:?}: {found:?}");
        }
    }

    /// Issue 39: a lone leg, and a name of a model that no worker serves, were found by clients.
    #[test]
    fn a_lone_leg_and_an_unserved_name_are_found_with_what_to_do() {
        let plain = Config::default();
        let prefill = || worker(Role::Prefill, Dialect::Sglang, "m");
        let decode = |dialect, model| worker(Role::Decode, dialect, model);
        assert!(shown(&plain, &[prefill()])[0].contains("no worker decodes its model"));
        let lone = shown(&plain, &[decode(Dialect::Sglang, "m")]);
        assert!(lone[0].starts_with("worker http://w:1: this decode worker refuses"), "{lone:?}");
        assert_eq!(shown(&plain, &[decode(Dialect::Vllm, "m")]), [""; 0], "whole requests");
        assert_eq!(shown(&plain, &[prefill(), decode(Dialect::Sglang, "m")]), [""; 0]);
        assert_eq!(shown(&plain, &[prefill(), decode(Dialect::Sglang, "n")]).len(), 2, "models");

        let alias = |to: &str| ModelConfig { name: "chat".into(), to: to.into(), weight: 1 };
        let adapter = |of: &str| AdapterConfig {
            name: "lora".into(),
            of: of.into(),
            ..AdapterConfig::default()
        };
        let config = |to: &str, of: &str| Config {
            models: vec![alias(to)],
            adapters: vec![adapter(of)],
            ..Config::default()
        };
        let both = [worker(Role::Both, Dialect::Vllm, "m")];
        let found = shown(&config("n", "o"), &both);
        let first = "[[model]] \"chat\": `to` is \"n\", which no worker serves. help: correct \
                     `to`, or add a worker of that model; workers serve m";
        assert_eq!(found[0], first);
        assert!(found[1].starts_with("[[adapter]] \"lora\": `of` is \"o\""), "{found:?}");
        assert_eq!(shown(&config("lora", "m"), &both), [""; 0]);
        let [described] = both;
        let unknown = ("http://x:1".to_owned(), Err("refused".to_owned()));
        assert_eq!(shown(&config("n", "o"), &[described, unknown]), [""; 0], "may serve them");
    }

    /// Issue 39: SGLang refuses the KV of such a pair, and no tool of the router named it.
    #[test]
    fn a_pair_with_pages_of_two_sizes_is_found() {
        let with = |role, tokens| {
            let (url, found) = worker(role, Dialect::Sglang, "m");
            let mut found = found.unwrap();
            found.description.server.page_tokens = tokens;
            (url, Ok(found))
        };
        let shown = |prefill, decode| {
            shown(&Config::default(), &[with(Role::Prefill, prefill), with(Role::Decode, decode)])
        };
        assert_eq!(shown(16, 16), [""; 0]);
        assert_eq!(shown(16, 0), [""; 0], "not reported");
        let found = shown(16, 64);
        assert_eq!(found.len(), 2, "each leg: {found:?}");
        assert!(found.iter().all(|line| line.contains("--page-size")), "{found:?}");
    }

    /// Issue 39: requests for such an adapter, and with such a key, failed without a finding.
    #[test]
    fn adapters_without_a_host_and_keys_without_a_model_are_found() {
        let adapter = |name: &str, copies| AdapterConfig {
            name: name.into(),
            of: "m".into(),
            copies,
            ..AdapterConfig::default()
        };
        let config = |adapter| Config { adapters: vec![adapter], ..Config::default() };
        let both = |dialect| [worker(Role::Both, dialect, "m")];
        let vllm = both(Dialect::Vllm);
        assert_eq!(shown(&config(adapter("sql", 1)), &vllm), [""; 0]);
        let copies = shown(&config(adapter("sql", 2)), &vllm);
        let what = "[[adapter]] \"sql\": `copies` is 2, more than the workers that may load it \
                    (1). help: write 1 or less";
        assert!(copies.len() == 1 && copies[0].starts_with(what), "{copies:?}");
        let plain = shown(&config(adapter("sql", 1)), &both(Dialect::Openai));
        assert!(
            plain.len() == 1 && plain[0].contains("no worker of \"m\" can load it"),
            "{plain:?}"
        );
        let named = shown(&config(adapter("m", 1)), &vllm);
        let what = "[[adapter]] \"m\": `name` is the name of a model of http://w:1. help: give";
        assert!(named.len() == 1 && named[0].starts_with(what), "{named:?}");
        let keys =
            Config { api_keys: Some("tests/data/api_keys/two.toml".into()), ..Config::default() };
        assert_eq!(shown(&keys, &vllm), [""; 0]);
        let found = shown(&keys, &[worker(Role::Both, Dialect::Vllm, "n")]);
        let what =
            "key \"some\": `models` has \"m\", which no worker serves. help: correct `models`";
        assert!(found.len() == 1 && found[0].starts_with(what), "{found:?}");
    }
}

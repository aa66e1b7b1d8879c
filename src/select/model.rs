//! The requested model, and with it the ranks that may serve the request. A name that workers list
//! belongs to these workers. [`ANY_MODEL`] serves only names that no worker lists.
//!
//! | the name | answer |
//! |---|---|
//! | has ranks | its ranks |
//! | is expected: its workers are not described yet, or list it no more | [`NoModel::NoneYet`] |
//! | is unlisted, and workers take any model | the ranks of [`ANY_MODEL`] |
//! | is unlisted, and a worker of the file is not described yet | [`NoModel::NoneYet`] |
//! | is unlisted, and no name is known | [`NoModel::NoneYet`] |
//! | is unlisted, from `[[model]]`, and the fleet is incomplete | [`NoModel::NoneYet`] |
//! | is unlisted | [`NoModel::Unknown`] |

use forebay_base::ModelIndex;
use forebay_fleet::worker::{ANY_MODEL, FleetSnapshot, Model};
use forebay_prompt::parse::{ApiRequest, Endpoint};
use std::borrow::Cow;

/// Why no model was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoModel {
    /// Workers that may serve the model have not listed their models yet.
    NoneYet,
    /// No worker serves the named model.
    Unknown,
    /// The endpoint needs a model name and the body has none.
    Missing,
    /// Unknown path, without a model name that would mark it as an engine's path.
    NoPath,
}

/// The requested model. Endpoints that engines serve without a model name get the first model.
///
/// # Errors
/// [`NoModel`] if no model matches.
pub fn model<'a>(
    fleet: &'a FleetSnapshot,
    endpoint: Endpoint,
    request: &ApiRequest,
) -> Result<(ModelIndex, &'a Model), NoModel> {
    let has_name = request.has_model && !request.model.is_empty();
    if endpoint == Endpoint::Other && !has_name {
        return Err(NoModel::NoPath);
    }
    if !request.lora.is_empty()
        && let Some(adapter) = adapter(fleet, &request.lora)
    {
        return Ok(adapter);
    }
    if has_name && endpoint != Endpoint::Models {
        return named(fleet, &request.model).map_err(|none| match none {
            // The operator has written the name: a worker to come may serve the model.
            NoModel::Unknown if request.is_renamed() && fleet.serving.is_incomplete => {
                NoModel::NoneYet
            }
            none => none,
        });
    }
    let optional = matches!(
        endpoint,
        Endpoint::Generate | Endpoint::Tokenize | Endpoint::Detokenize | Endpoint::Models
    );
    if !optional {
        return only(fleet);
    }
    let mut listed = fleet.models.iter().filter(|model| !model.is_any());
    let first =
        listed.find(|model| !model.ranks.is_empty()).map_or(ANY_MODEL, |model| &*model.name);
    served(fleet, first).ok_or(NoModel::NoneYet)
}

/// The model of that name: a model or an adapter.
pub(crate) fn named<'a>(
    fleet: &'a FleetSnapshot,
    name: &str,
) -> Result<(ModelIndex, &'a Model), NoModel> {
    served(fleet, name)
        .or_else(|| adapter(fleet, named_with_base(fleet, name)?))
        .or_else(|| fleet.model_for(name))
        .ok_or_else(|| unserved(fleet, name))
}

/// Why no worker serves the name.
fn unserved(fleet: &FleetSnapshot, name: &str) -> NoModel {
    if is_known(fleet, name) || fleet.serving.awaits_models || !fleet.has_names() {
        return NoModel::NoneYet;
    }
    NoModel::Unknown
}

/// Does a worker list the name, or is a worker expected to?
pub(crate) fn is_known(fleet: &FleetSnapshot, name: &str) -> bool {
    fleet.model(name).is_some_and(|(_, model)| model.is_known())
}

/// Separates the request's blocks from other blocks of the model: the request's salt, and a
/// requested adapter that no worker lists and that has therefore no model of its own.
#[must_use]
pub fn cache_namespace<'a>(model: &Model, request: &'a ApiRequest) -> Cow<'a, str> {
    let salt = request.cache_salt.as_str();
    let adapter = request.lora.as_str();
    if adapter.is_empty() || *model.name == *adapter {
        return Cow::Borrowed(salt);
    }
    // No engine's salt holds a zero byte.
    Cow::Owned(format!("{salt}\0\0{adapter}"))
}

/// The model of a request without a name: the only base model, whatever aliases and adapters it
/// has.
fn only(fleet: &FleetSnapshot) -> Result<(ModelIndex, &Model), NoModel> {
    let is_own = |model: &&Model| model.is_known() && !model.is_adapter();
    let mut own = fleet.models.iter().filter(is_own);
    let none = if fleet.serving.awaits_models { NoModel::NoneYet } else { NoModel::Missing };
    let first = own.next().ok_or(none)?;
    // No engine serves two base models: names with the same ranks are aliases.
    if own.any(|model| model.ranks != first.ranks) {
        return Err(NoModel::Missing);
    }
    served(fleet, &first.name).ok_or(NoModel::NoneYet)
}

fn served<'a>(fleet: &'a FleetSnapshot, name: &str) -> Option<(ModelIndex, &'a Model)> {
    fleet.model(name).filter(|(_, model)| !model.ranks.is_empty())
}

fn adapter<'a>(fleet: &'a FleetSnapshot, name: &str) -> Option<(ModelIndex, &'a Model)> {
    served(fleet, name).filter(|(_, model)| model.is_adapter())
}

/// The adapter in SGLang's `model:adapter`, if the model is served. Both names may contain colons.
fn named_with_base<'a>(fleet: &FleetSnapshot, name: &'a str) -> Option<&'a str> {
    name.match_indices(':').find_map(|(at, _)| {
        let (base, adapter) = name.split_at_checked(at)?;
        let adapter = adapter.strip_prefix(':').filter(|adapter| !adapter.is_empty())?;
        served(fleet, base).filter(|(_, model)| !model.is_adapter()).map(|_| adapter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::RankIndex;
    use forebay_fleet::worker::{ModelKind, test_support};
    use forebay_index::KeySeed;
    use forebay_index::ModelRoots;

    fn fleet() -> FleetSnapshot {
        let model = |(name, is_adapter, ranks): (&str, bool, &[u16])| Model {
            name: name.into(),
            card_json: "".into(),
            pool: forebay_base::PoolIndex(0),
            prefill_pool: None,
            ranks: ranks.iter().copied().map(RankIndex).collect(),
            roots: ModelRoots::new(KeySeed(1), name),
            text: None,
            kind: if is_adapter { ModelKind::Adapter } else { ModelKind::Base },
        };
        let models = [
            ("m:8b", false, &[0, 1][..]),
            ("tuned", true, &[1][..]),
            ("gone", true, &[][..]),
            ("other", false, &[0][..]),
        ];
        FleetSnapshot { models: models.map(model).into(), ..FleetSnapshot::default() }
    }

    fn found(name: &str, lora: &str) -> Result<String, NoModel> {
        let request = ApiRequest {
            model: name.into(),
            has_model: !name.is_empty(),
            lora: lora.into(),
            ..ApiRequest::default()
        };
        let fleet = fleet();
        let found = model(&fleet, Endpoint::Generate, &request)?.1;
        Ok(format!("{}{}", found.name, cache_namespace(found, &request).replace("\0\0", "+")))
    }

    #[test]
    fn adapters_are_found_by_every_way_of_naming_them() {
        for (name, lora, wanted) in [
            ("m:8b", "", "m:8b"),
            ("tuned", "", "tuned"),
            ("m:8b:tuned", "", "tuned"),
            ("m:8b", "tuned", "tuned"),
            ("", "tuned", "tuned"),
            ("", "", "m:8b"),
            // Not listed: the model serves it, its blocks do not match.
            ("m:8b", "unheard", "m:8b+unheard"),
            ("m:8b", "other", "m:8b+other"),
        ] {
            assert_eq!(found(name, lora).as_deref(), Ok(wanted), "{name} {lora}");
        }
        for unknown in
            ["gone", "m:8b:gone", "m:8b:unheard", "m:8b:other", "m:8b:", "tuned:x", ":tuned"]
        {
            assert_eq!(found(unknown, ""), Err(NoModel::Unknown), "{unknown}");
        }
    }

    /// Engines serve a request without a model name.
    #[test]
    fn a_model_that_is_the_only_one_need_not_be_named() {
        let named = |fleet: &FleetSnapshot, has_model| {
            let request = ApiRequest { has_model, ..ApiRequest::default() };
            model(fleet, Endpoint::Completions, &request).map(|(_, model)| model.name.to_string())
        };
        let mut fleet = fleet();
        assert_eq!(named(&fleet, false), Err(NoModel::Missing), "one of two");
        fleet.models.retain(|model| &*model.name != "other");
        assert_eq!(named(&fleet, false).as_deref(), Ok("m:8b"), "adapters do not count");
        assert_eq!(named(&fleet, true).as_deref(), Ok("m:8b"), "an empty name is none");
        let mut alias = fleet.models[0].clone();
        alias.name = "alias".into();
        fleet.models.push(alias);
        assert_eq!(named(&fleet, false).as_deref(), Ok("m:8b"));
        fleet.models.clear();
        assert_eq!(named(&fleet, false), Err(NoModel::Missing));
        fleet.serving.awaits_models = true;
        assert_eq!(named(&fleet, false), Err(NoModel::NoneYet));
    }

    /// Issue 35: a worker of any model took the requests of all models.
    #[test]
    fn any_model_serves_only_names_that_no_worker_lists() {
        let mut fleet = fleet();
        fleet.models.insert(0, test_support::model(ANY_MODEL, &[7]));
        fleet.models.push(Model { kind: ModelKind::Expected, ..test_support::model("later", &[]) });
        let found = |fleet: &FleetSnapshot, name: &str, endpoint| {
            let has_model = !name.is_empty();
            let request = ApiRequest { model: name.into(), has_model, ..ApiRequest::default() };
            model(fleet, endpoint, &request).map(|(_, model)| model.name.to_string())
        };
        let any = || Ok(ANY_MODEL.to_owned());
        for (name, wanted) in [
            ("m:8b", Ok("m:8b".to_owned())),
            ("m:8b:tuned", Ok("tuned".to_owned())),
            ("later", Err(NoModel::NoneYet)),
            ("gone", any()),
            ("unheard", any()),
            (ANY_MODEL, any()),
            // Several are served, and none is named.
            ("", Err(NoModel::Missing)),
        ] {
            assert_eq!(found(&fleet, name, Endpoint::Completions), wanted, "{name:?}");
        }
        assert_eq!(found(&fleet, "", Endpoint::Tokenize).as_deref(), Ok("m:8b"));
        fleet.models.truncate(1);
        for name in ["m:8b", ""] {
            assert_eq!(found(&fleet, name, Endpoint::Completions), any(), "{name:?}");
            assert_eq!(found(&fleet, name, Endpoint::Tokenize), any(), "{name:?}");
        }
        // Its worker is gone: it serves and refuses nothing.
        for models in [vec![], self::fleet().models] {
            let is_empty = models.is_empty();
            fleet.models = models;
            fleet.models.insert(0, test_support::model(ANY_MODEL, &[]));
            let none = if is_empty { NoModel::NoneYet } else { NoModel::Unknown };
            for name in ["unheard", ANY_MODEL] {
                assert_eq!(found(&fleet, name, Endpoint::Completions), Err(none), "{name}");
            }
        }
        assert_eq!(found(&fleet, "m:8b", Endpoint::Completions).as_deref(), Ok("m:8b"));
    }

    #[test]
    fn an_unlisted_name_is_unknown_once_all_configured_workers_have_listed() {
        let mut fleet = fleet();
        fleet.serving.awaits_models = true;
        let found = |fleet: &FleetSnapshot, name: &str| {
            let request =
                ApiRequest { model: name.into(), has_model: true, ..ApiRequest::default() };
            model(fleet, Endpoint::Completions, &request).map(|(_, model)| model.name.to_string())
        };
        assert_eq!(found(&fleet, "m:8b").as_deref(), Ok("m:8b"));
        assert_eq!(found(&fleet, "unheard"), Err(NoModel::NoneYet));
        fleet.serving.awaits_models = false;
        assert_eq!(found(&fleet, "unheard"), Err(NoModel::Unknown));
        fleet.serving.is_incomplete = true;
        assert_eq!(found(&fleet, "unheard"), Err(NoModel::Unknown), "a source lists any address");
        let alias = |fleet: &FleetSnapshot, to: &str| {
            let mut request =
                ApiRequest { model: "chat".into(), has_model: true, ..ApiRequest::default() };
            request.rename(to);
            model(fleet, Endpoint::Completions, &request).map(|(_, model)| model.name.to_string())
        };
        assert_eq!(alias(&fleet, "unheard"), Err(NoModel::NoneYet));
        assert_eq!(alias(&fleet, "m:8b").as_deref(), Ok("m:8b"));
        fleet.serving.is_incomplete = false;
        assert_eq!(alias(&fleet, "unheard"), Err(NoModel::Unknown));
    }
}

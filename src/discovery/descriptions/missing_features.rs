//! Features that a worker lacks for exact routing, with advice. Sans-IO.

use super::description::{DescribedRank, Description};
use crate::model_text::FoundText;
use forebay_fleet::worker::{Dialect, Role};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A missing or wrong feature.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingFeature {
    /// The missing or wrong feature.
    pub what: String,
    /// Advice for the operator.
    pub help: String,
}

impl MissingFeature {
    pub(crate) fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }
}

/// Features that policy `kv` misses on a worker.
#[must_use]
pub fn lacks(
    description: &Description,
    texts: &BTreeMap<Arc<str>, FoundText>,
) -> Vec<MissingFeature> {
    let mut lacks = Vec::new();
    let reported = &description.reported;
    for (model, found) in texts {
        let is_served = !description.listing.is_nothing() && reported.may_serve(model);
        if found.text.is_none() && is_served {
            let what = format!("no tokenizer for model `{model}`: its prompts are not matched");
            lacks.push(MissingFeature::new(what, format!("set `model_dir` ({})", found.note)));
        }
    }
    // The engine knows nothing of further ranks.
    let ranks = description.ranks.iter().take(reported.rank_count.unwrap_or(usize::MAX));
    let (caching, events) = match description.dialect {
        // Advice for another engine misleads.
        dialect if reported.dialect.is_some_and(|own| own != dialect) => return lacks,
        Dialect::Vllm => VLLM,
        // Its decode workers take the KV of each prompt from a prefill worker.
        Dialect::Sglang if description.role == Role::Decode => return lacks,
        Dialect::Sglang => SGLANG,
        // For an unknown engine no advice is possible.
        Dialect::Openai => return lacks,
    };
    let some = |is: &dyn Fn(&DescribedRank) -> bool| ranks.clone().any(is);
    if some(&|rank| rank.reuses_prefixes == Some(false)) {
        let what = "prefix caching is off: the engine computes each prompt anew";
        lacks.push(MissingFeature::new(what, caching));
    }
    if some(&|rank| rank.events.is_none()) {
        let what = "no KV events: what its caches hold is guessed";
        lacks.push(MissingFeature::new(what, events));
    } else if some(&|rank| rank.events.as_ref().is_some_and(|events| events.replay.is_none())) {
        let what = "no replay of KV events: a lost batch empties what is known of the cache";
        let help = "add `replay_endpoint` to --kv-events-config; set `replay` of the worker too, \
                    if its engine announces no events (vLLM before 0.31, SGLang before 0.5.13)";
        lacks.push(MissingFeature::new(what, help));
    }
    lacks
}

/// Advice to enable prefix caching, and to publish KV events.
const VLLM: (&str, &str) = (
    "start vLLM without --no-enable-prefix-caching",
    "start vLLM with --kv-events-config '{\"enable_kv_cache_events\":true,\
     \"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\
     \"replay_endpoint\":\"tcp://*:5657\"}'; vLLM older than 0.31 needs `kv_events` too",
);
const SGLANG: (&str, &str) = (
    "start SGLang without --disable-radix-cache",
    "start SGLang with --kv-events-config '{\"publisher\":\"zmq\",\
     \"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5657\"}'",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptions::description::{Listing, ServerTraits};
    use crate::descriptions::engine_report::EngineReport;
    use crate::descriptions::event_announcement::EventAnnouncement;
    use forebay_zmq::ZmqEndpoint;

    fn described(rank: DescribedRank) -> Description {
        Description {
            dialect: Dialect::Vllm,
            models: Vec::new(),
            listing: Listing::Any,
            ranks: vec![rank],
            role: Role::Both,
            source: None,
            server: ServerTraits::default(),
            reported: EngineReport::default(),
        }
    }

    fn whats(description: &Description) -> Vec<String> {
        lacks(description, &BTreeMap::new()).into_iter().map(|lack| lack.what).collect()
    }

    #[test]
    fn each_lack_is_named_once() {
        let bare = DescribedRank { reuses_prefixes: Some(false), ..DescribedRank::default() };
        let found = whats(&described(bare));
        assert!(found[0].contains("prefix caching is off"), "{found:?}");
        assert!(found.len() == 2 && found[1].contains("no KV events"), "{found:?}");
        let endpoint = ZmqEndpoint::parse("tcp://127.0.0.1:1", "h").unwrap();
        let announced = EventAnnouncement::at(endpoint);
        let rank = DescribedRank {
            events: Some(announced.clone()),
            reuses_prefixes: Some(true),
            ..DescribedRank::default()
        };
        let found = whats(&described(rank.clone()));
        assert!(found.len() == 1 && found[0].contains("no replay"), "{found:?}");
        let replay = ZmqEndpoint::parse("tcp://127.0.0.1:2", "h").unwrap();
        let events = Some(EventAnnouncement { replay: Some(replay), ..announced });
        assert_eq!(whats(&described(DescribedRank { events, ..rank })), [""; 0]);
    }

    #[test]
    fn an_unknown_engine_is_not_blamed() {
        let bare = DescribedRank { reuses_prefixes: Some(false), ..DescribedRank::default() };
        let plain = Description { dialect: Dialect::Openai, ..described(bare) };
        assert_eq!(whats(&plain), [""; 0]);
    }

    /// Issue 39: doctor wanted KV events of a worker that caches no prompt.
    #[test]
    fn a_decode_worker_of_sglang_needs_no_events() {
        let bare = DescribedRank { reuses_prefixes: Some(false), ..DescribedRank::default() };
        let found =
            |dialect, role| whats(&Description { dialect, role, ..described(bare.clone()) }).len();
        assert_eq!(found(Dialect::Sglang, Role::Decode), 0);
        assert_eq!(found(Dialect::Sglang, Role::Prefill), 2);
        assert_eq!(found(Dialect::Vllm, Role::Decode), 2, "it may serve whole requests");
    }

    #[test]
    fn a_model_without_a_tokenizer_says_why() {
        let text = FoundText { note: "no files".to_owned(), ..FoundText::default() };
        let texts = BTreeMap::from([(Arc::from("m"), text)]);
        let found = lacks(&described(DescribedRank::default()), &texts);
        assert!(found[0].what.contains("`m`") && found[0].help.contains("no files"), "{found:?}");
    }
}

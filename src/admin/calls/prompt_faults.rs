//! Ranks of engines that write prompts unlike the other engines of their model: with another
//! tokenizer or chat template. Such an engine serves, and its caches stay unseen.

use forebay_base::RankIndex;
use forebay_fleet::trust::{RequestShape, trust_group};
use forebay_fleet::worker::{FleetSnapshot, Model, WorkerState};
use forebay_kv_events::{FeedStatus, TextFit};

/// Why prompts are not matched on the rank as on other ranks, and what to do. A worker that is not
/// up has its own reason.
pub(crate) fn prompt_fault(
    fleet: &FleetSnapshot,
    rank: RankIndex,
    feed: Option<&FeedStatus>,
) -> Option<String> {
    fleet.rank(rank).filter(|(_, worker)| worker.state == WorkerState::Up)?;
    if feed.and_then(FeedStatus::text) == Some(TextFit::Mismatch) {
        return Some(
            "wrong tokenizer: its KV events hold ids that the vocabulary lacks; set `model_dir` of \
             the worker to the files of the model that it serves"
                .to_owned(),
        );
    }
    let model = odd_model(fleet, rank)?;
    Some(format!(
        "other prompts: its engine finds more of `{}` in its cache than its KV events predict, \
         unlike other engines; compare chat template, tokenizer, version and flags with the other \
         workers, and `kv_events` with its --kv-events-config",
        model.name
    ))
}

/// The first model with prompts that the rank's engine writes unlike the engines of other workers,
/// by the verdicts about predictions.
fn odd_model(fleet: &FleetSnapshot, rank: RankIndex) -> Option<&Model> {
    let trusts = &fleet.serving.trusts;
    if trusts.is_empty() {
        return None;
    }
    let group = trust_group(fleet.ranks.get(rank.index())?.worker);
    let mut served = fleet.models.iter().filter(|model| model.ranks.contains(&rank));
    let is_odd = |model: &&Model| {
        let mut shapes = RequestShape::ALL.into_iter();
        shapes.any(|shape| trusts.of(&model.name, shape).sets_apart(group))
    };
    served.find(is_odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::WorkerIndex;
    use forebay_fleet::trust::{GuessUse, ModelTrust, ModelTrusts, ShapeTrust};
    use forebay_fleet::worker::test_support;
    use std::sync::Arc;

    /// Issue 39: only the log named an engine with a chat template unlike that of its siblings.
    #[test]
    fn only_the_rank_that_differs_from_the_others_has_the_fault() {
        let mut fleet = test_support::three_ranks();
        fleet.workers.push(fleet.workers[0].clone());
        fleet.ranks[1].worker = WorkerIndex(1);
        let mut verdict = |counted_groups, is_logged| {
            let guesses = GuessUse::Counted;
            let shape = ShapeTrust { guesses, counted_groups, is_logged, ..ShapeTrust::default() };
            let mut model = ModelTrust::default();
            model.set(RequestShape::Chat, shape);
            let mut trusts = ModelTrusts::default();
            trusts.add(&Arc::from("base"), model);
            fleet.serving.trusts = trusts;
            [0, 1, 2].map(|rank| prompt_fault(&fleet, RankIndex(rank), None))
        };
        let [first, second, third] = verdict(0b10, true);
        assert!(second.as_ref().is_some_and(|fault| fault.contains("`base`")), "{second:?}");
        assert_eq!((first, third), (None, None));
        assert_eq!(verdict(0b10, false), [const { None }; 3], "the first signs may be chance");
        assert_eq!(verdict(u8::MAX, true), [const { None }; 3], "no engine differs");
        fleet.workers[1].state = WorkerState::Down;
        assert_eq!(prompt_fault(&fleet, RankIndex(1), None), None);
    }
}

//! Concerns of the fleet: what is wrong while the router serves, each with its names.

use crate::calls::prompt_faults::prompt_fault;
use crate::calls::rank_faults::{RankTrouble, feed_fault, has_failed_requests};
use crate::calls::roles::engine_count;
use crate::calls::workers::models_of;
use crate::sources::FeedsView;
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex, WorkerIndex};
use forebay_board::{LoadBoard, RankLoad};
use forebay_fleet::worker::{EngineLosses, FleetSnapshot, Model, ModelKind, WorkerState, pools};
use std::collections::BTreeSet;
use std::path::Path;

/// Workers or models that a concern names; it counts further ones.
const NAMES_MAX: usize = 3;

/// The first names of a concern, and the number of further names. Each name stands once.
fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    let shown = names.get(..NAMES_MAX).unwrap_or(&names).join(", ");
    let more = names.len().saturating_sub(NAMES_MAX);
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Workers that should serve and do not. A worker that an operator drains is no fault, and a worker
/// has no state before its first check has ended.
pub(super) fn missing_workers(
    fleet: &FleetSnapshot,
    has_failed: impl Fn(WorkerIndex) -> bool,
) -> Option<String> {
    let is_missing = |index, state| match state {
        WorkerState::Down => true,
        WorkerState::Unknown => has_failed(index),
        WorkerState::Up
        | WorkerState::Draining { .. }
        | WorkerState::Unused
        | WorkerState::Gone => false,
    };
    let missing =
        fleet.present_workers().filter(|(index, worker)| is_missing(*index, worker.state));
    let names: Vec<&str> = missing.map(|(_, worker)| &*worker.name).collect();
    let all = engine_count(fleet);
    let count = names.len();
    (count > 0).then(|| format!("{count} of {all} workers not up: {}", named(names)))
}

/// Models without a worker, and the workers that served them and list other models now.
pub(super) fn dropped_models(fleet: &FleetSnapshot) -> Option<String> {
    let dropped = fleet.models.iter().filter_map(|model| match model.kind {
        ModelKind::Dropped(by) => Some((&*model.name, by)),
        _ => None,
    });
    let (names, by): (Vec<&str>, BTreeSet<WorkerIndex>) = dropped.unzip();
    let is_by = |rank: &RankIndex| {
        fleet.ranks.get(rank.index()).is_some_and(|rank| by.contains(&rank.worker))
    };
    let listed = fleet.models.iter().filter(|model| model.ranks.iter().any(is_by));
    let listed = named(listed.map(|model| &*model.name));
    let workers = by.iter().filter_map(|by| fleet.workers.get(by.index()));
    let workers = named(workers.map(|worker| &*worker.name));
    let verb = if by.len() == 1 { "lists" } else { "list" };
    let count = names.len();
    let models = named(names);
    let help = EngineLosses::MODELS_HELP;
    let now = format!("{workers} {verb} {listed}; {help}");
    (count > 0).then(|| format!("no worker serves {models} any more; {now}"))
}

/// Workers that are up and serve other models than before, while other workers serve the models.
pub(super) fn lost_models(fleet: &FleetSnapshot) -> Option<String> {
    let is_served =
        |name: &str| fleet.models.iter().any(|model| &*model.name == name && model.is_known());
    let up = fleet.present().filter(|(_, _, worker)| worker.state == WorkerState::Up);
    let lost = up.flat_map(|(_, rank, worker)| {
        let lost = rank.losses.iter().flat_map(|losses| &losses.models);
        let lost = lost.filter(|name| is_served(name));
        lost.map(move |name| (&**name, &*worker.name, rank.worker))
    });
    let lost: Vec<(&str, &str, WorkerIndex)> = lost.collect();
    let by: BTreeSet<WorkerIndex> = lost.iter().map(|(.., by)| *by).collect();
    let models = named(lost.iter().map(|(name, ..)| *name));
    let workers = named(lost.iter().map(|(_, worker, _)| *worker));
    let now = named(by.iter().flat_map(|by| models_of(fleet, *by)));
    let help = EngineLosses::MODELS_HELP;
    (!lost.is_empty()).then(|| format!("{workers} serves {now} in place of {models}; {help}"))
}

/// Models of which each rank is paused, though its worker is up: ejected, paused for failures, or
/// of an engine that sleeps. Their requests wait, or go to ranks that fail them.
pub(super) fn paused_models(fleet: &FleetSnapshot, board: &LoadBoard) -> Option<String> {
    let is_up = |rank: &&RankIndex| {
        fleet.rank(**rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    let is_paused = |index: &RankIndex| {
        let sleeps = fleet.rank(*index).is_some_and(|(rank, _)| rank.room.is_closed());
        let load = board.rank(*index);
        sleeps || load.is_some_and(RankLoad::is_restricted)
    };
    let served = fleet.models.iter().filter(|model| model.ranks.iter().any(|rank| is_up(&rank)));
    let paused = served.clone().filter(|model| model.ranks.iter().filter(is_up).all(is_paused));
    let names: Vec<&str> = paused.map(|model| &*model.name).collect();
    let all = served.count();
    let count = names.len();
    (count > 0).then(|| {
        format!("every rank of {count} of {all} models is paused or asleep: {}", named(names))
    })
}

/// Ranks of workers that are up, on which requests fail. Paused ranks take capacity although the
/// model has further ranks.
pub(super) fn troubled_ranks(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    now: NanosSinceStart,
) -> Vec<String> {
    let lost = ranks_of_failing_models(fleet, board);
    let up = fleet.present().filter(|(_, _, worker)| worker.state == WorkerState::Up);
    let troubles = up.filter_map(|(index, _, worker)| {
        let load = board.rank(index)?;
        let trouble = match RankTrouble::of(load, now) {
            RankTrouble::None if lost.contains(&index) => RankTrouble::Failing,
            trouble => trouble,
        };
        // An ejection has a reason of its own.
        let held = load.held().filter(|held| held.score > 0 && load.ejected().is_none());
        Some((trouble, held.map_or(0, |held| held.status), &*worker.name))
    });
    let troubles: Vec<(RankTrouble, u16, &str)> = troubles.collect();
    let all = troubles.len();
    let counted = |wanted, what: &str| {
        let found = || troubles.iter().filter(|(trouble, ..)| *trouble == wanted);
        let names: Vec<&str> = found().map(|(.., name)| *name).collect();
        let statuses: BTreeSet<u16> =
            found().map(|(_, status, _)| *status).filter(|status| *status > 0).collect();
        let count = names.len();
        let with = statuses_in_words(&statuses);
        (count > 0).then(|| format!("{count} of {all} ranks {what}{with}: {}", named(names)))
    };
    let kinds = [
        (RankTrouble::Paused, "paused, requests failed there"),
        (RankTrouble::OnTrial, "on trial, requests failed there"),
        (RankTrouble::Failing, "fail requests"),
    ];
    kinds.into_iter().filter_map(|(trouble, what)| counted(trouble, what)).collect()
}

/// ` with 401, 500`; empty without a status.
fn statuses_in_words(statuses: &BTreeSet<u16>) -> String {
    let words: Vec<String> = statuses.iter().take(NAMES_MAX).map(u16::to_string).collect();
    if words.is_empty() { String::new() } else { format!(" with {}", words.join(", ")) }
}

/// Ranks that are up, of models that no such rank serves: requests fail on each of them. A single
/// failing rank proves less: a caller may have caused its failures.
fn ranks_of_failing_models(fleet: &FleetSnapshot, board: &LoadBoard) -> BTreeSet<RankIndex> {
    let is_up = |rank: &RankIndex| {
        fleet.rank(*rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    let fails = |rank: &RankIndex| board.rank(*rank).is_some_and(has_failed_requests);
    let up =
        |model: &Model| -> Vec<RankIndex> { model.ranks.iter().copied().filter(is_up).collect() };
    let models = fleet.models.iter().map(up);
    models.filter(|ranks| ranks.iter().all(fails)).flatten().collect()
}

/// Ranks of workers that are up, without their KV events. `/workers` has the reasons.
#[must_use]
pub fn missing_feeds(fleet: &FleetSnapshot, feeds: &FeedsView<'_>) -> Option<String> {
    let up = fleet.present().filter(|(_, _, worker)| worker.state == WorkerState::Up);
    let fed = up.filter_map(|(index, rank, worker)| {
        let has_lost = rank.lost_kv_events().is_some();
        let feed = feeds.status(index);
        let is_missing = has_lost || feed.and_then(feed_fault).is_some();
        (has_lost || feed.is_some()).then_some((is_missing, &*worker.name))
    });
    let fed: Vec<(bool, &str)> = fed.collect();
    let missing = fed.iter().filter(|(is_missing, _)| *is_missing);
    let names: Vec<&str> = missing.map(|(_, name)| *name).collect();
    let count = names.len();
    let all = fed.len();
    (count > 0).then(|| format!("{count} of {all} ranks have no KV events: {}", named(names)))
}

/// Ranks of workers that are up, with KV events that may belong to another rank.
#[must_use]
pub fn suspect_feeds(fleet: &FleetSnapshot) -> Option<String> {
    let up = fleet.present().filter(|(_, _, worker)| worker.state == WorkerState::Up);
    let up: Vec<_> = up.collect();
    let all = up.len();
    let suspect = up.iter().filter(|(_, rank, _)| rank.feed_suspicion.is_some());
    let names: Vec<&str> = suspect.map(|(_, _, worker)| &*worker.name).collect();
    let count = names.len();
    (count > 0).then(|| format!("{count} of {all} ranks have suspect KV events: {}", named(names)))
}

/// Ranks of workers that are up, of engines that write prompts unlike the other engines.
#[must_use]
pub fn odd_prompts(fleet: &FleetSnapshot, feeds: &FeedsView<'_>) -> Option<String> {
    let up = || fleet.present().filter(|(_, _, worker)| worker.state == WorkerState::Up);
    let is_odd = |index| prompt_fault(fleet, index, feeds.status(index)).is_some();
    let odd = up().filter(|(index, ..)| is_odd(*index));
    let names: Vec<&str> = odd.map(|(_, _, worker)| &*worker.name).collect();
    let count = names.len();
    let all = up().count();
    let what = "have another tokenizer or chat template";
    (count > 0).then(|| format!("{count} of {all} ranks {what}: {}", named(names)))
}

/// A file of API keys without a key, where clients have no other way in.
#[must_use]
pub fn locked_out(fleet: &FleetSnapshot) -> Option<String> {
    let keys = fleet.tenants.keys().filter(|keys| keys.keys().is_empty());
    keys.filter(|_| fleet.tenants.tokens().is_none())?;
    let file = fleet.config.api_keys.as_deref().and_then(Path::file_name).unwrap_or_default();
    Some(format!("`api_keys` {} holds no key: all requests get 401", file.display()))
}

/// Open rejection windows, with their models.
pub(super) fn open_windows(
    fleet: &FleetSnapshot,
    is_open: impl Fn(PoolIndex) -> bool,
) -> Option<String> {
    let open: Vec<_> =
        fleet.used_pools().map(|(pool, _)| pool).filter(|pool| is_open(*pool)).collect();
    let count = open.len();
    let all = fleet.used_pools().count();
    let names = open.into_iter().flat_map(|pool| pools::models(fleet, pool));
    let names: Vec<&str> = names.map(|(_, model)| &*model.name).collect();
    (count > 0).then(|| format!("rejection window of {count} of {all} pools: {}", named(names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::workers::rank_fault;
    use crate::readiness::RouterReadiness;
    use forebay_base::ModelIndex;
    use forebay_board::{BreakerRules, EjectReason, FailureScope, FailureWeight, RankFailure};
    use forebay_fleet::worker::test_support::{self, suspicion, two_pools};
    use forebay_fleet::worker::{Rank, Requester, RoomLimits, Worker};
    use forebay_kv_events::FeedCounters;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    /// N7: engines that came back with another model raised no concern.
    #[test]
    fn a_model_that_workers_list_no_longer_is_a_concern() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let lost = test_support::model("tiny", &[]);
        let kind = ModelKind::Dropped(WorkerIndex(0));
        fleet.models.extend([lost.clone(), Model { kind, ..lost }]);
        let now = NanosSinceStart(1);
        let found = RouterReadiness::new(Vec::new(), None, &fleet, |_| false, &board, now);
        let listed = "base, adapter, other";
        let wanted = format!("no worker serves tiny any more; w lists {listed}; start it with");
        assert_eq!(found.concerns.len(), 1, "{:?}", found.concerns);
        assert!(found.concerns[0].starts_with(&wanted), "{:?}", found.concerns);
    }

    /// M1: an engine that came back with another model was silent while a sibling served the model.
    #[test]
    fn a_worker_with_another_model_is_a_concern_and_a_fault_of_the_rank() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let now = NanosSinceStart(1);
        let name = Arc::clone(&fleet.workers[0].name);
        let losses = EngineLosses { models: vec!["base".into()], ..EngineLosses::default() };
        fleet.ranks[0].losses = Some(losses.into());
        let found = lost_models(&fleet).unwrap();
        let wanted = format!("{name} serves base, adapter, other in place of base; start it");
        assert!(found.starts_with(&wanted), "{found}");
        let load = board.rank(RankIndex(0)).unwrap();
        let fault =
            |fleet: &FleetSnapshot| rank_fault(load, &fleet.ranks[0], &fleet.workers[0], None, now);
        assert!(fault(&fleet).unwrap().starts_with("its engine serves base no more; start it"));
        fleet.workers[0].state = WorkerState::Down;
        assert_eq!((lost_models(&fleet), fault(&fleet)), (None, None));
    }

    /// Issue 39: suspect KV events were a line of the log alone. A drained worker is no concern.
    #[test]
    fn suspect_kv_events_are_a_concern_and_a_fault_of_the_rank() {
        let mut fleet = two_pools();
        assert_eq!(suspect_feeds(&fleet), None);
        fleet.ranks[0].feed_suspicion = Some(Arc::new(suspicion(None)));
        let all = fleet.present().count();
        let name = &fleet.workers[0].name;
        let wanted = format!("1 of {all} ranks have suspect KV events: {name}");
        assert_eq!(suspect_feeds(&fleet), Some(wanted));
        let board = LoadBoard::new();
        let fault = |rank: &Rank, worker: &Worker| {
            rank_fault(board.rank(RankIndex(0)).unwrap(), rank, worker, None, NanosSinceStart(1))
        };
        let doubled = fault(&fleet.ranks[0], &fleet.workers[0]).unwrap();
        assert!(doubled.contains("tcp://h:9 is followed for b too; set `kv_events`"), "{doubled}");
        fleet.ranks[0].feed_suspicion = Some(Arc::new(suspicion(Some("tcp://h:7"))));
        let crossed = fault(&fleet.ranks[0], &fleet.workers[0]).unwrap();
        assert!(crossed.contains("KV events of b") && crossed.contains("tcp://h:7"), "{crossed}");
        assert_eq!(fault(&fleet.ranks[1], &fleet.workers[0]), None);
        fleet.workers[0].state = WorkerState::Draining { answers: false, moves: false };
        assert_eq!(suspect_feeds(&fleet), None);
        assert_eq!(fault(&fleet.ranks[0], &fleet.workers[0]), None);
    }

    /// M1: a rank whose engine announces its KV events no more has no feed, and was silent.
    #[test]
    fn lost_kv_events_are_a_concern_and_a_fault_of_the_rank() {
        let mut fleet = two_pools();
        let counters = FeedCounters::default();
        let feeds = FeedsView { counters: &counters, statuses: HashMap::new(), pools: Vec::new() };
        assert_eq!(missing_feeds(&fleet, &feeds), None);
        let kv_events = Some("tcp://h:9".into());
        let losses = EngineLosses { kv_events, ..EngineLosses::default() };
        fleet.ranks[0].losses = Some(losses.into());
        let name = Arc::clone(&fleet.workers[0].name);
        let wanted = format!("1 of 1 ranks have no KV events: {name}");
        assert_eq!(missing_feeds(&fleet, &feeds), Some(wanted));
        let board = LoadBoard::new();
        let load = board.rank(RankIndex(0)).unwrap();
        let fault = |fleet: &FleetSnapshot| {
            let now = NanosSinceStart(1);
            rank_fault(load, &fleet.ranks[0], &fleet.workers[0], None, now)
        };
        assert!(fault(&fleet).unwrap().contains("--kv-events-config"), "{:?}", fault(&fleet));
        fleet.workers[0].state = WorkerState::Down;
        assert_eq!((missing_feeds(&fleet, &feeds), fault(&fleet)), (None, None));
    }

    /// M1: for ten seconds, engines that refused each request were no concern. A rank with a
    /// sibling that serves is none after a refusal: a caller may cause that.
    #[test]
    fn a_model_of_which_each_rank_fails_requests_is_a_concern_at_once() {
        let fleet = two_pools();
        let board = LoadBoard::new();
        let now = NanosSinceStart(1);
        let requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };
        let concerns =
            || RouterReadiness::new(Vec::new(), None, &fleet, |_| false, &board, now).concerns;
        let fail = |rank, status| {
            let failure = RankFailure {
                rank,
                requester,
                scope: FailureScope::Caller,
                weight: FailureWeight::Refused,
                status,
                is_trial: false,
            };
            let rules = BreakerRules { failures: 3, open: Duration::from_secs(1) };
            board.hold_against(failure, std::iter::empty(), rules, now);
        };
        let ranks = &fleet.models[0].ranks;
        let (last, others) = ranks.split_last().unwrap();
        others.iter().for_each(|rank| fail(*rank, 401));
        assert_eq!(concerns(), Vec::<String>::new(), "a rank is left");
        fail(*last, 404);
        let all = fleet.present().count();
        let names = ranks.iter().map(|rank| &*fleet.rank(*rank).unwrap().1.name);
        let wanted =
            format!("{} of {all} ranks fail requests with 401, 404: {}", ranks.len(), named(names));
        assert_eq!(concerns(), [wanted]);
        board.rank(*last).unwrap().succeeded(requester);
        assert_eq!(concerns(), Vec::<String>::new(), "the model is served");
        fail(*last, 422);
        assert_eq!(concerns(), Vec::<String>::new(), "the request's own fault");
        board.rank(*last).unwrap().succeeded(requester);
        fail(*last, 404);
        assert_eq!(concerns(), Vec::<String>::new(), "a rank that has served: mostly the caller's");
        fail(*last, 500);
        assert_eq!(concerns().len(), 1, "no refusal");
        board.rank(*last).unwrap().forget_failures();
        fail(*last, 404);
        assert_eq!(concerns().len(), 1, "another engine");
    }

    /// M1: an engine by two names counted twice.
    #[test]
    fn an_engine_by_two_names_counts_once() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let mut twin = fleet.workers[0].clone();
        twin.name = "twin".into();
        twin.state = WorkerState::Unused;
        fleet.workers.push(twin);
        fleet.workers[0].state = WorkerState::Down;
        let all = fleet.workers.len();
        let now = NanosSinceStart(1);
        let found = RouterReadiness::new(Vec::new(), None, &fleet, |_| false, &board, now).concerns;
        assert!(found[0].starts_with(&format!("1 of {} workers not up: ", all - 1)), "{found:?}");
    }

    /// M1: a worker that joins is no fault before its first check has ended.
    #[test]
    fn a_worker_is_missing_once_a_check_has_failed() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let all = fleet.workers.len();
        let name = fleet.workers[0].name.to_string();
        let concerns = |fleet: &FleetSnapshot, has_failed| {
            let failed = |_| has_failed;
            RouterReadiness::new(Vec::new(), None, fleet, failed, &board, NanosSinceStart(1))
                .concerns
        };
        fleet.workers[0].state = WorkerState::Unknown;
        assert_eq!(concerns(&fleet, false), Vec::<String>::new());
        assert_eq!(concerns(&fleet, true), [format!("1 of {all} workers not up: {name}")]);
        fleet.workers[0].state = WorkerState::Draining { answers: false, moves: false };
        let stopped = "the operator drained it, and has stopped the engine";
        assert_eq!(concerns(&fleet, true), Vec::<String>::new(), "{stopped}");
    }

    /// Ejected or asleep: a model with any other rank has capacity.
    #[test]
    fn a_model_of_which_each_rank_is_paused_is_a_concern() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let concerns = |fleet: &FleetSnapshot| {
            let now = NanosSinceStart(1);
            RouterReadiness::new(Vec::new(), None, fleet, |_| false, &board, now).concerns
        };
        assert_eq!(concerns(&fleet), Vec::<String>::new());
        let ranks = fleet.models[0].ranks.clone();
        let (last, others) = ranks.split_last().unwrap();
        for rank in others {
            board.rank(*rank).unwrap().eject(EjectReason::Stalled, NanosSinceStart(u64::MAX));
        }
        let all = fleet.present().count();
        let names = others.iter().map(|rank| &*fleet.rank(*rank).unwrap().1.name);
        let paused = "ranks paused, requests failed there";
        let paused = format!("{} of {all} {paused}: {}", others.len(), named(names));
        assert_eq!(concerns(&fleet), [paused.as_str()], "a rank is left");
        fleet.ranks[last.index()].room = RoomLimits::CLOSED;
        // `base` with its adapter, of the served models.
        let wanted = "every rank of 2 of 3 models is paused or asleep: base, adapter";
        assert_eq!(concerns(&fleet), [wanted, &paused]);
    }
}

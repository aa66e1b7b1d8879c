//! RouterReadiness of the router: ready, degraded, or not ready, with the reasons.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LoadBoard, Windows};
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use serde_json::{Value, json};
use std::time::Duration;

/// Whether the router serves, and how well.
#[derive(Debug, Default)]
pub struct RouterReadiness {
    /// Why the router serves no requests; empty if it does.
    pub reasons: Vec<String>,
    /// Faults with which the router serves on. Without names: a probe without a token sees them.
    pub concerns: Vec<String>,
}

impl RouterReadiness {
    /// With the concerns of the fleet, which are workers that are not up, models without capacity
    /// and open rejection windows, and `further` concerns.
    #[must_use]
    pub fn new(
        reasons: Vec<String>,
        further: impl IntoIterator<Item = String>,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Self {
        let windows = open_windows(fleet, board.windows(), now);
        let concerns = missing_workers(fleet).into_iter().chain(paused_models(fleet, board));
        let concerns = concerns.chain(windows);
        Self { reasons, concerns: concerns.chain(further).collect() }
    }

    /// Body of `GET /readyz`.
    pub(crate) fn shown(&self) -> Value {
        let Self { reasons, concerns } = self;
        json!({ "ready": reasons.is_empty(), "reasons": reasons, "concerns": concerns })
    }
}

/// Workers that a concern names; it counts further workers.
const NAMED_WORKERS_MAX: usize = 3;

/// Workers that should serve and do not. A worker that an operator drains is no fault.
fn missing_workers(fleet: &FleetSnapshot) -> Option<String> {
    let is_missing = |state: WorkerState| {
        matches!(
            state,
            WorkerState::Unknown | WorkerState::Down | WorkerState::Draining { answers: false, .. }
        )
    };
    let missing = fleet.present_workers().filter(|(_, worker)| is_missing(worker.state));
    let names: Vec<&str> = missing.map(|(_, worker)| &*worker.name).collect();
    let all = fleet.present_workers().count();
    let shown = names.get(..NAMED_WORKERS_MAX).unwrap_or(&names).join(", ");
    let rest = names.len().saturating_sub(NAMED_WORKERS_MAX);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let count = names.len();
    (count > 0).then(|| format!("{count} of {all} workers not up: {shown}{more}"))
}

/// Models of which each rank is paused, though its worker is up: ejected, paused for failures, or
/// of an engine that sleeps. Their requests wait, or go to ranks that fail them.
fn paused_models(fleet: &FleetSnapshot, board: &LoadBoard) -> Option<String> {
    let is_up = |rank: &&RankIndex| {
        fleet.rank(**rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
    };
    let is_paused = |index: &RankIndex| {
        let sleeps = fleet.rank(*index).is_some_and(|(rank, _)| rank.room.is_closed());
        let load = board.rank(*index);
        sleeps || load.is_some_and(|load| load.is_open() || load.ejected().is_some())
    };
    let served = fleet.models.iter().filter(|model| model.ranks.iter().any(|rank| is_up(&rank)));
    let paused = served.clone().filter(|model| model.ranks.iter().filter(is_up).all(is_paused));
    let count = paused.count();
    let all = served.count();
    (count > 0).then(|| format!("every rank of {count} of {all} models is paused or asleep"))
}

/// Days before the end of a certificate in which it is a concern.
const CERTIFICATE_DAYS: u64 = 14;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// A certificate of the client port that has expired or expires soon. Both times count since 1970.
#[must_use]
pub fn expiring_certificate(expires_at: Duration, now: Duration) -> Option<String> {
    let Some(left) = expires_at.checked_sub(now) else {
        return Some("the certificate has expired".to_owned());
    };
    let days = left.as_secs() / SECONDS_PER_DAY;
    (days < CERTIFICATE_DAYS).then(|| format!("the certificate expires in {days} days"))
}

/// Models with an open rejection window.
fn open_windows(fleet: &FleetSnapshot, windows: &Windows, now: NanosSinceStart) -> Option<String> {
    let open = fleet.used_pools().filter(|(pool, _)| windows.open_until(*pool, now).is_some());
    let open = open.count();
    let all = fleet.used_pools().count();
    (open > 0).then(|| format!("rejection window open in {open} of {all} pools"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::PoolIndex;
    use forebay_board::{EjectReason, WindowOrigin};
    use forebay_fleet::worker::RoomLimits;
    use forebay_fleet::worker::test_support::two_pools;

    #[test]
    fn a_certificate_is_a_concern_for_two_weeks() {
        let day = |days: u64| Duration::from_secs(days * SECONDS_PER_DAY);
        assert_eq!(expiring_certificate(day(114), day(100)), None);
        let soon = expiring_certificate(day(113), day(100)).unwrap();
        assert_eq!(soon, "the certificate expires in 13 days");
        let past = expiring_certificate(day(99), day(100)).unwrap();
        assert_eq!(past, "the certificate has expired");
    }

    #[test]
    fn a_window_and_a_worker_that_is_down_are_concerns() {
        let now = NanosSinceStart(1);
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let concerns = |fleet: &FleetSnapshot| {
            RouterReadiness::new(Vec::new(), None, fleet, &board, now).concerns
        };
        assert_eq!(concerns(&fleet), Vec::<String>::new());
        board.windows().open(PoolIndex(0), WindowOrigin::Hand, now, NanosSinceStart(9));
        assert_eq!(concerns(&fleet), ["rejection window open in 1 of 2 pools"]);
        let all = fleet.workers.len();
        fleet.workers[0].state = WorkerState::Down;
        let name = &fleet.workers[0].name;
        let wanted = format!("1 of {all} workers not up: {name}");
        assert_eq!(concerns(&fleet)[0], wanted);
        fleet.workers[0].state = WorkerState::Draining { answers: true, moves: false };
        assert_eq!(concerns(&fleet).len(), 1);
    }

    /// Ejected or asleep: a model with any other rank has capacity.
    #[test]
    fn a_model_of_which_each_rank_is_paused_is_a_concern() {
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let concerns = |fleet: &FleetSnapshot| {
            RouterReadiness::new(Vec::new(), None, fleet, &board, NanosSinceStart(1)).concerns
        };
        assert_eq!(concerns(&fleet), Vec::<String>::new());
        let ranks = fleet.models[0].ranks.clone();
        let (last, others) = ranks.split_last().unwrap();
        for rank in others {
            board.rank(*rank).unwrap().eject(EjectReason::Stalled, NanosSinceStart(u64::MAX));
        }
        assert_eq!(concerns(&fleet), Vec::<String>::new(), "a rank is left");
        fleet.ranks[last.index()].room = RoomLimits::CLOSED;
        // `base` with its adapter, of the served models.
        let wanted = "every rank of 2 of 3 models is paused or asleep";
        assert_eq!(concerns(&fleet), [wanted]);
    }
}

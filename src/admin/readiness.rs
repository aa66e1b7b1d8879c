//! RouterReadiness of the router: ready, degraded, or not ready, with the reasons.

use forebay_base::NanosSinceStart;
use forebay_board::Windows;
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use serde_json::{Value, json};

/// Whether the router serves, and how well.
#[derive(Debug, Default)]
pub struct RouterReadiness {
    /// Why the router serves no requests; empty if it does.
    pub reasons: Vec<String>,
    /// Faults with which the router serves on. Without names: a probe without a token sees them.
    pub concerns: Vec<String>,
}

impl RouterReadiness {
    /// With the concerns of the fleet, workers that are not up and open rejection windows, and
    /// `further` concerns.
    #[must_use]
    pub fn new(
        reasons: Vec<String>,
        further: impl IntoIterator<Item = String>,
        fleet: &FleetSnapshot,
        windows: &Windows,
        now: NanosSinceStart,
    ) -> Self {
        let concerns = missing_workers(fleet).into_iter().chain(open_windows(fleet, windows, now));
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
    use forebay_board::WindowOrigin;
    use forebay_fleet::worker::test_support::two_pools;

    #[test]
    fn a_window_and_a_worker_that_is_down_are_concerns() {
        let now = NanosSinceStart(1);
        let mut fleet = two_pools();
        let windows = Windows::new();
        let concerns = |fleet: &FleetSnapshot, windows: &Windows| {
            RouterReadiness::new(Vec::new(), None, fleet, windows, now).concerns
        };
        assert_eq!(concerns(&fleet, &windows), Vec::<String>::new());
        windows.open(PoolIndex(0), WindowOrigin::Hand, now, NanosSinceStart(9));
        assert_eq!(concerns(&fleet, &windows), ["rejection window open in 1 of 2 pools"]);
        let all = fleet.workers.len();
        fleet.workers[0].state = WorkerState::Down;
        let name = &fleet.workers[0].name;
        let wanted = format!("1 of {all} workers not up: {name}");
        assert_eq!(concerns(&fleet, &windows)[0], wanted);
        fleet.workers[0].state = WorkerState::Draining { answers: true, moves: false };
        assert_eq!(concerns(&fleet, &windows).len(), 1);
    }
}

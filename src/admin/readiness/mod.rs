//! Readiness of the router: ready, refusing by order, degraded, or not ready, with the reasons.

mod certificates;
mod concerns;

pub use self::certificates::PortCertificate;
pub use self::concerns::{locked_out, missing_feeds, odd_prompts, suspect_feeds};

use self::certificates::invalidity;
use self::concerns::{
    dropped_models, lost_models, missing_workers, open_windows, paused_models, troubled_ranks,
};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::LoadBoard;
use forebay_fleet::worker::FleetSnapshot;
use serde_json::{Value, json};
use std::time::Duration;

/// Whether the router serves, and how well.
#[derive(Debug, Default)]
pub struct RouterReadiness {
    /// Why the router serves no requests; empty if it does.
    pub reasons: Vec<String>,
    /// Faults with which the router serves on, each with the names of its workers or models.
    pub concerns: Vec<String>,
    /// Refusals that an operator ordered. An order is no fault.
    pub orders: Vec<String>,
    /// Certificates of the ports for clients and of the admin API, with their ends.
    pub certificates: Vec<PortCertificate>,
}

impl RouterReadiness {
    /// With the concerns of the fleet, which are workers that are not up, models without capacity
    /// and open rejection windows, and `further` concerns. Windows that an operator opened are
    /// orders. `has_failed`: a check of the worker has failed.
    #[must_use]
    pub fn new(
        reasons: Vec<String>,
        further: impl IntoIterator<Item = String>,
        fleet: &FleetSnapshot,
        has_failed: impl Fn(WorkerIndex) -> bool,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Self {
        let windows = board.windows();
        let is_hand = |pool| windows.open_by_hand_until(pool, now).is_some();
        let of_queues = |pool| windows.open_until(pool, now).is_some() && !is_hand(pool);
        let orders =
            open_windows(fleet, is_hand).map(|pools| format!("an operator opened the {pools}"));
        let of_queues = open_windows(fleet, of_queues).map(|pools| format!("open {pools}"));
        let missing = missing_workers(fleet, has_failed);
        let concerns = missing.into_iter().chain(dropped_models(fleet)).chain(lost_models(fleet));
        let concerns = concerns.chain(paused_models(fleet, board));
        let concerns = concerns.chain(troubled_ranks(fleet, board, now)).chain(of_queues);
        let concerns = concerns.chain(further).collect();
        let orders = orders.into_iter().collect();
        Self { reasons, concerns, orders, certificates: Vec::new() }
    }

    /// Adds the certificates of the ports. A certificate that is not valid yet, has expired or
    /// expires soon is a concern.
    /// `now` counts since 1970.
    #[must_use]
    pub fn with_certificates(mut self, certificates: Vec<PortCertificate>, now: Duration) -> Self {
        self.concerns.extend(certificates.iter().filter_map(|one| invalidity(one, now)));
        self.certificates = certificates;
        self
    }

    /// The certificates, for `/readyz` and the live page.
    pub(crate) fn shown_certificates(&self) -> Value {
        self.certificates.iter().map(PortCertificate::shown).collect()
    }

    /// The state in a word: the live page and `forebay top` have the same words.
    pub(crate) fn state(&self) -> &'static str {
        let Self { reasons, concerns, orders, .. } = self;
        match (reasons.is_empty(), concerns.is_empty(), orders.is_empty()) {
            (false, _, _) => "not ready",
            (true, false, _) => "degraded",
            (true, true, false) => "refusing",
            (true, true, true) => "ready",
        }
    }

    /// Body of `GET /readyz`.
    pub(crate) fn shown(&self) -> Value {
        let Self { reasons, concerns, orders, .. } = self;
        let certificates = self.shown_certificates();
        let ready = reasons.is_empty();
        json!({
            "ready": ready,
            "state": self.state(),
            "reasons": reasons,
            "concerns": concerns,
            "orders": orders,
            "certificates": certificates,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::PoolIndex;
    use forebay_board::WindowOrigin;
    use forebay_fleet::worker::WorkerState;
    use forebay_fleet::worker::test_support::two_pools;

    #[test]
    fn a_window_and_a_worker_that_is_down_are_concerns() {
        let now = NanosSinceStart(1);
        let mut fleet = two_pools();
        let board = LoadBoard::new();
        let concerns = |fleet: &FleetSnapshot| {
            RouterReadiness::new(Vec::new(), None, fleet, |_| false, &board, now).concerns
        };
        assert_eq!(concerns(&fleet), Vec::<String>::new());
        board.windows().open(PoolIndex(0), WindowOrigin::Here, now, NanosSinceStart(9));
        assert_eq!(concerns(&fleet), ["open rejection window of 1 of 2 pools: base, adapter"]);
        let all = fleet.workers.len();
        fleet.workers[0].state = WorkerState::Down;
        let name = &fleet.workers[0].name;
        let wanted = format!("1 of {all} workers not up: {name}");
        assert_eq!(concerns(&fleet)[0], wanted);
        fleet.workers[0].state = WorkerState::Draining { answers: true, moves: false };
        assert_eq!(concerns(&fleet).len(), 1);
    }

    /// M2: what an operator ordered is no fault: the router refuses, and is not degraded.
    #[test]
    fn a_window_by_hand_is_an_order() {
        let now = NanosSinceStart(1);
        let fleet = two_pools();
        let board = LoadBoard::new();
        let shown = |reasons: &[&str], further: Option<&str>| {
            let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            let further = further.map(str::to_owned);
            RouterReadiness::new(reasons, further, &fleet, |_| false, &board, now).shown()
        };
        assert_eq!(shown(&[], None)["state"], "ready");
        board.windows().open(PoolIndex(0), WindowOrigin::Hand, now, NanosSinceStart(9));
        // Of another router of the group: of the same pool, a window of an operator comes first.
        board.windows().open(PoolIndex(0), WindowOrigin::Elsewhere, now, NanosSinceStart(9));
        let hand = shown(&[], None);
        let order = "an operator opened the rejection window of 1 of 2 pools: base, adapter";
        assert_eq!((&hand["state"], &hand["orders"]), (&json!("refusing"), &json!([order])));
        assert_eq!((&hand["ready"], &hand["concerns"]), (&json!(true), &json!([])));
        assert_eq!(shown(&[], Some("a peer is lost"))["state"], "degraded");
        assert_eq!(shown(&["drains"], None)["state"], "not ready");
        board.windows().close(PoolIndex(0), WindowOrigin::Hand, now);
        assert_eq!(shown(&[], None)["state"], "degraded", "the other router has no room");
        board.windows().close(PoolIndex(0), WindowOrigin::Elsewhere, now);
        board.windows().open(PoolIndex(0), WindowOrigin::HandElsewhere, now, NanosSinceStart(9));
        assert_eq!(shown(&[], None), hand, "an operator of another router");
    }
}

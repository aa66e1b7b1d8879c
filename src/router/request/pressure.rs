//! Back pressure decisions: rejection windows, the refusal of a request that finds neither a rank
//! nor a queue, and its `Retry-After`.

use super::stages::Stages;
use super::stop::{self, FailedAttempt, Stop};
use crate::dispatch::RelayError;
use crate::queue::{Rejection, has_share, is_relieved};
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::admit::{BEFORE_JITTER_MAX, later_by_chance};
use forebay_board::{LoadBoard, QueueFull, WindowCause, WindowOrigin};
use forebay_config::QueueMode;
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{FleetSnapshot, Pool};
use forebay_prompt::parse::{Reason, Refusal};
use std::time::Duration;

/// Upper limit on an engine's `Retry-After` before it is passed to a client.
const ENGINE_RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// A new request, before it passes a rejection window.
#[derive(Clone, Copy, Debug)]
pub struct NewRequest {
    pub tenant: TenantPart,
    /// Does the request fall into the share that an open window refuses? Drawn once for all
    /// windows.
    is_drawn: Option<bool>,
}

impl NewRequest {
    #[must_use]
    pub const fn of(tenant: TenantPart) -> Self {
        Self { tenant, is_drawn: None }
    }
}

/// Pauses a rank whose engine had no room for a request of the model, and all ranks that share the
/// engine's limit. Called after the lease was returned: the end of any later request there ends the
/// pause.
pub fn engine_refused(
    fleet: &FleetSnapshot,
    board: &LoadBoard,
    rank: RankIndex,
    model: ModelIndex,
    now: NanosSinceStart,
) {
    for load in fleet.ranks_full_with(rank).filter_map(|rank| board.rank(rank)) {
        load.refused(model, now);
    }
}

impl Stages {
    /// Draws, once per request, whether an open window refuses it.
    fn draw(&mut self, fleet: &FleetSnapshot, new_request: &mut NewRequest) -> bool {
        let share = fleet.config.flow.rejection.share_percent;
        *new_request.is_drawn.get_or_insert_with(|| share >= 100 || self.random.u32(..100) < share)
    }

    /// Is the pool closed to the tenant? A window that other tenants caused does not close the pool
    /// to a tenant below its share.
    fn is_closed_to(
        &self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        tenant: TenantPart,
    ) -> bool {
        let board = &self.loads.board;
        board.windows().open_until(pool, now).is_some()
            && (tenant.is_only || !has_share(fleet, board, pool, now, tenant))
    }

    /// Tests the windows of all pools, before the body is read and the model is known.
    ///
    /// # Errors
    /// The refusal, where every pool is closed.
    pub fn windows_of_all(
        &mut self,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
        new_request: &mut NewRequest,
    ) -> Result<(), Refusal> {
        if !self.loads.board.windows().may_be_open(now) {
            return Ok(());
        }
        // Only pools that answer clients count: a closed prefill pool alone closes nothing.
        let pools = || fleet.answering_pools().map(|(pool, _)| pool);
        if !pools().all(|pool| self.is_closed_to(fleet, pool, now, new_request.tenant)) {
            return Ok(());
        }
        // The model is unknown. Where an operator closed only some of the pools, the request may be
        // for a full pool: the refusal names the lack of room.
        let is_full =
            |pool: &PoolIndex| self.loads.board.windows().open_by_hand_until(*pool, now).is_none();
        match pools().find(is_full).or_else(|| pools().next()) {
            Some(pool) if self.draw(fleet, new_request) => Err(self.window(fleet, pool, now)),
            _ => Ok(()),
        }
    }

    /// Tests the window of a pool.
    ///
    /// # Errors
    /// The refusal, if the window is open and the request falls into the refused share.
    pub fn window_of(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        new_request: &mut NewRequest,
    ) -> Result<(), Refusal> {
        let may_be_open = self.loads.board.windows().may_be_open(now);
        if may_be_open
            && self.is_closed_to(fleet, pool, now, new_request.tenant)
            && self.draw(fleet, new_request)
        {
            return Err(self.window(fleet, pool, now));
        }
        Ok(())
    }

    /// The refusal by an open window. A window may close early, so `Retry-After` follows the drain
    /// rate, and the window's end only while that rate is unknown. A window of an operator closes
    /// for no room: its end is the least.
    fn window(&mut self, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) -> Refusal {
        let windows = self.loads.board.windows();
        let rest = |until: Option<NanosSinceStart>| {
            Duration::from_nanos(until.map_or(0, |until| until.since(now))).min(BEFORE_JITTER_MAX)
        };
        let left = rest(windows.open_until(pool, now));
        let by_hand = rest(windows.open_by_hand_until(pool, now));
        let after = match self.back_after(fleet, pool, now) {
            Some(after) if after >= by_hand => after,
            Some(_) => self.later_by_chance(by_hand),
            None => self.later_by_chance(left),
        };
        let is_order = !by_hand.is_zero();
        let reason = if is_order { Reason::RejectedByOperator } else { Reason::RejectedWindow };
        Refusal::new(reason).with_retry_after(after)
    }

    /// Opens the rejection window of a pool that has no room for any new request.
    pub(super) fn close(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        cause: WindowCause,
        now: NanosSinceStart,
    ) {
        let length = fleet.config.flow.rejection_window;
        if !length.is_zero() {
            self.loads.board.windows().open_at(pool, cause, now, now.plus(length));
            // Requests that ended in the meantime found the window closed and could not close it.
            self.relieve(fleet, pool, now);
        }
    }

    /// Closes the window of a pool that has room again. Called wherever a request leaves the pool
    /// or its queues. The owner of a queue could not do this alone: it sees only waiting requests,
    /// and nothing once the queue is empty.
    pub(super) fn relieve(&mut self, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) {
        let windows = self.loads.board.windows();
        if !windows.may_be_open(now)
            || windows.open_by_until(pool, WindowOrigin::Here, now).is_none()
        {
            return;
        }
        if is_relieved(&self.binder(fleet, now), pool) {
            self.loads.board.windows().close(pool, WindowOrigin::Here, now);
        }
    }

    /// Relieves the pools of a model after a request of that model has ended.
    pub fn relieve_model(
        &mut self,
        fleet: &FleetSnapshot,
        model: ModelIndex,
        now: NanosSinceStart,
    ) {
        let Some(model) = fleet.models.get(model.index()) else { return };
        for pool in [Some(model.pool), model.prefill_pool].into_iter().flatten() {
            self.relieve(fleet, pool, now);
        }
    }

    /// The refusal of a request that finds neither a rank nor a queue.
    pub(super) fn rejected(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        rejection: Rejection,
    ) -> Refusal {
        let reason = match rejection {
            Rejection::NoWorker => {
                return stop::no_worker("all that serve its model are down, or failed it");
            }
            Rejection::NoRoom => Reason::RejectedBusy,
            Rejection::Full(QueueFull::Depth | QueueFull::Bytes) => Reason::RejectedQueueFull,
            Rejection::Full(QueueFull::Demand) => Reason::RejectedDemand,
            Rejection::TooLate { .. } => Reason::RejectedDeadline,
        };
        self.come_back(fleet, pool, now, Refusal::new(reason))
    }

    /// Adds `Retry-After` to the refusal of a request that was admitted: it waited too long, or
    /// engines had no room for it.
    pub(super) fn ended(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        stop: Stop,
    ) -> Stop {
        match stop {
            Stop::Refused(refusal)
                if matches!(refusal.reason(), Reason::RejectedQueueWait | Reason::RejectedBusy)
                    && refusal.retry_after().is_none() =>
            {
                Stop::Refused(self.come_back(fleet, pool, now, refusal))
            }
            stop => stop,
        }
    }

    /// How a request ends after its last attempt failed.
    pub(super) fn failed(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        failed: FailedAttempt,
    ) -> Stop {
        let asked = failed.reply.retry_after_s.filter(|_| failed.error == RelayError::EngineBusy);
        let asked = asked.map(Duration::from_secs);
        let asked = asked.map(|after| self.later_by_chance(after.min(ENGINE_RETRY_AFTER_MAX)));
        match (stop::end_of_failure(fleet, failed), asked) {
            (Stop::Refused(refusal), Some(after)) => Stop::Refused(refusal.with_retry_after(after)),
            (stop, _) => self.ended(fleet, pool, now, stop),
        }
    }

    /// Adds `Retry-After` where it is known.
    fn come_back(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        refusal: Refusal,
    ) -> Refusal {
        match self.back_after(fleet, pool, now) {
            Some(after) => refusal.with_retry_after(after),
            None => refusal,
        }
    }

    /// Time after which a client may retry: the larger of the drain rate's estimate and the
    /// engines' pause; `None` if neither is known.
    fn back_after(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let pause = self.engines_paused_for(fleet, pool, now);
        let pause = pause.map(|pause| self.later_by_chance(pause));
        self.retry_after(fleet, pool, now).max(pause)
    }

    /// Time until the first engine's pause ends, if all engines of the pool are paused.
    fn engines_paused_for(
        &self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let left = |rank: &RankIndex| {
            let until = self.loads.board.rank(*rank).map(|load| load.busy_until(None));
            until.map_or(0, |until| until.since(now))
        };
        // 0 if any engine is not paused: a client may then retry at once.
        let soonest = fleet.pool(pool)?.ranks.iter().map(left).min().filter(|&nanos| nanos > 0);
        soonest.map(Duration::from_nanos)
    }

    /// `after` plus a random part: clients that are refused together must not retry together.
    pub fn later_by_chance(&mut self, after: Duration) -> Duration {
        later_by_chance(after, &mut self.random)
    }

    /// Estimated time until all requests that wait in the pool, and this request, have ended.
    fn retry_after(
        &mut self,
        fleet: &FleetSnapshot,
        index: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let pool = fleet.pool(index)?;
        let ahead = waiting(&self.loads.board, fleet, index, pool) + 1;
        let windows = self.loads.board.windows();
        let is_open = |by| windows.open_by_until(index, by, now).is_some();
        // Refusals by the window of an operator or of another replica leave the pool with room.
        if !WindowOrigin::ALL.into_iter().any(|by| by != WindowOrigin::Here && is_open(by)) {
            // Now, not at the next tick: in a burst of refusals the rate would be as old as it.
            self.drain_rates.observe_refusal(index, pool, &self.loads.board, now);
        }
        self.drain_rates.retry_after(index, now, ahead, &mut self.random)
    }
}

fn waiting(board: &LoadBoard, fleet: &FleetSnapshot, index: PoolIndex, pool: &Pool) -> u64 {
    let of = |queue| board.queue(queue).map_or(0, |cell| u64::from(cell.waiting()));
    match fleet.config.flow.queue.mode {
        QueueMode::Off => 0,
        QueueMode::Pool => of(QueueIndex(index.0)),
        QueueMode::Endpoint => {
            pool.ranks.iter().filter_map(|&rank| fleet.queue_of(rank)).map(of).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::{Loads, StageRules};
    use super::*;
    use crate::dispatch::RetryBudget;
    use forebay_base::ShardIndex;
    use forebay_board::LoadReports;
    use forebay_fleet::worker::test_support::two_pools;
    use forebay_fleet::worker::{RoomDemand, RoomLimits};

    const POOL: PoolIndex = PoolIndex(2);

    fn stages(fleet: &FleetSnapshot) -> Stages {
        let rules = StageRules::of(&fleet.config);
        let reports = LoadReports::new(Duration::from_millis(300));
        let loads = Loads { board: LoadBoard::new().into(), reports };
        let random = fastrand::Rng::with_seed(1);
        Stages::new(ShardIndex(0), rules, loads, RetryBudget::new(100), random)
    }

    /// A pool that ends 20 requests a second for a second, behind a window that is open for
    /// `length`. Returns the waits beside the rest of the window.
    fn refuse(
        stages: &mut Stages,
        fleet: &FleetSnapshot,
        origin: WindowOrigin,
        start: NanosSinceStart,
        length: Duration,
    ) -> Vec<(Duration, Duration)> {
        let rank = fleet.pool(POOL).unwrap().ranks[0];
        let board = stages.loads.board.clone();
        let end = start.plus(length);
        board.windows().open(POOL, origin, start, end);
        let mut waits = Vec::new();
        let mut now = start;
        for _ in 0..20 {
            now = now.plus(Duration::from_millis(50));
            let load = board.rank(rank).unwrap();
            assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
            board.give_back(rank, 0, Some(ModelIndex(0)));
            let part = TenantPart { tenant: 0, weight: 1, is_only: true };
            let refused = stages.window_of(fleet, POOL, now, &mut NewRequest::of(part));
            let refused = refused.expect_err("the window is open");
            let left = Duration::from_nanos(end.since(now));
            waits.push((refused.retry_after().expect("a wait"), left));
        }
        waits
    }

    /// The waits behind a window, and the rate that the shard has learned.
    fn refused_by(origin: WindowOrigin) -> (Vec<(Duration, Duration)>, Option<f64>) {
        let fleet = two_pools();
        let mut stages = stages(&fleet);
        let length = Duration::from_millis(1_100);
        let waits = refuse(&mut stages, &fleet, origin, NanosSinceStart(0), length);
        let end = NanosSinceStart(0).plus(Duration::from_secs(1));
        (waits, stages.drain_rates.per_second(POOL, end))
    }

    /// A known drain rate shortens the wait behind a full queue, here or at another replica, and
    /// not the wait behind an order.
    #[test]
    fn an_order_has_the_rest_of_its_window_whatever_the_rate() {
        let fleet = two_pools();
        for origin in WindowOrigin::ALL {
            let mut stages = stages(&fleet);
            let second = Duration::from_secs(1);
            let start = NanosSinceStart(0);
            refuse(&mut stages, &fleet, WindowOrigin::Here, start, second + second / 10);
            let start = start.plus(second + second / 5);
            let waits = refuse(&mut stages, &fleet, origin, start, 30 * second);
            let is_rest = waits.iter().all(|(wait, left)| wait >= left);
            assert_eq!(is_rest, WindowOrigin::BY_HAND.contains(&origin), "{origin:?} {waits:?}");
        }
    }

    /// The refusal by the window of an operator is an order, and no lack of room. Before the model
    /// is known, a refusal is an order only if operators closed all pools.
    #[test]
    fn a_refusal_by_an_operator_has_a_reason_of_its_own() {
        let fleet = two_pools();
        let pools: Vec<PoolIndex> = fleet.answering_pools().map(|(pool, _)| pool).collect();
        let [first, second] = pools[..] else { panic!("{pools:?}") };
        let now = NanosSinceStart(1);
        let end = NanosSinceStart(9);
        let new_request = || NewRequest::of(TenantPart::ONLY);
        for origin in WindowOrigin::ALL {
            let by_hand = WindowOrigin::BY_HAND.contains(&origin);
            let wanted = if by_hand { Reason::RejectedByOperator } else { Reason::RejectedWindow };
            let mut stages = stages(&fleet);
            stages.loads.board.windows().open(first, origin, now, end);
            let of_pool = stages.window_of(&fleet, first, now, &mut new_request());
            assert_eq!(of_pool.unwrap_err().reason(), wanted, "{origin:?}");
            assert!(stages.window_of(&fleet, second, now, &mut new_request()).is_ok());
            assert!(stages.windows_of_all(&fleet, now, &mut new_request()).is_ok());
            stages.loads.board.windows().open(second, WindowOrigin::Hand, now, end);
            let of_all = stages.windows_of_all(&fleet, now, &mut new_request());
            assert_eq!(of_all.unwrap_err().reason(), wanted, "{origin:?}, and an order");
        }
    }

    /// Decision 0048: only ends of a full pool teach the rate. An operator, and another replica,
    /// close a pool that has room: its ends show the demand.
    #[test]
    fn only_a_window_of_a_full_pool_teaches_the_drain_rate() {
        let (_, rate) = refused_by(WindowOrigin::Here);
        assert!(rate.is_some_and(|rate| (15.0..25.0).contains(&rate)), "{rate:?}");
        let origins = WindowOrigin::ALL.into_iter().filter(|origin| *origin != WindowOrigin::Here);
        for origin in origins {
            let (waits, rate) = refused_by(origin);
            assert_eq!(rate, None, "{origin:?}");
            for (wait, left) in waits {
                assert!(left <= wait && wait <= left.mul_f64(1.5), "{origin:?} {wait:?} {left:?}");
            }
        }
    }
}

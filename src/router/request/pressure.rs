//! Back pressure as it is decided: rejection windows, what a request hears that finds neither a
//! rank nor a queue, and when its client may come back.

use super::stages::Stages;
use super::stop::{self, Failed, Stop};
use crate::dispatch::RelayError;
use crate::queue::{Turned, has_share, is_relieved};
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_config::QueueMode;
use forebay_fleet::admit::later_by_chance;
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::{FleetSnapshot, LoadBoard, OpenedBy, Pool, QueueFull};
use forebay_prompt::parse::{Reason, Refusal};
use std::time::Duration;

/// However long an engine asks for, a client is sent away for no longer.
const ASKED_MAX: Duration = Duration::from_mins(1);

/// A request that comes to a window.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// Tenant that the request belongs to.
    pub tenant: TenantPart,
    /// Is it among the share that an open window refuses? Drawn once, whatever windows it meets.
    is_drawn: Option<bool>,
}

impl Newcomer {
    /// A request of that tenant.
    #[must_use]
    pub const fn of(tenant: TenantPart) -> Self {
        Self { tenant, is_drawn: None }
    }
}

/// The engine of a rank had no room for a request for the model, and with it none of the ranks that
/// share its limit. Called after the lease was given back: the end of another of our requests there
/// ends this too.
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
    fn is_drawn(&mut self, fleet: &FleetSnapshot, newcomer: &mut Newcomer) -> bool {
        let share = fleet.config.flow.rejection.share_percent;
        *newcomer.is_drawn.get_or_insert_with(|| share >= 100 || self.random.u32(..100) < share)
    }

    /// Is the pool closed to the tenant? A window that other tenants filled the queue for is open
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

    /// The windows of all pools, for a request of which the model is not known yet.
    ///
    /// # Errors
    /// The refusal, where every pool is closed.
    pub fn windows_of_all(
        &mut self,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
        newcomer: &mut Newcomer,
    ) -> Result<(), Refusal> {
        if !self.loads.board.windows().may_be_open(now) {
            return Ok(());
        }
        // Who only prefills answers nobody: a pool of such ranks closes no way in by itself.
        let mut pools = fleet.answering_pools().peekable();
        let first = pools.peek().map(|&(pool, _)| pool);
        let all = pools.all(|(pool, _)| self.is_closed_to(fleet, pool, now, newcomer.tenant));
        match first.filter(|_| all) {
            Some(pool) if self.is_drawn(fleet, newcomer) => Err(self.window(fleet, pool, now)),
            _ => Ok(()),
        }
    }

    /// The window of one pool.
    ///
    /// # Errors
    /// The refusal, where the window is open and the request is among those that it refuses.
    pub fn window_of(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        newcomer: &mut Newcomer,
    ) -> Result<(), Refusal> {
        let may_be_open = self.loads.board.windows().may_be_open(now);
        if may_be_open
            && self.is_closed_to(fleet, pool, now, newcomer.tenant)
            && self.is_drawn(fleet, newcomer)
        {
            return Err(self.window(fleet, pool, now));
        }
        Ok(())
    }

    /// Refused by an open window. It may close early, so the drain rate says when to come back, and
    /// the clock while that is unknown.
    fn window(&mut self, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) -> Refusal {
        let left =
            self.loads.board.windows().open_until(pool, now).map_or(0, |until| until.since(now));
        let after = match self.back_after(fleet, pool, now) {
            Some(after) => after,
            None => self.later_by_chance(Duration::from_nanos(left)),
        };
        Refusal::new(Reason::RejectedWindow).with_retry_after(after)
    }

    /// Opens the rejection window of a pool that is closed to whoever comes.
    pub(super) fn close(&mut self, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) {
        let length = fleet.config.flow.rejection_window;
        if !length.is_zero() {
            self.loads.board.windows().open(pool, OpenedBy::Here, now, now.plus(length));
            // Those who left meanwhile found it closed and had nothing to do.
            self.relieve(fleet, pool, now);
        }
    }

    /// Closes the window of a pool that has room again. Called by who has made room in the pool, or
    /// in its queues: the window ends with what it was opened for. The home of a queue sees only
    /// those who stand in it, and nothing once it is empty.
    pub(super) fn relieve(&mut self, fleet: &FleetSnapshot, pool: PoolIndex, now: NanosSinceStart) {
        let windows = self.loads.board.windows();
        if !windows.may_be_open(now) || windows.open_by_until(pool, OpenedBy::Here, now).is_none() {
            return;
        }
        if is_relieved(&self.binder(fleet, now), pool) {
            self.loads.board.windows().close(pool, OpenedBy::Here, now);
        }
    }

    /// The same for the pools of a model: a request of it has ended.
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

    /// What a request hears that finds neither a rank nor a queue.
    pub(super) fn turned(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
        turned: Turned,
    ) -> Refusal {
        let reason = match turned {
            Turned::NoWorker => {
                return stop::no_worker("all that serve its model are down, or failed it");
            }
            Turned::NoRoom => Reason::RejectedBusy,
            Turned::Full(QueueFull::Depth | QueueFull::Bytes) => Reason::RejectedQueueFull,
            Turned::Full(QueueFull::Demand) => Reason::RejectedDemand,
            Turned::TooLate { .. } => Reason::RejectedDeadline,
        };
        self.come_back(fleet, pool, now, Refusal::new(reason))
    }

    /// The same for a request that ends after it was let in: it waited too long, or engines had no
    /// room for it.
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
        failed: Failed,
    ) -> Stop {
        let asked = failed.reply.retry_after_s.filter(|_| failed.error == RelayError::EngineBusy);
        let asked =
            asked.map(|seconds| self.later_by_chance(Duration::from_secs(seconds).min(ASKED_MAX)));
        match (stop::stop(fleet, failed), asked) {
            (Stop::Refused(refusal), Some(after)) => Stop::Refused(refusal.with_retry_after(after)),
            (stop, _) => self.ended(fleet, pool, now, stop),
        }
    }

    /// Adds when to come back, as far as that is known: by the drain rate, and not before an engine
    /// asks for it.
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

    /// By the drain rate, and not before the engines ask for it; `None` if neither is known.
    fn back_after(
        &mut self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let asked = self.engines_ask_for(fleet, pool, now);
        let asked = asked.map(|asked| self.later_by_chance(asked));
        self.retry_after(fleet, pool, now).max(asked)
    }

    /// Time until the first of the engines that had no room is asked again, if all of them are left
    /// alone.
    fn engines_ask_for(
        &self,
        fleet: &FleetSnapshot,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let left = |rank: &RankIndex| {
            let until = self.loads.board.rank(*rank).map(|load| load.busy_until(None));
            until.map_or(0, |until| until.since(now))
        };
        // The soonest, and nothing if one is not left alone: a client may come back for it now.
        let soonest = fleet.pool(pool)?.ranks.iter().map(left).min().filter(|&nanos| nanos > 0);
        soonest.map(Duration::from_nanos)
    }

    /// So long, and a little longer by chance: clients that are refused together do not come back
    /// together.
    pub fn later_by_chance(&mut self, after: Duration) -> Duration {
        later_by_chance(after, &mut self.random)
    }

    /// When a client of the pool may come back: after those who wait now, and one more, have ended.
    fn retry_after(
        &mut self,
        fleet: &FleetSnapshot,
        index: PoolIndex,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let pool = fleet.pool(index)?;
        let ahead = waiting(&self.loads.board, fleet, index, pool) + 1;
        // Now, not at the next tick: in a burst of refusals the rate would be as old as the tick.
        self.drain_rates.observe_pool(index, pool, &self.loads.board, now);
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

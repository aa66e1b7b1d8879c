//! What must hold: after every step, at every verdict, whenever all is quiet, and at the end.

use super::books::Sum;
use super::request::{PrefillLeg, State};
use super::shard::SimShard;
use super::world::{Checked, World};
use forebay_base::limits::QUEUE_CLASSES;
use forebay_base::limits::{QUEUE_RECHECK, RANKS_MAX};
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::Lease;
use forebay_board::{RankLoad, WindowOrigin};
use forebay_config::QueueMode;
use forebay_fleet::worker::{
    Dialect, FleetSnapshot, Leg, Rank, Role, RoomDemand, RoomLimits, WorkerState,
};
use forebay_mailbox::{Pin, RequestFacts, Ticket, Verdict, Waiter};
use forebay_router::queue::tokens_to_compute;
use std::collections::BTreeMap;

/// A model of no request: only what speaks of all models speaks of this one.
const NO_MODEL: ModelIndex = ModelIndex(60);

/// A home before its turn.
pub(crate) struct Before {
    pub(crate) levels: BTreeMap<QueueIndex, Levels>,
    /// The rank that each request waits for.
    pub(crate) targets: BTreeMap<Ticket, Option<RankIndex>>,
}

/// Levels of what asked for each class: at best, and at worst. A home may have dropped requests
/// past their deadline, of which the simulator knows no more than that.
#[derive(Clone, Copy)]
pub(crate) struct Levels {
    best: [u64; QUEUE_CLASSES as usize],
    worst: [u64; QUEUE_CLASSES as usize],
}

/// Weights of the tenants of a run.
pub(crate) const TENANT_WEIGHTS: [u32; 3] = [1, 3, 0];

fn weight_of(tenant: u64) -> u64 {
    u64::from(TENANT_WEIGHTS[usize::try_from(tenant).unwrap()].max(1))
}

fn asked(waiter: &Waiter) -> usize {
    usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1))
}

impl World {
    /// The production words are what the simulator has counted itself.
    pub(crate) fn check_step(&self) -> Checked {
        for (rank, &running) in (0..).map(RankIndex).zip(&self.books.running) {
            let load = self.board.rank(rank).unwrap();
            let in_transit = self.books.transit.values().filter(|granted| **granted == rank);
            let owned = running as usize + in_transit.count();
            if load.in_flight() as usize != owned {
                return Err(format!("{rank:?}: {} leases, {owned} owners", load.in_flight()));
            }
        }
        for (&queue, sum) in &self.books.waiting {
            let cell = self.board.queue(queue).unwrap();
            let found = (cell.waiting(), cell.waiting_bytes(), cell.waiting_tokens());
            if found != (sum.requests, sum.bytes, sum.tokens) {
                return Err(format!("{queue:?}: cell {found:?}, counted {sum:?}"));
            }
        }
        Ok(())
    }

    /// Limits are exact at the moment that a lease is taken.
    fn check_room(&self, fleet: &FleetSnapshot, rank: RankIndex, model: ModelIndex) -> Checked {
        let model = Some(model);
        let limits = fleet.room(rank);
        let load = self.board.rank(rank).unwrap();
        let taken = load.in_flight() + load.places_elsewhere();
        if limits.places_max > 0 && taken > limits.places_max {
            return Err(format!("{rank:?}: {taken} in flight, limit {}", limits.places_max));
        }
        if let Some(most) = load.places_now(model, self.now)
            && taken > most.max(1)
        {
            return Err(format!("{rank:?}: {taken} in flight, its engine refused beyond {most}"));
        }
        let tokens = load.kv_tokens();
        if limits.kv_tokens_max > 0 && tokens > limits.kv_tokens_max && load.in_flight() > 1 {
            return Err(format!("{rank:?}: {tokens} KV tokens, limit {}", limits.kv_tokens_max));
        }
        if load.busy_until(model) > self.now {
            return Err(format!("{rank:?} had refused, and got a request"));
        }
        Ok(())
    }

    /// What was bound at once: a rank that serves that leg of the model, near the other leg's, of a
    /// worker that is up and has not failed the request, and nobody waits for it.
    pub(crate) fn check_bound(
        &self,
        id: usize,
        fleet: &FleetSnapshot,
        lease: &Lease,
        (leg, near): (Leg, Option<RankIndex>),
    ) -> Checked {
        let rank = lease.rank();
        let flow = self.requests[id].flow.as_ref().unwrap();
        self.check_room(fleet, rank, lease.requester().model)?;
        let RequestFacts { model, pin, tried, .. } = flow.facts();
        let way = Way { model: model.index(), leg, near, pin: *pin, tried };
        if !way.leads_to(fleet, rank, &|_| true) {
            return Err(format!("request {id} ({way:?}) got {rank:?}"));
        }
        let is_awaited = !self.board.rank(rank).unwrap().is_spare();
        match fleet.queue_of(rank) {
            Some(queue) if self.books.waiting[&queue].requests > 0 && is_awaited => Err(format!(
                "request {id} was bound to {rank:?} before those who wait in {queue:?}"
            )),
            _ => Ok(()),
        }
    }

    /// What is sent goes to a rank that its shard knows to be up and to serve the model, also after
    /// a grant by a home that knows another fleet.
    pub(crate) fn check_there(&self, id: usize, fleet: &FleetSnapshot, rank: RankIndex) -> Checked {
        let is_up = fleet.rank(rank).unwrap().1.state == WorkerState::Up;
        if is_up && fleet.models[self.model_of(id)].ranks.contains(&rank) {
            return Ok(());
        }
        Err(format!("request {id} is sent to {rank:?}, which is not there"))
    }

    /// Who comes waits for a pair only if no rank that serves whole requests is free.
    pub(crate) fn check_nobody_is_free(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> Checked {
        let whole = Waiter { leg: Leg::Whole, near: None, ..waiter.clone() };
        let is_waited_for = |queue: QueueIndex| {
            // It counts itself already.
            let own = u32::from(queue == waiter.queue);
            self.board.queue(queue).unwrap().waiting() > own
        };
        let free = |&rank: &RankIndex| {
            let waits = fleet.queue_of(rank).is_some_and(is_waited_for);
            fleet.ranks[rank.index()].role == Role::Both
                && !waits
                && self.has_room(fleet, &whole, rank)
        };
        let mut ways = self.ways_anywhere(fleet, waiter);
        keep_able(fleet, waiter, &mut ways);
        match ways.iter().find(|rank| free(rank)) {
            None => Ok(()),
            Some(rank) => Err(format!("{waiter:?} waits for a pair beside {rank:?}")),
        }
    }

    /// Who waits for a decode rank has no other: no two requests wait for each other.
    pub(crate) fn check_holds_nothing(&self, id: usize) -> Checked {
        let live = |leg: &&PrefillLeg| {
            leg.request == id && leg.lease.is_some() && leg.cancelled_at.is_none()
        };
        match self.legs.iter().find(live) {
            None => Ok(()),
            Some(leg) => Err(format!("request {id} waits for decode and has {:?}", leg.rank)),
        }
    }

    /// A queue holds more than its bounds only of a tenant that has no more than its share.
    pub(crate) fn check_bounds(
        &self,
        fleet: &FleetSnapshot,
        queue: QueueIndex,
        tenant: u64,
    ) -> Checked {
        let limits = &fleet.config.flow.queue;
        let cell = self.board.queue(queue).unwrap();
        let bytes_max = u64::try_from(limits.bytes_max).unwrap();
        let waiting = |tenant: &u64| self.books.of_tenant.get(&(queue, *tenant)).copied();
        let own = waiting(&tenant).unwrap();
        let present = (0..TENANT_WEIGHTS.len() as u64)
            .filter(|other| waiting(other).is_some_and(|sum| sum.requests > 0));
        let weights: u64 = present.map(weight_of).sum();
        let exceeds = |all: u64, held: u64, max: u64| {
            all > max && own.requests > 1 && held * weights > max * weight_of(tenant)
        };
        let places = u64::from(own.requests);
        let depth_max = u64::from(limits.depth_max);
        if exceeds(cell.waiting().into(), places, depth_max)
            || exceeds(cell.waiting_bytes(), own.bytes, bytes_max)
        {
            return Err(format!("{queue:?} holds {} of {}", cell.waiting(), limits.depth_max));
        }
        Ok(())
    }

    pub(crate) fn check_verdicts(
        &mut self,
        home: usize,
        fleet: &FleetSnapshot,
        verdicts: &[(Ticket, Verdict)],
        before: &Before,
    ) -> Checked {
        let mut granted: Vec<(Waiter, RankIndex)> = Vec::new();
        for (ticket, verdict) in verdicts {
            let waiter = match self.books.at_home.remove(ticket) {
                Some((at, waiter)) if at == home => waiter,
                other => return Err(format!("{ticket:?} got a verdict, and is at {other:?}")),
            };
            match verdict {
                Verdict::Granted(lease) => {
                    let rank = lease.rank();
                    self.stats.granted += 1;
                    self.note(|| format!("home {home}: {ticket:?} gets {rank:?}"));
                    self.books.depart(*ticket, rank)?;
                    if waiter.facts.deadline <= self.now {
                        return Err(format!("{ticket:?} was granted after its deadline"));
                    }
                    if !Way::of(&waiter).leads_to(fleet, rank, &|_| true)
                        || fleet.queue_of(rank) != Some(waiter.queue)
                    {
                        return Err(format!("{waiter:?} got {rank:?}"));
                    }
                    granted.push((waiter, rank));
                }
                Verdict::Reroute => {
                    self.stats.rerouted += 1;
                    self.note(|| format!("home {home}: {ticket:?} is sent on"));
                    self.check_reroute(fleet, &waiter)?;
                }
            }
        }
        for (waiter, rank) in &granted {
            // Other models may have taken places since: only a refusal of all models is exact here.
            self.check_room(fleet, *rank, NO_MODEL)?;
            self.check_order(home, fleet, (waiter, *rank), before)?;
        }
        self.check_windows();
        Ok(())
    }

    /// Nothing is left behind that could have had the rank and comes first: of a better level, or
    /// of the same tenant and class and with fewer tokens to compute, or as many and earlier.
    fn check_order(
        &self,
        home: usize,
        fleet: &FleetSnapshot,
        (waiter, rank): (&Waiter, RankIndex),
        turn: &Before,
    ) -> Checked {
        let levels = turn.levels[&waiter.queue];
        let left = self.books.at_home.values().filter(|(at, left)| {
            *at == home && left.queue == waiter.queue && left.facts.deadline > self.now
        });
        if self.truth.promotes_otherwise {
            return Ok(());
        }
        let same_row = |left: &Waiter| left.facts.caller.tenant == waiter.facts.caller.tenant;
        let is_older = |left: &Waiter| left.facts.arrived_at < waiter.facts.arrived_at;
        // Of the oldest of its tenant it may be the turn.
        let is_oldest = !left.clone().any(|(_, left)| same_row(left) && is_older(left));
        let order = |of: &Waiter| (tokens_to_compute(of), of.facts.arrived_at);
        for (_, left) in
            left.filter(|(_, left)| self.could_have_it(home, fleet, (left, waiter), rank))
        {
            // What chose the rank in this turn may have been looked at when it was taken.
            if turn.targets[&left.ticket].is_some_and(|target| target != rank) {
                continue;
            }
            let before = levels.worst[asked(left)] < levels.best[asked(waiter)];
            let same_part = same_row(left)
                && asked(left) == asked(waiter)
                && self.class_now(fleet, left) == self.class_now(fleet, waiter);
            let earlier = !is_oldest && same_part && order(left) < order(waiter);
            if before || earlier {
                return Err(format!("{waiter:?} got {rank:?} before {left:?}"));
            }
        }
        Ok(())
    }

    /// Had the rank room for a request that is left, when it was given to another?
    fn could_have_it(
        &self,
        home: usize,
        fleet: &FleetSnapshot,
        (left, waiter): (&Waiter, &Waiter),
        rank: RankIndex,
    ) -> bool {
        // What its engine refuses of a model alone is left to the requests for other models.
        let load = self.board.rank(rank).unwrap();
        let model = left.facts.model;
        let is_refused =
            model != waiter.facts.model && load.refuses_one_model(Some(model), self.now);
        // First fit: what is larger found no room. What no cache can hold takes what is left.
        let wants = wanted(left).kv_tokens;
        let wanted = wanted(waiter).kv_tokens;
        let most = fleet.room(rank).kv_tokens_max;
        let fits = most == 0 || wants <= wanted && wanted <= most;
        !is_refused
            && fits
            && self.waits_for(home, left, rank)
            && !self.is_passed_over(home, left)
            && !self.has_changed(home, left)
            && self.ways(fleet, left).contains(&rank)
    }

    /// Does a request wait for the rank, or for any?
    fn waits_for(&self, home: usize, waiter: &Waiter, rank: RankIndex) -> bool {
        self.target(home, waiter).is_none_or(|target| target == rank)
    }

    fn target(&self, home: usize, waiter: &Waiter) -> Option<RankIndex> {
        self.shards[home].home.target(waiter.queue, waiter.ticket)
    }

    /// May the request have had another target in the first part of the last turn?
    fn has_changed(&self, home: usize, waiter: &Waiter) -> bool {
        let turn = self.shards[home].home.last_turn(waiter.queue);
        self.target(home, waiter).is_some() && turn.is_some_and(|turn| turn.has_rest)
    }

    /// Has the last turn stopped before it looked at all such requests?
    fn is_passed_over(&self, home: usize, waiter: &Waiter) -> bool {
        let target = self.target(home, waiter);
        let turn = self.shards[home].home.last_turn(waiter.queue);
        turn.is_some_and(|turn| turn.is_cut || turn.closed.contains(&target))
    }

    /// Is the rank left to another request?
    fn is_held_back(&self, home: usize, queue: QueueIndex, rank: RankIndex) -> bool {
        let turn = self.shards[home].home.last_turn(queue);
        turn.is_some_and(|turn| turn.held_back.contains(&rank))
    }

    /// Does a home hold a rank back?
    pub(crate) fn holds_back(&self, home: usize) -> bool {
        let turn = |&queue: &QueueIndex| self.shards[home].home.last_turn(queue);
        self.books.waiting.keys().filter_map(turn).any(|turn| !turn.held_back.is_empty())
    }

    /// Levels in the queues of a home.
    pub(crate) fn targets(&self, home: usize) -> BTreeMap<Ticket, Option<RankIndex>> {
        let here = self.books.at_home.values().filter(|(at, _)| *at == home);
        here.map(|(_, waiter)| (waiter.ticket, self.target(home, waiter))).collect()
    }

    pub(crate) fn levels(&self, home: usize) -> BTreeMap<QueueIndex, Levels> {
        let fleet = &self.shards[home].fleet;
        let mut all = BTreeMap::new();
        let none = [u64::MAX; QUEUE_CLASSES as usize];
        for (_, waiter) in self.books.at_home.values().filter(|(at, _)| *at == home) {
            let levels = all.entry(waiter.queue).or_insert(Levels { best: none, worst: none });
            let risen = self.class_now(fleet, waiter);
            let is_late = waiter.facts.deadline <= self.now;
            for class in 0..=asked(waiter) {
                levels.best[class] = levels.best[class].min(risen);
                if !is_late {
                    levels.worst[class] = levels.worst[class].min(risen);
                }
            }
        }
        all
    }

    fn class_now(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> u64 {
        let asked = u64::try_from(asked(waiter)).unwrap();
        let after = u64::try_from(fleet.config.flow.queue.promote_after.as_nanos()).unwrap();
        let risen = self.now.since(waiter.facts.arrived_at).checked_div(after).unwrap_or(0);
        asked.saturating_sub(risen)
    }

    fn check_reroute(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> Checked {
        let queue = &fleet.config.flow.queue;
        let stale = queue.mode == QueueMode::Endpoint
            && waiter.movable
            && waiter.joined_at.plus(queue.stale_after) <= self.now;
        let is_shut = |rank: RankIndex| self.board.rank(rank).unwrap().is_open();
        let led = all_ranks(fleet).any(|rank| {
            fleet.queue_of(rank) == Some(waiter.queue)
                && Way::of(waiter).leads_to(fleet, rank, &|source| !is_shut(source))
                && !is_shut(rank)
        });
        // Its ranks may have been opened since, for another that has no rank left.
        let was_shut = waiter.facts.pin.is_some() || !waiter.facts.tried.is_empty();
        if led && !stale && !was_shut {
            Err(format!("{waiter:?} was sent on for nothing"))
        } else {
            Ok(())
        }
    }

    /// Nobody is refused beside a rank that has nothing to do, or a queue in which nobody waits.
    pub(crate) fn check_closed(&self, fleet: &FleetSnapshot, pool: PoolIndex) -> Checked {
        for &rank in &fleet.pool(pool).unwrap().ranks {
            let load = self.board.rank(rank).unwrap();
            let is_up = fleet.rank(rank).unwrap().1.state == WorkerState::Up;
            if !is_up || !load.breaker_admits(self.now, None) || load.busy_until(None) > self.now {
                continue;
            }
            let queue = fleet.queue_of(rank).map(|queue| self.board.queue(queue).unwrap());
            let waiting = queue.map(|cell| cell.waiting());
            if waiting == Some(0) {
                return Err(format!("{pool:?} is closed, and nobody waits for {rank:?}"));
            }
            if waiting.is_none() && load.in_flight() + load.places_elsewhere() == 0 {
                return Err(format!("{pool:?} is closed beside {rank:?}"));
            }
        }
        Ok(())
    }

    /// Room is left only where nobody who waits has a use for it: there others take it when the
    /// queue is full.
    pub(crate) fn check_spare(&self, at: usize, fleet: &FleetSnapshot) -> Checked {
        for (_, waiter) in self.books.at_home.values().filter(|(home, _)| *home == at) {
            // What only time opens again is seen at the next look.
            let held = self.books.held_at.get(&waiter.queue);
            if waiter.facts.deadline <= self.now
                || held.is_some_and(|held| self.now <= held.plus(QUEUE_RECHECK))
            {
                continue;
            }
            for rank in self.ways(fleet, waiter) {
                // A home with a newer fleet may have the rank already, and nobody who waits for it.
                let is_its = |shard: &SimShard| shard.fleet.queue_of(rank) == Some(waiter.queue);
                if !self.shards.iter().all(is_its) {
                    continue;
                }
                let load = self.board.rank(rank).unwrap();
                let limits = self.limits(fleet, rank);
                // Others may have had the last place here since.
                let is_short = !self.waits_for(at, waiter, rank)
                    || load.has_room(limits, RoomDemand::default())
                        && !self.has_room(fleet, waiter, rank);
                if load.is_spare() && !is_short {
                    return Err(format!("{waiter:?} waits, and {rank:?} is free for others"));
                }
            }
        }
        Ok(())
    }

    /// Windows that were closed before their time: what the simulator knows of them ends too.
    pub(crate) fn check_windows(&mut self) {
        for pool in pools() {
            let open = self.board.windows().open_here_until(pool, self.now);
            let known = self.books.windows.entry(pool.0).or_default();
            *known = open.map_or(*known, |until| until.max(*known));
            if open.is_none() && *known > self.now {
                *known = NanosSinceStart(0);
                self.stats.closed_early += 1;
                self.note(|| format!("the window of {pool:?} is closed"));
            }
        }
    }

    /// A request has looked for ranks: what it did to windows. True if it opened one.
    pub(crate) fn watch_windows(&mut self, fleet: &FleetSnapshot) -> Result<bool, String> {
        let mut has_opened = false;
        for pool in pools() {
            let openings = self.board.windows().openings(pool);
            let seen = self.books.openings.insert(pool.0, openings).unwrap_or(0);
            if openings == seen {
                continue;
            }
            has_opened = true;
            self.check_closed(fleet, pool)?;
            let known = self.books.windows.entry(pool.0).or_default();
            if openings != seen + 1 || *known > self.now {
                return Err(format!("{pool:?} was opened again, though open until {known:?}"));
            }
            *known = self.now.plus(fleet.config.flow.rejection_window);
            self.stats.opened += 1;
        }
        self.check_windows();
        Ok(has_opened)
    }

    /// Before a home looks: which of its queues lead to ranks that are closed by what only time, or
    /// a report, ends?
    pub(crate) fn look_for_holds(&mut self, at: usize) {
        let shard = &self.shards[at];
        let fleet = &shard.fleet;
        for rank in all_ranks(fleet) {
            let Some(queue) = fleet.queue_of(rank) else { continue };
            let load = self.board.rank(rank).unwrap();
            let is_shut = |rank| self.board.rank(rank).is_some_and(RankLoad::is_open);
            // A decode rank is closed with the last prefill rank that it reaches.
            let lacks_prefill = fleet.ranks[rank.index()].role == Role::Decode
                && all_ranks(fleet).any(|source| {
                    fleet.ranks[source.index()].role == Role::Prefill && is_shut(source)
                });
            if self.board.home(queue) == at
                && (load.busy_until(None) > self.now
                    || load.places_now(None, self.now).is_some()
                    || is_shut(rank)
                    || lacks_prefill)
            {
                self.books.held_at.insert(queue, self.now);
            }
        }
    }

    /// Nothing moves until time passes. Then nobody waits who could go: whoever stands in a line
    /// finds no room, or stands behind one who finds none and wants the same ranks.
    pub(crate) fn check_quiet(&mut self) -> Checked {
        self.stats.quiet_checks += 1;
        if let Some(ticket) = self.books.delivered.first() {
            return Err(format!("{ticket:?} has its verdict, and its request was not woken"));
        }
        for (id, request) in self.requests.iter().enumerate() {
            if let State::Waiting(wait) = &request.state
                && wait.deadline <= self.now
                && self.shards[request.shard].stalled_until <= self.now
            {
                return Err(format!("request {id} waits past its deadline"));
            }
        }
        for at in 0..self.shards.len() {
            if self.shards[at].has_work(&self.board) {
                return Err(format!("shard {at} sleeps, and has work"));
            }
            let fleet = std::sync::Arc::clone(&self.shards[at].fleet);
            // Who frees a place tells the queues of the newest fleet; the others hear when they get
            // it.
            if fleet.generation != self.truth.generation {
                continue;
            }
            self.check_open_windows(&fleet)?;
            let mut queues: Vec<QueueIndex> =
                self.books.at_home.values().map(|(_, w)| w.queue).collect();
            queues.dedup();
            for queue in queues.into_iter().filter(|&queue| self.board.home(queue) == at) {
                let held = self.books.held_at.get(&queue);
                if held.is_none_or(|held| self.now > held.plus(QUEUE_RECHECK)) {
                    self.check_line(at, &fleet, queue)?;
                }
            }
        }
        Ok(())
    }

    /// A window is open no longer than there is a reason: all is quiet, so nobody has a verdict
    /// under way.
    fn check_open_windows(&self, fleet: &FleetSnapshot) -> Checked {
        let is_open = |&pool: &PoolIndex| {
            self.board.windows().open_by_until(pool, WindowOrigin::Here, self.now).is_some()
        };
        // Who goes by older limits closes it when it hears of these.
        let is_known = self.shards.iter().all(|shard| shard.fleet.generation == fleet.generation);
        let flow = &fleet.config.flow;
        let percent = u64::from(fleet.config.flow.rejection.low_water_percent);
        if flow.queue.mode == QueueMode::Off || !is_known {
            return Ok(());
        }
        let low = |held: u64, max: u64| held * 100 <= max * percent;
        for pool in pools().filter(is_open) {
            let Some(of_pool) = fleet.pool(pool) else { continue };
            for &rank in &of_pool.ranks {
                let is_up = fleet.rank(rank).unwrap().1.state == WorkerState::Up;
                let Some(queue) = fleet.queue_of(rank) else { continue };
                // Of a breaker that time closes nobody hears.
                if !is_up || self.board.rank(rank).unwrap().is_open() {
                    continue;
                }
                let sum = self.books.waiting[&queue];
                let tokens_bounded = of_pool.kv_tokens > 0 && flow.kv_demand_percent > 0;
                let is_low = low(u64::from(sum.requests), u64::from(flow.queue.depth_max))
                    && low(sum.bytes, u64::try_from(flow.queue.bytes_max).unwrap())
                    && !tokens_bounded;
                if sum.requests == 0 || is_low {
                    return Err(format!("the window of {pool:?} is open, and {sum:?} wait"));
                }
            }
        }
        Ok(())
    }

    /// No rank that a request waits for has room for it, but those that are left to another one;
    /// and nothing waits where nothing runs.
    fn check_line(&self, at: usize, fleet: &FleetSnapshot, queue: QueueIndex) -> Checked {
        let waits = |waiter: &&Waiter| waiter.queue == queue && waiter.facts.deadline > self.now;
        let idle =
            all_ranks(fleet).filter(|&rank| fleet.queue_of(rank) == Some(queue)).all(|rank| {
                let load = self.board.rank(rank).unwrap();
                load.in_flight() == 0 && load.places_elsewhere() == 0
            });
        for waiter in self.books.at_home.values().map(|(_, waiter)| waiter).filter(waits) {
            let rooms = self.rooms(fleet, waiter);
            let target = self.target(at, waiter);
            if idle && !rooms.is_empty() {
                return Err(format!("{waiter:?} waits for {target:?}, and nothing runs"));
            }
            // What no cache can hold goes when the smallest that waits for the same fits.
            let is_large = |rank: RankIndex| {
                let most = fleet.room(rank).kv_tokens_max;
                most > 0 && wanted(waiter).kv_tokens > most
            };
            let lost = rooms.iter().find(|&&rank| {
                self.waits_for(at, waiter, rank)
                    && !self.is_held_back(at, queue, rank)
                    && !is_large(rank)
            });
            if let Some(rank) = lost.filter(|_| !self.is_passed_over(at, waiter)) {
                return Err(format!("lost wake-up: {waiter:?} waits beside {rank:?}"));
            }
        }
        Ok(())
    }

    /// Ranks that the queue leads the request to.
    fn ways(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> Vec<RankIndex> {
        let mut ways = self.ways_anywhere(fleet, waiter);
        ways.retain(|&rank| fleet.queue_of(rank) == Some(waiter.queue));
        keep_able(fleet, waiter, &mut ways);
        ways
    }

    /// Is the rank not paused for the request? One that has failed elsewhere is no trial.
    fn is_open_to(&self, waiter: &Waiter, rank: RankIndex) -> bool {
        let load = self.board.rank(rank).unwrap();
        let requester = waiter.facts.requester();
        load.breaker_admits(self.now, Some(requester))
            && (waiter.facts.tried.is_empty() || !load.is_restricted_to(requester))
    }

    fn ways_anywhere(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> Vec<RankIndex> {
        let usable = |rank: RankIndex| self.is_open_to(waiter, rank);
        let leads =
            |&rank: &RankIndex| Way::of(waiter).leads_to(fleet, rank, &usable) && usable(rank);
        all_ranks(fleet).filter(leads).collect()
    }

    /// Those of them that have room for it now.
    fn rooms(&self, fleet: &FleetSnapshot, waiter: &Waiter) -> Vec<RankIndex> {
        let mut ways = self.ways(fleet, waiter);
        ways.retain(|&rank| self.has_room(fleet, waiter, rank));
        ways
    }

    fn has_room(&self, fleet: &FleetSnapshot, waiter: &Waiter, rank: RankIndex) -> bool {
        let load = self.board.rank(rank).unwrap();
        let limits = self.limits(fleet, rank);
        let model = Some(waiter.facts.model);
        load.has_room(load.room_at(limits, model, self.now), wanted(waiter))
            && load.busy_until(model) <= self.now
    }

    /// What a rank may be given, by the speed that it has shown.
    fn limits(&self, fleet: &FleetSnapshot, rank: RankIndex) -> RoomLimits {
        let limits = fleet.room(rank);
        let by_speed = limits.prefill_tokens_max == RoomLimits::PREFILL_BY_SPEED;
        let prefill_tokens_max = match by_speed {
            true => self.board.past(rank).unwrap().prefill_room(),
            false => limits.prefill_tokens_max,
        };
        RoomLimits { prefill_tokens_max, ..limits }
    }

    /// Everybody was answered once, and nothing is left anywhere.
    pub(crate) fn check_end(&mut self) -> Checked {
        for id in 0..self.requests.len() {
            if self.requests[id].answers.len() != 1 {
                return Err(format!("request {id} is answered {:?}", self.requests[id].answers));
            }
            if !matches!(self.requests[id].state, State::Done) {
                return Err(format!("request {id} is answered and goes on"));
            }
        }
        self.check_step()?;
        for (at, shard) in self.shards.iter().enumerate() {
            let waits = shard.stages.waits.waiting();
            if waits > 0 || !shard.home.is_empty() {
                return Err(format!("shard {at} keeps {waits} waits"));
            }
        }
        for rank in (0..self.books.running.len()).filter_map(RankIndex::try_from_index) {
            let load = self.board.rank(rank).unwrap();
            let held = [u64::from(load.in_flight()), load.kv_tokens(), load.prefill_tokens()];
            if held.iter().any(|&amount| amount > 0) {
                return Err(format!("{rank:?} is left with {held:?}"));
            }
        }
        // The last step has held the cells of the queues against this.
        if let Some(left) = self.books.waiting.iter().find(|(_, sum)| **sum != Sum::default()) {
            return Err(format!("{left:?} is left"));
        }
        let edges = self.board.windows().edges();
        if edges != self.stats.opened + self.stats.closed_early {
            return Err(format!("{edges} edges of windows, {} seen", self.stats.opened));
        }
        Ok(())
    }
}

/// Leaves out those whose caches could never hold it, if another could.
fn keep_able(fleet: &FleetSnapshot, waiter: &Waiter, ways: &mut Vec<RankIndex>) {
    let is_able = |rank: RankIndex| {
        let most = fleet.room(rank).kv_tokens_max;
        most == 0 || forebay_router::queue::prompt_tokens(waiter) + output_tokens(waiter) <= most
    };
    if ways.iter().any(|&rank| is_able(rank)) {
        ways.retain(|&rank| is_able(rank));
    }
}

/// What it would take of a rank.
fn wanted(waiter: &Waiter) -> RoomDemand {
    let prompt = forebay_router::queue::prompt_tokens(waiter);
    RoomDemand { kv_tokens: prompt + output_tokens(waiter), prefill_tokens: 0 }
}

fn output_tokens(waiter: &Waiter) -> u64 {
    if waiter.leg == Leg::Prefill { 1 } else { u64::from(waiter.facts.output_tokens) }
}

fn all_ranks(fleet: &FleetSnapshot) -> impl Iterator<Item = RankIndex> {
    (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index)
}

/// All that a run may have.
fn pools() -> impl Iterator<Item = PoolIndex> {
    (0..3).chain(RANKS_MAX..RANKS_MAX + 3).filter_map(PoolIndex::try_from_index)
}

/// What a request wants, and what is out of the question.
#[derive(Debug)]
struct Way<'a> {
    model: usize,
    leg: Leg,
    near: Option<RankIndex>,
    pin: Option<Pin>,
    tried: &'a [RankIndex],
}

impl<'a> Way<'a> {
    fn of(waiter: &'a Waiter) -> Self {
        let Waiter { leg, near, facts: RequestFacts { pin, tried, .. }, .. } = waiter;
        Self { model: waiter.facts.model.index(), leg: *leg, near: *near, pin: *pin, tried }
    }

    /// May the request have the rank, whatever room it has? `usable` says of prefill ranks whether
    /// they count.
    fn leads_to(
        &self,
        fleet: &FleetSnapshot,
        rank: RankIndex,
        usable: &dyn Fn(RankIndex) -> bool,
    ) -> bool {
        let Some((found, worker)) = fleet.rank(rank) else { return false };
        let of_model = fleet.models[self.model].ranks.contains(&rank);
        let failed =
            |tried: &RankIndex| fleet.rank(*tried).is_some_and(|(t, _)| t.worker == found.worker);
        if worker.state != WorkerState::Up || !of_model || self.tried.iter().any(failed) {
            return false;
        }
        if self.leg != Leg::Prefill && self.pin.is_some_and(|pin| Pin::Number(found.dp_rank) != pin)
        {
            return false;
        }
        let is_sglang = worker.dialect == Dialect::Sglang;
        match (self.leg, found.role) {
            (Leg::Whole | Leg::Decode, Role::Both) => true,
            (Leg::Whole, Role::Decode) => !is_sglang,
            (Leg::Prefill, Role::Prefill) => {
                let near = self.near.and_then(|near| Some((near, fleet.rank(near)?)));
                near.is_some_and(|(near, (decode, worker))| {
                    worker.state == WorkerState::Up
                        && decode.role == Role::Decode
                        && found.kv_transfer.is_some()
                        && makes_a_pair(fleet, rank, near)
                })
            }
            (Leg::Decode, Role::Decode) => all_ranks(fleet).any(|source| {
                let prefill = Self { leg: Leg::Prefill, near: Some(rank), ..*self };
                usable(source) && prefill.leads_to(fleet, source, usable)
            }),
            _ => false,
        }
    }
}

/// Of one kind of engine, and in one part of the network as far as anybody says.
fn makes_a_pair(fleet: &FleetSnapshot, prefill: RankIndex, decode: RankIndex) -> bool {
    let of = |rank| {
        let (rank, worker): (&Rank, _) = fleet.rank(rank).unwrap();
        (worker.dialect == Dialect::Sglang, rank.topology.as_deref())
    };
    let (a, prefill) = of(prefill);
    let (b, decode) = of(decode);
    a == b && (prefill.is_none() || decode.is_none() || prefill == decode)
}

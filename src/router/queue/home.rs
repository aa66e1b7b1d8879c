//! The queues that a shard owns. Requests join and leave by message. Whenever a place may be
//! free, the owner binds the next requests, takes their leases, and posts the verdicts.

use super::bounds::is_at_low_water;
use super::line::{Line, Rules, TurnEnd};
use super::place::{Placement, PlacementMemory, PoolPace};
use forebay_base::limits::{QUEUE_RECHECK, RANKS_MAX};
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::LeaseCost;
use forebay_board::admit::DrainRates;
use forebay_board::{LoadBoard, QueueCell, RankLoad, WindowOrigin};
use forebay_config::QueueMode;
use forebay_fleet::worker::Leg;
use forebay_index::Overlaps;
use forebay_mailbox::{Ticket, Verdict, Waiter};
use forebay_select::{Binder, Candidates};
use std::collections::BTreeMap;
use std::time::Duration;

/// All queues that a shard owns.
#[derive(Debug)]
pub struct Home {
    /// In order, so that a turn is the same every time.
    queues: BTreeMap<QueueIndex, Queue>,
    scratch: Scratch,
}

/// Working memory for serving a queue.
#[derive(Debug)]
struct Scratch {
    placement: PlacementMemory,
    /// By rank: true if a request waits for the rank.
    awaited: Vec<bool>,
}

#[derive(Debug)]
struct Queue {
    line: Line,
    /// [`QueueCell::look`](forebay_board::QueueCell::look) when the queue was last served.
    seen: u32,
    /// Served again at the next turn: a request joined or left, or the fleet changed.
    fresh: bool,
    /// When a rank may have room again by the passing of time alone.
    recheck_at: NanosSinceStart,
}

impl Default for Home {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            scratch: Scratch {
                placement: PlacementMemory {
                    candidates: Candidates::default(),
                    overlaps: Overlaps::new(RANKS_MAX),
                    held_back: Vec::new(),
                },
                awaited: vec![false; RANKS_MAX],
            },
        }
    }
}

impl Home {
    /// Adds a request to its queue. Call [`Self::serve`] before the shard sleeps.
    pub(crate) fn join(&mut self, waiter: Box<Waiter>, promote_after: Duration) {
        let queue = self.queues.entry(waiter.queue).or_insert_with(|| Queue {
            line: Line::new(promote_after),
            seen: 0,
            fresh: true,
            recheck_at: NanosSinceStart(u64::MAX),
        });
        queue.fresh = true;
        queue.line.push(waiter);
    }

    /// Removes a request that stopped waiting. An unknown ticket has already had its verdict.
    pub(crate) fn leave(&mut self, queue: QueueIndex, ticket: Ticket) {
        if let Some(queue) = self.queues.get_mut(&queue)
            && queue.line.remove(ticket).is_some()
        {
            // A request behind the removed request may fit where that did not.
            queue.fresh = true;
        }
    }

    /// Workers, pools and limits may have changed: serves each queue anew.
    pub(crate) fn fleet_changed(&mut self) {
        for queue in self.queues.values_mut() {
            queue.line.fleet_changed();
            queue.fresh = true;
        }
    }

    /// True if no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// End of the last turn of a queue; `None` if the queue is empty.
    #[must_use]
    pub fn last_turn(&self, queue: QueueIndex) -> Option<&TurnEnd> {
        self.queues.get(&queue).map(|queue| queue.line.last_turn())
    }

    /// The rank that a queued request waits for; `None` also for any rank.
    #[must_use]
    pub fn target(&self, queue: QueueIndex, ticket: Ticket) -> Option<RankIndex> {
        self.queues.get(&queue)?.line.target(ticket)?
    }

    /// Has anything changed since the last turn? Call this between the shard's announcement of its
    /// sleep and the sleep: room that is made while the shard is awake rings no bell.
    #[must_use]
    pub fn has_news(&self, board: &LoadBoard) -> bool {
        let news = |(&index, queue): (&QueueIndex, &Queue)| queue.has_news(board.queue(index));
        self.queues.iter().any(news)
    }

    /// Time of the next [`Self::serve`] even without a message or a bell.
    #[must_use]
    pub fn look_again_at(&self) -> Option<NanosSinceStart> {
        let at = |queue: &Queue| queue.recheck_at.min(queue.line.promote_at());
        self.queues.values().map(at).min().filter(|at| at.0 != u64::MAX)
    }

    /// Binds all requests that have room now, in every queue with changes. Adds each verdict with
    /// the ticket of its request, in order.
    pub(crate) fn serve(
        &mut self,
        binder: &mut Binder<'_>,
        rates: &DrainRates,
        verdicts: &mut Vec<(Ticket, Verdict)>,
    ) {
        let Self { queues, scratch } = self;
        queues.retain(|&index, queue| {
            queue.serve(index, binder, rates, verdicts, scratch);
            !queue.line.is_empty()
        });
    }
}

impl Queue {
    fn has_news(&self, cell: Option<&QueueCell>) -> bool {
        self.fresh || cell.is_some_and(|cell| cell.freed() != self.seen)
    }

    fn serve(
        &mut self,
        index: QueueIndex,
        binder: &mut Binder<'_>,
        rates: &DrainRates,
        verdicts: &mut Vec<(Ticket, Verdict)>,
        scratch: &mut Scratch,
    ) {
        let now = binder.now;
        let Some(cell) = binder.board.queue(index) else { return };
        let due = now >= self.recheck_at || now >= self.line.promote_at();
        if !self.has_news(Some(cell)) && !due {
            return;
        }
        // Before the ranks are examined: room that is made during this turn starts another turn.
        self.seen = cell.look();
        self.fresh = false;
        self.recheck_at = NanosSinceStart(u64::MAX);
        let flow = &binder.fleet.config.flow.queue;
        let rules = Rules {
            now,
            promote_after: flow.promote_after,
            overtaken_max: flow.overtaken_max,
            ranks: binder.fleet.ranks.len(),
        };
        scratch.placement.held_back.clear();
        let pace = PoolPace::of(binder, rates, index);
        let memory = &mut scratch.placement;
        let mut places = Placement { queue: index, binder, memory, verdicts, pace };
        self.line.serve(rules, &mut places);
        // Room at ranks that this turn did not examine will not be signaled again.
        self.fresh |= self.line.last_turn().is_partial;
        scratch.awaited.fill(false);
        let mut waits_for_any = false;
        for target in self.line.targets() {
            match target {
                None => waits_for_any = true,
                Some(rank) => {
                    if let Some(awaited) = scratch.awaited.get_mut(rank.index()) {
                        *awaited = true;
                    }
                }
            }
        }
        self.reroute_stale(binder, verdicts);
        self.publish_spare(binder, index, &scratch.awaited, waits_for_any);
        if !self.line.is_empty() && is_held_by_time(binder, index) {
            self.recheck_at = self.recheck_at.min(now.plus(QUEUE_RECHECK));
        }
        self.close_window(binder, index);
        debug_assert!(self.recheck_at > now, "a queue that looks again at once looks for ever");
    }

    /// Mode `endpoint`: reroutes requests that have waited for `queue.stale_after`.
    fn reroute_stale(&mut self, binder: &Binder<'_>, verdicts: &mut Vec<(Ticket, Verdict)>) {
        let queue = &binder.fleet.config.flow.queue;
        if queue.mode != QueueMode::Endpoint {
            return;
        }
        let after = u64::try_from(queue.stale_after.as_nanos()).unwrap_or(u64::MAX);
        let since = NanosSinceStart(binder.now.0.saturating_sub(after));
        while let Some(ticket) = self.line.joined_until(since).filter(|_| binder.now.0 >= after) {
            drop(self.line.remove(ticket));
            verdicts.push((ticket, Verdict::Reroute));
            // A request behind the rerouted request was not examined, and may fit where that did
            // not.
            self.fresh = true;
        }
        if let Some(oldest) = self.line.oldest_movable() {
            self.recheck_at = self.recheck_at.min(oldest.plus(queue.stale_after));
        }
    }

    /// Marks ranks with room that no queued request can use: a new request that finds the queue
    /// full may take them.
    fn publish_spare(
        &self,
        binder: &Binder<'_>,
        index: QueueIndex,
        awaited: &[bool],
        waits_for_any: bool,
    ) {
        let mode = binder.fleet.config.flow.queue.mode;
        let pool = binder.fleet.pool(PoolIndex(index.0)).filter(|_| mode == QueueMode::Pool);
        let own = (mode == QueueMode::Endpoint).then_some(RankIndex(index.0));
        let ranks = pool.map_or(&[][..], |pool| &pool.ranks).iter().copied().chain(own);
        for rank in ranks {
            if let Some(load) = binder.board.rank(rank) {
                // A place that comes free later goes to a waiting request first.
                let is_left = || {
                    !waits_for_any
                        && !is_awaited(awaited, rank)
                        && binder.has_room_for_some(rank, LeaseCost::default)
                };
                // A rank without a free place is not spare: when a place comes free, a new request
                // would take it before the queue is served.
                load.set_spare(self.line.is_empty() || is_left());
            }
        }
    }

    /// Closes the window early once enough requests have left the queue. After its verdict was
    /// posted, a request no longer waits, though the queue's cell counts the request until its
    /// shard receives the verdict.
    fn close_window(&self, binder: &Binder<'_>, index: QueueIndex) {
        let windows = binder.board.windows();
        let open = |&pool: &PoolIndex| windows.open_here_until(pool, binder.now).is_some();
        let Some(pool) = binder.fleet.pool_of(index).filter(open) else { return };
        // The sums of bytes and tokens include requests until their shard receives the verdict.
        // While any request waits, a later turn tests again.
        let waiting = u64::try_from(self.line.len()).unwrap_or(u64::MAX);
        if waiting == 0 || is_at_low_water(binder.fleet, binder.board, pool, index, waiting) {
            windows.close(pool, WindowOrigin::Here, binder.now);
        }
    }
}

fn is_awaited(awaited: &[bool], rank: RankIndex) -> bool {
    awaited.get(rank.index()).is_some_and(|&awaited| awaited)
}

/// Is any rank of the queue closed for a reason that ends without a returned lease: a refusal by
/// the engine, a load report, a breaker? For decode ranks also: is the breaker of a prefill rank
/// open, which excludes the decode ranks for now?
fn is_held_by_time(binder: &Binder<'_>, index: QueueIndex) -> bool {
    let fleet = binder.fleet;
    let ranks = || (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    let here = || ranks().filter(|&rank| fleet.queue_of(rank) == Some(index));
    let is_open = |rank| binder.board.rank(rank).is_some_and(RankLoad::is_restricted);
    let is_shut = |rank| {
        let limits = binder.board.limits_now(rank, fleet.room(rank));
        binder.board.rank(rank).is_some_and(|load| {
            load.busy_until(None) > binder.now
                || load.places_now(None, binder.now).is_some()
                || load.is_restricted()
                // The first byte of a request that began before this limit signals no queue.
                || !load.takes_prefill(limits)
        })
    };
    here().any(is_shut)
        || here().any(|rank| fleet.serves(rank, Leg::Decode))
            && ranks().any(|rank| fleet.serves(rank, Leg::Prefill) && is_open(rank))
}

//! The queues that one shard is home to. Requests join and leave by message; whenever a place may
//! be free the home binds those at the front, takes their leases, and posts the verdicts.

use super::bounds::is_at_low_water;
use super::line::{Line, Rules, TurnEnd};
use super::place::{Placement, PlacementMemory, PoolPace};
use forebay_base::limits::{QUEUE_RECHECK, RANKS_MAX};
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_config::QueueMode;
use forebay_fleet::account::LeaseCost;
use forebay_fleet::admit::DrainRates;
use forebay_fleet::mailbox::{Ticket, Verdict, Waiter};
use forebay_fleet::worker::{Leg, LoadBoard, OpenedBy, QueueCell, RankLoad};
use forebay_index::Overlaps;
use forebay_select::{Binder, Candidates};
use std::collections::BTreeMap;
use std::time::Duration;

/// All queues of one home.
#[derive(Debug)]
pub struct Home {
    /// In order, so that a turn is the same every time.
    queues: BTreeMap<QueueIndex, Queue>,
    scratch: Scratch,
}

/// Working memory of one look at a queue.
#[derive(Debug)]
struct Scratch {
    placement: PlacementMemory,
    /// By rank: a request waits for it.
    awaited: Vec<bool>,
}

#[derive(Debug)]
struct Queue {
    line: Line,
    /// [`QueueCell::look`](forebay_fleet::worker::QueueCell::look) when it was looked at last.
    seen: u32,
    /// Somebody joined since, or the fleet changed.
    fresh: bool,
    /// When time alone may have made room.
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
    /// Takes a request in. Call [`Self::serve`] before the shard sleeps.
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

    /// A request does not wait any more. Unknown ones have had their verdict.
    pub(crate) fn leave(&mut self, queue: QueueIndex, ticket: Ticket) {
        if let Some(queue) = self.queues.get_mut(&queue)
            && queue.line.remove(ticket).is_some()
        {
            // Who stood behind may fit where this one did not.
            queue.fresh = true;
        }
    }

    /// Everything may be different: workers, pools, limits.
    pub(crate) fn fleet_changed(&mut self) {
        for queue in self.queues.values_mut() {
            queue.line.fleet_changed();
            queue.fresh = true;
        }
    }

    /// True when nobody waits here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// What the last turn of a queue has left undone; `None`: nothing waits there.
    #[must_use]
    pub fn last_turn(&self, queue: QueueIndex) -> Option<&TurnEnd> {
        self.queues.get(&queue).map(|queue| queue.line.last_turn())
    }

    /// The rank that a request waits for, if it waits here for one.
    #[must_use]
    pub fn target(&self, queue: QueueIndex, ticket: Ticket) -> Option<RankIndex> {
        self.queues.get(&queue)?.line.target(ticket)?
    }

    /// Has anything happened since the last look? To be asked after the shard has announced its
    /// sleep and before it sleeps: room that is made while it is awake rings no bell.
    #[must_use]
    pub fn has_news(&self, board: &LoadBoard) -> bool {
        let news = |(&index, queue): (&QueueIndex, &Queue)| queue.has_news(board.queue(index));
        self.queues.iter().any(news)
    }

    /// When the home has to look again even if nothing is heard.
    #[must_use]
    pub fn look_again_at(&self) -> Option<NanosSinceStart> {
        let at = |queue: &Queue| queue.recheck_at.min(queue.line.promote_at());
        self.queues.values().map(at).min().filter(|at| at.0 != u64::MAX)
    }

    /// Binds all that can be bound now, in every queue for which there is news. Adds the verdicts
    /// and whom they are for, in order.
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
        // Before the look at the ranks: room that is made during the turn is news for the next.
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
        // Room that was made where this turn did not look is no news to come.
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
        self.turn_away_stale(binder, verdicts);
        self.tell_spare(binder, index, &scratch.awaited, waits_for_any);
        if !self.line.is_empty() && is_held_by_time(binder, index) {
            self.recheck_at = self.recheck_at.min(now.plus(QUEUE_RECHECK));
        }
        self.close_window(binder, index);
        debug_assert!(self.recheck_at > now, "a queue that looks again at once looks for ever");
    }

    /// Mode `endpoint`: those who have waited long look for another rank.
    fn turn_away_stale(&mut self, binder: &Binder<'_>, verdicts: &mut Vec<(Ticket, Verdict)>) {
        let queue = &binder.fleet.config.flow.queue;
        if queue.mode != QueueMode::Endpoint {
            return;
        }
        let after = u64::try_from(queue.stale_after.as_nanos()).unwrap_or(u64::MAX);
        let since = NanosSinceStart(binder.now.0.saturating_sub(after));
        while let Some(ticket) = self.line.joined_until(since).filter(|_| binder.now.0 >= after) {
            drop(self.line.remove(ticket));
            verdicts.push((ticket, Verdict::Reroute));
            // Who stood behind it has not been looked at, and may fit where it did not.
            self.fresh = true;
        }
        if let Some(oldest) = self.line.oldest_movable() {
            self.recheck_at = self.recheck_at.min(oldest.plus(queue.stale_after));
        }
    }

    /// Who comes and finds the queue full may have what nobody here can use.
    fn tell_spare(
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
                // Of a place that comes free later those who wait hear first.
                let is_left = || {
                    !waits_for_any
                        && !is_awaited(awaited, rank)
                        && binder.has_room_for_some(rank, LeaseCost::default)
                };
                // A rank without a place is not left: when its place comes free, a newcomer would
                // have it before the home looks.
                load.set_spare(self.line.is_empty() || is_left());
            }
        }
    }

    /// Enough have left the queue: new requests may come before the window's time is over. Who has
    /// its verdict under way does not wait any more, though it is counted until its own shard has
    /// it.
    fn close_window(&self, binder: &Binder<'_>, index: QueueIndex) {
        let windows = binder.board.windows();
        let open = |&pool: &PoolIndex| windows.open_here_until(pool, binder.now).is_some();
        let Some(pool) = binder.fleet.pool_of(index).filter(open) else { return };
        // Those with a verdict under way are in the sums of bytes and tokens; while anybody waits
        // there is a next look.
        let waiting = u64::try_from(self.line.len()).unwrap_or(u64::MAX);
        if waiting == 0 || is_at_low_water(binder.fleet, binder.board, pool, index, waiting) {
            windows.close(pool, OpenedBy::Here, binder.now);
        }
    }
}

fn is_awaited(awaited: &[bool], rank: RankIndex) -> bool {
    awaited.get(rank.index()).is_some_and(|&awaited| awaited)
}

/// Is any of the ranks closed for now by what no lease tells the end of: a refusal of the engine, a
/// report, a breaker? For decode ranks also: is the breaker of a prefill rank open, so that they
/// are no candidates for now?
fn is_held_by_time(binder: &Binder<'_>, index: QueueIndex) -> bool {
    let fleet = binder.fleet;
    let ranks = || (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    let here = || ranks().filter(|&rank| fleet.queue_of(rank) == Some(index));
    let is_open = |rank| binder.board.rank(rank).is_some_and(RankLoad::is_open);
    let is_shut = |rank| {
        let limits = binder.board.limits_now(rank, fleet.room(rank));
        binder.board.rank(rank).is_some_and(|load| {
            load.busy_until(None) > binder.now
                || load.places_now(None, binder.now).is_some()
                || load.is_open()
                // What began before there was this limit tells nobody of its first byte.
                || !load.takes_prefill(limits)
        })
    };
    here().any(is_shut)
        || here().any(|rank| fleet.serves(rank, Leg::Decode))
            && ranks().any(|rank| fleet.serves(rank, Leg::Prefill) && is_open(rank))
}

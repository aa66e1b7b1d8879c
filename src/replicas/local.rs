//! The bridge to the load board: reads this router's load from it, and writes the load of other
//! replicas to it.

use super::own_load::{ForeignUsage, KvInUse, Local, LocalRank, LocalWindow};
use super::replica::Replica;
use super::tenants::TenantShare;
use super::wire::{ReplicaId, WindowLeg};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_board::{ForeignOrigin, KvReport, LoadBoard, QueueCell, RankLoad, WindowOrigin};
use forebay_fleet::worker::pools;
use forebay_fleet::worker::{FleetSnapshot, WorkerState};
use std::collections::HashMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// Most models that name a window; base models before adapters.
const WINDOW_MODELS_MAX: usize = 64;
/// Demand of a busy rank beyond its usage, as a divisor of its limit: the next request should find
/// room.
const HEADROOM: u64 = 8;
/// Smallest difference by which another replica's window is shortened: each report contains the
/// remaining time, and message delay makes it inexact.
const SHORTER_MIN: Duration = Duration::from_millis(50);

fn leg(pool: PoolIndex) -> WindowLeg {
    if pools::is_prefill(pool) { WindowLeg::Prefill } else { WindowLeg::Answer }
}

fn model_names(fleet: &FleetSnapshot, pool: PoolIndex) -> Vec<&str> {
    pools::models(fleet, pool).map(|(_, model)| &*model.name).collect()
}

/// The fleet with its load.
#[derive(Debug)]
pub(crate) struct LocalView {
    board: Arc<LoadBoard>,
    fleet: Arc<FleetSnapshot>,
    /// Usable ranks that share a rank's queue.
    sharing: Vec<u64>,
    /// Names of each engine rank that has several: its rank in use first.
    names: HashMap<RankIndex, Vec<RankIndex>>,
    written: Vec<ForeignUsage>,
    /// Ends of the windows of other replicas, as written to the load board.
    windows: HashMap<(PoolIndex, WindowOrigin), NanosSinceStart>,
    /// Other replicas' usage of tenants' limits.
    shared: TenantShare,
    is_draining: bool,
}

impl LocalView {
    pub(crate) fn new(board: Arc<LoadBoard>) -> Self {
        Self {
            board,
            fleet: Arc::default(),
            sharing: Vec::new(),
            names: HashMap::new(),
            written: Vec::new(),
            windows: HashMap::new(),
            shared: TenantShare::default(),
            is_draining: false,
        }
    }

    /// Sets a new fleet, which extends the previous list of ranks.
    pub(crate) fn set_fleet(
        &mut self,
        fleet: &Arc<FleetSnapshot>,
        replica: &mut Replica,
        now: NanosSinceStart,
    ) {
        self.fleet = Arc::clone(fleet);
        for rank in fleet.ranks.iter().skip(replica.rank_count()) {
            let worker = fleet.workers.get(rank.worker.index());
            let authority =
                worker.map_or_else(Arc::default, |worker| Arc::clone(&worker.authority));
            replica.add_rank(&authority, rank.dp_rank.0, now);
        }
        let usable = |index: &&RankIndex| {
            fleet.rank(**index).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
        };
        let sharing = fleet.ranks.iter().enumerate().map(|(index, rank)| {
            let index = RankIndex::try_from_index(index);
            let is_pool = index
                .and_then(|index| fleet.queue_of(index))
                .is_some_and(|queue| queue.0 == rank.pool.0);
            let pool = fleet.pool(rank.pool).filter(|_| is_pool);
            let count = pool.map_or(1, |pool| pool.ranks.iter().filter(usable).count());
            u64::try_from(count).unwrap_or(u64::MAX).max(1)
        });
        self.sharing = sharing.collect();
        self.names.clear();
        for (place, rank) in fleet.ranks.iter().enumerate() {
            if let (Some(used), Some(other)) = (rank.used_as, RankIndex::try_from_index(place)) {
                self.names.entry(used).or_insert_with(|| vec![used]).push(other);
            }
        }
    }

    /// All names of the rank's engine rank, the name in use first.
    fn names_of<'a>(&'a self, rank: &'a RankIndex) -> &'a [RankIndex] {
        let used = self.fleet.ranks.get(rank.index()).and_then(|rank| rank.used_as);
        self.names.get(&used.unwrap_or(*rank)).map_or(slice::from_ref(rank), Vec::as_slice)
    }

    /// Message with tenants' usage here, if it is due.
    pub(crate) fn say_use(&mut self, me: ReplicaId, now: NanosSinceStart) -> Option<Vec<u8>> {
        self.shared.say(me, &self.fleet.tenants, self.board.tenants(), now)
    }

    /// Applies tenants' usage at another replica.
    pub(crate) fn hear_use(&mut self, bytes: &[u8], now: NanosSinceStart) -> bool {
        self.shared.hear(bytes, &self.fleet.tenants, self.board.tenants(), now)
    }

    /// Ends the demand for further requests.
    pub(crate) const fn drain(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn fleet(&self) -> &FleetSnapshot {
        &self.fleet
    }

    /// Load of all ranks in fleet order. Each name of an engine has the whole load of the engine:
    /// replicas may use the engine by different names, and compare their loads name by name.
    pub(crate) fn ranks(&self) -> Vec<LocalRank> {
        let indices = (0..self.fleet.ranks.len()).filter_map(RankIndex::try_from_index);
        indices.map(|index| self.rank(index)).collect()
    }

    fn rank(&self, index: RankIndex) -> LocalRank {
        let names = self.names_of(&index);
        let index = names.first().copied().unwrap_or(index);
        let Some(load) = self.board.rank(index) else { return LocalRank::default() };
        let loads = || names.iter().filter_map(|name| self.board.rank(*name));
        let room = self.fleet.room(index);
        let queue = self.fleet.queue_of(index).and_then(|queue| self.board.queue(queue));
        let sharing = self.sharing.get(index.index()).copied().unwrap_or(1);
        let held = loads().map(|load| u64::from(load.in_flight())).sum();
        // An empty rank with room that no waiting request can use: the requests wait for other
        // ranks.
        let queue = queue.filter(|_| held > 0 || !load.is_spare());
        let waiting = u64::from(queue.map_or(0, QueueCell::waiting));
        let waiting_tokens = queue.map_or(0, QueueCell::waiting_tokens);
        let is_active = held > 0 || waiting > 0;
        // A request waits although the rank is empty: it is larger than this replica's part of the
        // rank.
        let is_starved = held == 0 && waiting > 0;
        let local = |max: u64, held: u64, waiting: u64| {
            let headroom = if is_active && !self.is_draining { (max / HEADROOM).max(1) } else { 0 };
            let want = held.saturating_add(waiting).saturating_add(headroom).min(max);
            Local { max, held, want: if is_starved { max.saturating_add(1) } else { want } }
        };
        let places_max = if room.is_closed() { 0 } else { load.limited(room).places_max };
        LocalRank {
            places: local(u64::from(places_max), held, waiting.div_ceil(sharing)),
            // Any of the ranks may get the largest waiting request, so the demand on each includes
            // all waiting tokens.
            kv: local(room.kv_tokens_max, loads().map(RankLoad::kv_tokens).sum(), waiting_tokens),
            prefill: loads().map(RankLoad::prefill_tokens).sum(),
            kv_in_use: self.kv_in_use(index),
        }
    }

    fn kv_in_use(&self, index: RankIndex) -> Option<KvInUse> {
        let KvReport { used_tokens, at } = self.board.kv_report(index)?;
        let counts_until = at.plus(self.fleet.config.load.age_max);
        Some(KvInUse { used_tokens, at, counts_until })
    }

    /// Windows that this router has open.
    pub(crate) fn open_windows(&self, now: NanosSinceStart) -> Vec<LocalWindow> {
        let windows = self.board.windows();
        let open = |(pool, _)| {
            let until = windows.open_here_until(pool, now)?;
            let hand_until = windows.open_by_until(pool, WindowOrigin::Hand, now);
            Some(LocalWindow { pool, leg: leg(pool), models: self.models(pool), until, hand_until })
        };
        self.fleet.used_pools().filter_map(open).collect()
    }

    fn models(&self, pool: PoolIndex) -> Vec<String> {
        let named = |is_adapter: bool| {
            let models = pools::models(&self.fleet, pool);
            models.filter(move |(_, model)| model.is_adapter() == is_adapter)
        };
        let names = named(false).chain(named(true)).map(|(_, model)| model.name.to_string());
        names.take(WINDOW_MODELS_MAX).collect()
    }

    /// Writes other replicas' part of each rank for the shards, and wakes waiting requests if it
    /// has shrunk.
    pub(crate) fn write_elsewhere(&mut self, replica: &Replica, ranks: &[LocalRank]) {
        self.written.resize(ranks.len().max(self.written.len()), ForeignUsage::default());
        for (position, local) in ranks.iter().enumerate() {
            let elsewhere = self.elsewhere(replica, position, local);
            let Some(written) = self.written.get_mut(position) else { continue };
            let Some(index) = RankIndex::try_from_index(position) else { continue };
            let Some(load) = self.board.rank(index) else { continue };
            let before = std::mem::replace(written, elsewhere);
            if before != elsewhere {
                let places = u32::try_from(elsewhere.places).unwrap_or(u32::MAX);
                load.set_prefill_elsewhere(elsewhere.prefill);
                self.board.set_elsewhere(index, ForeignOrigin::Replicas, places, elsewhere.kv);
            }
        }
    }

    /// Usage of a rank by other replicas: the largest by any name of its engine. So the limit holds
    /// for all replicas that share a name with this replica.
    pub(crate) fn elsewhere(
        &self,
        replica: &Replica,
        position: usize,
        local: &LocalRank,
    ) -> ForeignUsage {
        let Some(index) = RankIndex::try_from_index(position) else {
            return ForeignUsage::default();
        };
        let by_name =
            self.names_of(&index).iter().map(|name| replica.elsewhere(name.index(), local));
        by_name.fold(ForeignUsage::default(), ForeignUsage::larger)
    }

    /// Opens and closes windows of other replicas.
    pub(crate) fn write_windows(&mut self, replica: &Replica, now: NanosSinceStart) {
        let fleet = Arc::clone(&self.fleet);
        for (pool, _) in fleet.used_pools() {
            let window = replica.peers().window(leg(pool), &model_names(&fleet, pool));
            self.write_window(pool, WindowOrigin::Elsewhere, window.queue_until, now);
            self.write_window(pool, WindowOrigin::HandElsewhere, window.hand_until, now);
        }
    }

    fn write_window(
        &mut self,
        pool: PoolIndex,
        by: WindowOrigin,
        until: Option<NanosSinceStart>,
        now: NanosSinceStart,
    ) {
        let windows = self.board.windows();
        let until = until.filter(|until| *until > now);
        let before = self.windows.get(&(pool, by)).copied().filter(|before| *before > now);
        let is_shorter = match (before, until) {
            (Some(before), Some(until)) => until.plus(SHORTER_MIN) < before,
            (Some(_), None) => true,
            (None, _) => false,
        };
        match until {
            Some(until) if is_shorter => {
                windows.set_end(pool, by, now, until);
                self.windows.insert((pool, by), until);
            }
            Some(until) => {
                windows.open(pool, by, now, until);
                let latest = self.windows.entry((pool, by)).or_insert(until);
                *latest = until.max(*latest);
            }
            None if is_shorter => {
                windows.close(pool, by, now);
                self.windows.remove(&(pool, by));
            }
            None => {}
        }
    }

    /// Names of the replicas that hold the pool's window open.
    pub(crate) fn window_holders(
        &self,
        replica: &Replica,
        pool: PoolIndex,
        now: NanosSinceStart,
    ) -> Vec<String> {
        replica.peers().window_holders(leg(pool), &model_names(&self.fleet, pool), now)
    }

    /// Openings and closings of windows by this router so far.
    pub(crate) fn edges(&self) -> u64 {
        self.board.windows().edges()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_board::{LoadReading, QueueDemand, QueueLimits};
    use forebay_fleet::worker::{Rank, RoomDemand, RoomLimits, test_support};

    const RANK: RankIndex = RankIndex(0);

    /// A router in front of one rank.
    fn router(id: u64, fleet: &Arc<FleetSnapshot>) -> (Replica, LocalView) {
        let now = NanosSinceStart(1);
        let mut replica = Replica::new(ReplicaId(id), format!("router-{id}"), now);
        let mut local = LocalView::new(Arc::new(LoadBoard::new()));
        local.set_fleet(fleet, &mut replica, now);
        (replica, local)
    }

    #[test]
    fn shards_learn_of_the_prompts_that_others_have_sent() {
        let fleet = Arc::new(FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: vec![test_support::rank(0)],
            ..FleetSnapshot::default()
        });
        let (mut replica, mut local) = router(1, &fleet);
        let (mut other, others) = router(2, &fleet);
        let load = others.board.rank(RANK).unwrap();
        let mut prefill_elsewhere = |says: bool, at_ms: u64| {
            let now = NanosSinceStart(at_ms * 1_000_000);
            if says && let (_, Some((kind, bytes))) = other.turn(&others.ranks(), &[], now) {
                replica.hear(&kind.subject("test"), &bytes, now);
            }
            let ranks = local.ranks();
            replica.turn(&ranks, &[], now);
            local.write_elsewhere(&replica, &ranks);
            local.board.rank(RANK).unwrap().prefill_elsewhere()
        };
        load.add_prefill(700);
        assert_eq!(prefill_elsewhere(true, 1_000), 700);
        load.sub_prefill(500);
        assert_eq!(prefill_elsewhere(true, 2_000), 200);
        assert_eq!(prefill_elsewhere(false, 4_000), 200);
        assert_eq!(prefill_elsewhere(false, 6_000), 0, "a silent router is forgotten");
    }

    /// A window of an operator reaches the other replica as an order, and a window of a full queue
    /// as a lack of room. Each message with all windows, or with changes alone.
    #[test]
    fn a_window_keeps_its_origin_on_the_way() {
        let fleet = Arc::new(test_support::two_pools());
        let pool = fleet.used_pools().next().unwrap().0;
        let (mut here, mut local) = router(1, &fleet);
        let (mut other, others) = router(2, &fleet);
        let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
        let mut open_at = |now_ms: u64| {
            let now = at(now_ms);
            let open = others.open_windows(now);
            let change = other.windows(&open, now);
            let load = other.turn(&others.ranks(), &open, now).1;
            for (kind, bytes) in change.into_iter().chain(load) {
                here.hear(&kind.subject("test"), &bytes, now);
                local.write_windows(&here, now);
            }
            let windows = local.board.windows();
            let is_open = |by: &WindowOrigin| windows.open_by_until(pool, *by, now).is_some();
            let open: Vec<_> = WindowOrigin::ALL.into_iter().filter(is_open).collect();
            let holders = local.window_holders(&here, pool, now);
            assert_eq!(holders.is_empty(), open.is_empty());
            (open, windows.open_by_hand_until(pool, now).map(|end| end.since(now) / 1_000_000))
        };
        let windows = others.board.windows();
        assert_eq!(open_at(1_000), (vec![], None));
        windows.open(pool, WindowOrigin::Here, at(1_001), at(31_001));
        assert_eq!(open_at(1_001), (vec![WindowOrigin::Elsewhere], None));
        // The later end of the queue does not hide the order.
        windows.open(pool, WindowOrigin::Hand, at(1_002), at(21_002));
        let both = vec![WindowOrigin::Elsewhere, WindowOrigin::HandElsewhere];
        assert_eq!(open_at(1_002), (both, Some(20_000)));
        windows.close(pool, WindowOrigin::Here, at(1_003));
        assert_eq!(open_at(2_100), (vec![WindowOrigin::HandElsewhere], Some(18_902)));
        windows.close(pool, WindowOrigin::Hand, at(2_101));
        assert_eq!(open_at(2_101), (vec![], None));
    }

    #[test]
    fn requests_that_wait_for_other_ranks_claim_nothing_of_an_empty_rank() {
        let room = RoomLimits { kv_tokens_max: 10_000, places_max: 8, ..RoomLimits::default() };
        let fleet = Arc::new(FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: vec![Rank { room, ..test_support::rank(0) }],
            ..FleetSnapshot::default()
        });
        let (_, local) = router(1, &fleet);
        let queue = fleet.queue_of(RANK).and_then(|queue| local.board.queue(queue)).unwrap();
        let wanted = QueueDemand { tokens: 3_000, ..QueueDemand::default() };
        queue.join(QueueLimits::NONE, wanted).unwrap();
        let wants = || {
            let rank = local.rank(RANK);
            [rank.places.want, rank.kv.want]
        };
        assert_eq!(wants(), [9, 10_001], "an empty rank, and a request waits for it");
        local.board.rank(RANK).unwrap().set_spare(true);
        assert_eq!(wants(), [0, 0]);
        let load = local.board.rank(RANK).unwrap();
        let two = RoomDemand { kv_tokens: 2_000, prefill_tokens: 0 };
        assert!(load.try_acquire(room, two).is_some());
        assert_eq!(wants(), [3, 6_250], "what runs there makes room, which any may use");
        load.set_spare(false);
        assert_eq!(wants(), [3, 6_250]);
    }

    /// Two routers with 4,000 tokens each on a rank of 10,000. Has the first router room for 3,000
    /// more, so long after a report of the tokens in use?
    fn has_room(used_tokens: Option<u64>, age_ms: u64) -> bool {
        let room = RoomLimits { kv_tokens_max: 10_000, ..RoomLimits::default() };
        let fleet = Arc::new(FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: vec![Rank { room, ..test_support::rank(0) }],
            ..FleetSnapshot::default()
        });
        let mut routers = [router(1, &fleet), router(2, &fleet)];
        let wanted = |kv_tokens| RoomDemand { kv_tokens, prefill_tokens: 0 };
        for (_, local) in &routers {
            let load = local.board.rank(RANK).unwrap();
            assert!(load.try_acquire(room, wanted(4_000)).is_some());
        }
        let reported_at = NanosSinceStart(2_000_000_000);
        let end = reported_at.plus(Duration::from_millis(age_ms));
        let mut now = NanosSinceStart(1);
        while now <= end {
            if now >= reported_at {
                let reading = LoadReading { used_tokens, ..LoadReading::default() };
                routers.iter().for_each(|(_, local)| {
                    if local.board.kv_report(RANK).is_none() {
                        local.board.report_kv(RANK, &reading, now);
                    }
                });
            }
            for sender in 0..2 {
                let (replica, local) = &mut routers[sender];
                let ranks = local.ranks();
                let (_, message) = replica.turn(&ranks, &[], now);
                local.write_elsewhere(replica, &ranks);
                let Some((kind, bytes)) = message else { continue };
                routers[1 - sender].0.hear(&kind.subject("test"), &bytes, now);
            }
            now = now.plus(Duration::from_millis(20));
        }
        let load = routers[0].1.board.rank(RANK).unwrap();
        load.has_room(room, wanted(3_000))
    }

    #[test]
    fn a_prefix_that_two_routers_count_leaves_room_for_both() {
        assert!(!has_room(None, 500), "half of the rank is 5,000");
        assert!(has_room(Some(4_000), 500), "the engine holds the prefix once");
        assert!(!has_room(Some(8_000), 500), "both counts are right");
        assert!(has_room(Some(4_000), 4_500) && !has_room(Some(4_000), 5_500), "too old");
    }
}

//! Turns readings into reports: compares them with this router's requests in flight, stores them
//! for the admin API, and sends them to the shards. The first report of a rank after a tick is sent
//! at once; of later reports, the newest is sent at the next tick. Used by all tasks of the control
//! plane's thread; never borrowed across an await.

use super::births::ProcessBirths;
use super::plan::{LoadPlan, PlannedRank};
use super::readings::{ReadFault, Readings};
use forebay_base::{Clock, NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::{
    FirstTokenCounts, LearnedLimits, LoadBoard, LoadReading, LoadReport, LoadReports, OwnLoad,
};
use forebay_fleet::worker::FleetSnapshot;
use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Bounds of the histogram of scrape times: in milliseconds, and in seconds as in the label `le`.
pub const SCRAPE_BOUNDS: [(u64, f64); 11] = [
    (1, 1e-3),
    (2, 2e-3),
    (5, 5e-3),
    (10, 1e-2),
    (20, 2e-2),
    (50, 5e-2),
    (100, 0.1),
    (200, 0.2),
    (500, 0.5),
    (1_000, 1.0),
    (2_000, 2.0),
];
/// After this time without progress, a rank's figures are outdated. A step takes less, even with a
/// large prompt.
const STILL_MAX: Duration = Duration::from_secs(3);
const FAULTS: usize = ReadFault::ALL.len();

/// Sends reports to the shards; returns the number of dropped reports.
type Post = Box<dyn Fn(&[LoadReport]) -> u64>;

/// All load reports, and counts of faults and scrapes.
pub struct LoadReporter {
    clock: Clock,
    board: Arc<LoadBoard>,
    post: Post,
    state: RefCell<ReportState>,
    limits: RefCell<LearnedLimits>,
    first_tokens: RefCell<FirstTokenCounts>,
    births: RefCell<ProcessBirths>,
}

#[derive(Debug)]
struct ReportState {
    reports: LoadReports,
    /// Ranks with a report sent since the last tick.
    posted: BTreeSet<RankIndex>,
    /// Ranks with a newest report that is not sent yet.
    fresh: BTreeSet<RankIndex>,
    /// This router's own load at the last tick, by rank.
    own_before: Vec<OwnLoad>,
    last: BTreeMap<RankIndex, LastReading>,
    /// Counts of faults, by worker.
    faults: Vec<[u64; FAULTS]>,
    scrapes: Scrapes,
    dropped: u64,
}

/// The last reading of a rank, and the time of its last change.
#[derive(Clone, Copy, Debug)]
struct LastReading {
    reading: LoadReading,
    read_at: NanosSinceStart,
    changed_at: NanosSinceStart,
    /// Last change of the figures that only an engine's steps change.
    moved_at: NanosSinceStart,
}

impl LastReading {
    /// Updates the times. A stalled engine still answers scrapes, and its waiting requests pile up,
    /// so counts of waiting requests show no step.
    fn moved(self, reading: LoadReading, now: NanosSinceStart) -> Self {
        let work = |all| LoadReading { waiting: 0, deferred: 0, waiting_tokens: None, ..all };
        let is_same = self.reading == reading;
        let is_still = is_same || work(self.reading) == work(reading);
        Self {
            reading,
            read_at: now,
            changed_at: if is_same { self.changed_at } else { now },
            moved_at: if is_still { self.moved_at } else { now },
        }
    }
}

/// Histogram of scrape times. The last bucket counts all longer scrapes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrapes {
    /// Answers per bucket; bounds are inclusive.
    pub buckets: [u64; SCRAPE_BOUNDS.len() + 1],
    /// Sum of all times.
    pub sum: Duration,
}

impl LoadReporter {
    /// Sets the age up to which reports count.
    pub fn set_age_max(&self, age_max: Duration) {
        self.state.borrow_mut().reports.set_age_max(age_max);
    }

    /// `age_max`: age up to which reports count.
    pub fn new(clock: Clock, board: Arc<LoadBoard>, age_max: Duration, post: Post) -> Self {
        let state = ReportState {
            reports: LoadReports::new(age_max),
            posted: BTreeSet::new(),
            fresh: BTreeSet::new(),
            own_before: Vec::new(),
            last: BTreeMap::new(),
            faults: Vec::new(),
            scrapes: Scrapes::default(),
            dropped: 0,
        };
        let limits = RefCell::default();
        let first_tokens = RefCell::default();
        let births = RefCell::default();
        Self { clock, board, post, state: RefCell::new(state), limits, first_tokens, births }
    }

    /// Adopts a new fleet, and learns the limits of ranks that need it.
    pub fn follow(&self, fleet: &FleetSnapshot) {
        self.limits.borrow_mut().follow(fleet, &self.board);
    }

    /// This router's current load on each rank of a plan, by dp_rank.
    #[must_use]
    pub fn own(&self, plan: &LoadPlan) -> Vec<OwnLoad> {
        let own =
            |rank: RankIndex| self.board.rank(rank).map_or_else(OwnLoad::default, OwnLoad::of);
        plan.ranks
            .iter()
            .map(|rank| rank.as_ref().map_or_else(OwnLoad::default, |r| own(r.rank)))
            .collect()
    }

    /// [`Self::own`] at the last tick.
    #[must_use]
    pub fn own_before(&self, plan: &LoadPlan) -> Vec<OwnLoad> {
        let state = self.state.borrow();
        let before = |rank: RankIndex| state.own_before.get(rank.index()).copied();
        let of = |rank: &Option<_>| rank.as_ref().and_then(|r: &PlannedRank| before(r.rank));
        plan.ranks.iter().map(|rank| of(rank).unwrap_or_default()).collect()
    }

    /// Has every rank of a plan reported within `silence_max`?
    #[must_use]
    pub fn has_recent_reports(&self, plan: &LoadPlan, silence_max: Duration) -> bool {
        let state = self.state.borrow();
        let now = self.clock.now();
        let is_recent = |rank: &PlannedRank| {
            let report = state.reports.newest(rank.rank);
            report.is_some_and(|report| Duration::from_nanos(now.since(report.at)) < silence_max)
        };
        plan.ranks.iter().flatten().all(is_recent)
    }

    /// Takes the readings of an answer. `before`: this router's load on each rank at some time
    /// before the engine computed its figures.
    pub fn lay(&self, plan: &LoadPlan, readings: &Readings, before: &[OwnLoad]) {
        let now = self.clock.now();
        let after = self.own(plan);
        let mut state = self.state.borrow_mut();
        let mut births = self.births.borrow_mut();
        births.take_start(plan.worker, readings.started_ms);
        for (dp_rank, reading) in readings.iter() {
            let Some(Some(planned)) = plan.ranks.get(dp_rank) else { continue };
            if let Some(last) = state.last.get(&planned.rank).copied() {
                self.learn(planned.rank, &last, &reading, now);
                births.take_counts(plan.worker, last.reading.progress, reading.progress);
            }
            if state.record_last(planned.rank, reading, now) {
                state.count(plan.worker, ReadFault::Still, 1);
                continue;
            }
            let at = |own: &[OwnLoad]| own.get(dp_rank).copied().unwrap_or_default();
            let own = at(before).or_more(at(&after));
            let mut limits = self.limits.borrow_mut();
            limits.observe(planned.rank, &reading, own, &self.board, now);
            drop(limits);
            let mut counts = self.first_tokens.borrow_mut();
            counts.observe(planned.rank, &reading, own, &self.board, now);
            drop(counts);
            let reading = reading.completed(planned.capacity_tokens);
            self.board.report_kv(planned.rank, &reading, now);
            let report = LoadReport::new(planned.rank, now, &reading, own);
            state.reports.take(report);
            if state.posted.insert(planned.rank) {
                state.dropped = state.dropped.saturating_add((self.post)(&[report]));
            } else {
                state.fresh.insert(planned.rank);
            }
        }
        for (fault, _) in ReadFault::ALL {
            state.count(plan.worker, fault, readings.fault_count(fault));
        }
    }

    /// Learns the decode speed of the rank, if as many requests run as at the last reading.
    fn learn(
        &self,
        rank: RankIndex,
        last: &LastReading,
        reading: &LoadReading,
        now: NanosSinceStart,
    ) {
        let running = u64::from(reading.running);
        let is_steady = running > 0 && last.reading.running == reading.running;
        if let (Some(before), Some(after), Some(past)) =
            (last.reading.progress.generated, reading.progress.generated, self.board.past(rank))
            && is_steady
        {
            past.decoded(after.saturating_sub(before) / running, now.since(last.read_at));
        }
    }

    /// Workers at which another process answers since the last call.
    #[must_use]
    pub fn take_restarted(&self) -> Vec<WorkerIndex> {
        self.births.borrow_mut().take_restarted()
    }

    /// Forgets a worker that left, with its ranks: another worker may get their places. `fleet` has
    /// the worker.
    pub fn forget(&self, worker: WorkerIndex, fleet: &FleetSnapshot) {
        self.births.borrow_mut().forget(worker);
        let mut state = self.state.borrow_mut();
        if let Some(faults) = state.faults.get_mut(worker.index()) {
            *faults = [0; FAULTS];
        }
        let of_worker = fleet.ranks.iter().enumerate().filter(|(_, rank)| rank.worker == worker);
        for rank in of_worker.filter_map(|(index, _)| RankIndex::try_from_index(index)) {
            state.last.remove(&rank);
            state.posted.remove(&rank);
            state.fresh.remove(&rank);
            state.reports.forget(rank);
        }
    }

    /// Counts a failed scrape or message.
    pub fn fault(&self, worker: WorkerIndex, fault: ReadFault) {
        self.state.borrow_mut().count(worker, fault, 1);
    }

    /// Records the time of a scrape.
    pub fn scraped(&self, took: Duration) {
        let mut state = self.state.borrow_mut();
        let is_within = |(bound_ms, _): &(u64, f64)| took <= Duration::from_millis(*bound_ms);
        let bucket = SCRAPE_BOUNDS.iter().position(is_within).unwrap_or(SCRAPE_BOUNDS.len());
        if let Some(count) = state.scrapes.buckets.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        state.scrapes.sum = state.scrapes.sum.saturating_add(took);
    }

    /// Called once per tick of the loop: records this router's own load on ranks `0..rank_count`,
    /// and sends each rank's newest report that is not sent yet.
    pub fn tick(&self, rank_count: usize) {
        let mut state = self.state.borrow_mut();
        let ranks = (0..rank_count).filter_map(RankIndex::try_from_index);
        let own = ranks.filter_map(|rank| self.board.rank(rank).map(OwnLoad::of)).collect();
        state.own_before = own;
        state.posted = std::mem::take(&mut state.fresh);
        if !state.posted.is_empty() {
            let newest = |&rank: &RankIndex| state.reports.newest(rank).copied();
            let reports: Vec<LoadReport> = state.posted.iter().filter_map(newest).collect();
            state.dropped = state.dropped.saturating_add((self.post)(&reports));
        }
    }

    /// The newest report of each rank.
    #[must_use]
    pub fn reports(&self) -> Ref<'_, LoadReports> {
        Ref::map(self.state.borrow(), |state| &state.reports)
    }

    /// When the figures of a rank last showed a step of its engine; `None`: no figures reported.
    #[must_use]
    pub fn moved_at(&self, rank: RankIndex) -> Option<NanosSinceStart> {
        self.state.borrow().last.get(&rank).map(|last| last.moved_at)
    }

    /// Count of a fault for a worker.
    #[must_use]
    pub fn fault_count(&self, worker: WorkerIndex, fault: ReadFault) -> u64 {
        let state = self.state.borrow();
        let faults = state.faults.get(worker.index());
        faults.and_then(|faults| faults.get(fault as usize)).copied().unwrap_or(0)
    }

    /// Times of all scrapes.
    #[must_use]
    pub fn scrapes(&self) -> Scrapes {
        self.state.borrow().scrapes
    }

    /// Reports that a shard had no room for.
    #[must_use]
    pub fn dropped_count(&self) -> u64 {
        self.state.borrow().dropped
    }
}

impl ReportState {
    /// Records a reading. True: for `STILL_MAX` the rank has reported work without progress. vLLM
    /// updates its figures at the end of a step. When the clients of all running requests leave,
    /// there is no further step, and the figures stay.
    fn record_last(&mut self, rank: RankIndex, reading: LoadReading, now: NanosSinceStart) -> bool {
        let new = LastReading { reading, read_at: now, changed_at: now, moved_at: now };
        let last = self.last.entry(rank).or_insert(new);
        *last = last.moved(reading, now);
        let claims_work = !reading.is_idle() && reading.progress.all.is_some();
        claims_work && Duration::from_nanos(now.since(last.changed_at)) >= STILL_MAX
    }

    fn count(&mut self, worker: WorkerIndex, fault: ReadFault, amount: u64) {
        if amount == 0 {
            return;
        }
        if self.faults.len() <= worker.index() {
            self.faults.resize(worker.index() + 1, [0; FAULTS]);
        }
        let faults = self.faults.get_mut(worker.index());
        if let Some(count) = faults.and_then(|faults| faults.get_mut(fault as usize)) {
            *count = count.saturating_add(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ReportSource;
    use forebay_board::TokenProgress;
    use forebay_fleet::worker::{Rank, test_support};

    /// The next worker in a place that was left is no restart, and has no figures of the worker
    /// before. The other workers keep theirs.
    #[test]
    fn a_worker_that_left_leaves_nothing_to_the_next_in_its_place() {
        let post: Post = Box::new(|_| 0);
        let board = Arc::new(LoadBoard::new());
        let reporter = LoadReporter::new(Clock::start(), board, Duration::from_secs(5), post);
        let workers = [WorkerIndex(0), WorkerIndex(1)];
        let rank = |worker| Rank { worker, ..test_support::rank(0) };
        let ranks = workers.map(rank).to_vec();
        let fleet = FleetSnapshot { ranks, ..FleetSnapshot::default() };
        let report = |worker: WorkerIndex, generated, started_ms| {
            let rank = RankIndex(worker.0);
            let planned = PlannedRank { rank, capacity_tokens: 0, publisher: None };
            let plan = LoadPlan {
                worker,
                name: "w".into(),
                authority: "w:1".into(),
                api_key: None,
                source: ReportSource::Metrics,
                first: 0,
                ranks: vec![Some(planned)],
            };
            let mut readings = Readings::default();
            readings.begin(1);
            let text = format!(
                "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n\
                 vllm:generation_tokens_total {generated}\n{started_ms}"
            );
            crate::read_metrics(&text, &mut readings);
            reporter.lay(&plan, &readings, &[]);
            reporter.fault(worker, ReadFault::Status);
        };
        let starts_at = |seconds| format!("process_start_time_seconds {seconds}\n");
        report(workers[0], 900, starts_at("1.5e9"));
        report(workers[1], 900, String::new());
        assert_eq!(reporter.take_restarted(), []);
        for worker in workers {
            reporter.forget(worker, &fleet);
            let other = workers[1 - usize::from(worker.0)];
            assert_eq!(reporter.moved_at(RankIndex(worker.0)), None);
            assert!(reporter.reports().newest(RankIndex(worker.0)).is_none());
            assert_eq!(reporter.fault_count(worker, ReadFault::Status), 0);
            assert_eq!(reporter.fault_count(other, ReadFault::Status), 1);
            // Later, and with fewer tokens.
            report(worker, 1, starts_at("1.6e9"));
            assert_eq!(reporter.take_restarted(), [], "another worker, and no other process");
        }
    }

    #[test]
    fn requests_that_pile_up_are_no_move() {
        let post: Post = Box::new(|_| 0);
        let board = Arc::new(LoadBoard::new());
        let reporter = LoadReporter::new(Clock::start(), board, Duration::from_secs(5), post);
        let moved_at = |running, waiting, kv_permille, at| {
            let waiting_tokens = Some(u64::from(waiting) * 100);
            let kv_permille = Some(kv_permille);
            let reading =
                LoadReading { running, waiting, waiting_tokens, kv_permille, ..Default::default() };
            let mut state = reporter.state.borrow_mut();
            assert!(!state.record_last(RankIndex(0), reading, NanosSinceStart(at)));
            drop(state);
            reporter.moved_at(RankIndex(0)).unwrap().0
        };
        assert_eq!(reporter.moved_at(RankIndex(0)), None);
        let of = |(running, waiting, kv, at)| moved_at(running, waiting, kv, at);
        assert_eq!([(2, 0, 10, 1), (2, 0, 10, 2), (2, 9, 10, 3)].map(of), [1, 1, 1]);
        assert_eq!([(2, 9, 11, 4), (3, 9, 11, 5), (3, 0, 11, 6)].map(of), [4, 5, 5]);
    }

    #[test]
    fn the_speed_of_answers_is_that_between_two_reports() {
        let board = Arc::new(LoadBoard::new());
        let post: Post = Box::new(|_| 0);
        let clock = Clock::start();
        let reporter = LoadReporter::new(clock, Arc::clone(&board), Duration::from_secs(5), post);
        let reading = |running, generated| LoadReading {
            running,
            progress: TokenProgress { generated: Some(generated), ..TokenProgress::default() },
            ..LoadReading::default()
        };
        let at = |ms: u64| NanosSinceStart(ms * 1_000_000);
        let learn = |before: LoadReading, after: LoadReading| {
            let last =
                LastReading { reading: before, read_at: at(0), changed_at: at(0), moved_at: at(0) };
            reporter.learn(RankIndex(0), &last, &after, at(1_000));
            board.past(RankIndex(0)).unwrap().decoded_in(1_000_000_000)
        };
        let unknown = learn(reading(0, 0), reading(0, 500));
        assert_eq!(learn(reading(3, 0), reading(4, 500)), unknown, "others began or ended");
        assert_eq!(learn(reading(4, 9_000), reading(4, 100)), unknown, "the engine began anew");
        assert_eq!(learn(reading(4, 100), reading(4, 900)), 200);
    }

    #[test]
    fn figures_of_work_without_progress_are_not_used() {
        let post: Post = Box::new(|_| 0);
        let board = Arc::new(LoadBoard::new());
        let reporter = LoadReporter::new(Clock::start(), board, Duration::from_secs(5), post);
        let mut state = reporter.state.borrow_mut();
        let mut still = |running, all, at_ms: u64| {
            let progress = TokenProgress { all, ..TokenProgress::default() };
            let reading = LoadReading { running, progress, ..LoadReading::default() };
            state.record_last(RankIndex(0), reading, NanosSinceStart(at_ms * 1_000_000))
        };
        assert!(!still(2, Some(10), 0) && !still(2, Some(10), 2_900));
        assert!(still(2, Some(10), 3_000) && still(2, Some(10), 60_000), "no step for 3 s");
        assert!(!still(2, Some(11), 61_000), "it goes on");
        assert!(!still(0, Some(11), 62_000) && !still(0, Some(11), 99_000), "idle is idle");
        assert!(!still(2, Some(11), 100_000) && !still(2, Some(11), 101_000));
        assert!(!still(2, None, 200_000) && !still(2, None, 300_000), "not reported");
    }
}

//! Recent events of the fleet as text, derived from consecutive fleet snapshots and from the
//! windows. Holds the last `LIVE_EVENTS_MAX` events. Costs a comparison for each change of the
//! fleet, and a look at each pool.

use super::super::calls::windows::{cause_by, opener, openers, pool_name, window_cause};
use forebay_base::limits::{LIVE_EVENTS_MAX, LOG_ALIKE_LINES_MAX};
use forebay_base::{NanosSinceStart, PoolIndex, RankIndex, WorkerIndex};
use forebay_board::{WindowOrigin, Windows};
use forebay_fleet::worker::{FleetSnapshot, Rank, Worker, WorkerState};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Older events are only in a whole snapshot.
const RECENT: Duration = Duration::from_secs(5);
/// Feed changes of a worker's ranks within that time are merged into a single event. So are changes
/// of many workers, after the first [`LOG_ALIKE_LINES_MAX`].
const TOGETHER: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct LiveEvent {
    /// Stays the same while the event grows.
    id: u64,
    /// Counts up with each change of an event.
    number: u64,
    /// Worker and its ranks, for events that grow. A rank that changes twice is in the set once.
    ranks: Option<(WorkerIndex, BTreeSet<RankIndex>)>,
    /// Number of workers, for an event about many.
    workers: Option<usize>,
    at: NanosSinceStart,
    kind: &'static str,
    text: String,
}

/// Ranks with feeds that connected or ended.
struct FeedChange<'a> {
    kind: &'static str,
    worker: WorkerIndex,
    name: &'a str,
    words: &'a str,
    ranks: BTreeSet<RankIndex>,
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: VecDeque<LiveEvent>,
    pushed_count: u64,
    /// Pools with an open window at the last check.
    open: Vec<PoolIndex>,
    /// Openings of each pool's windows at the last check, by origin.
    openings: BTreeMap<PoolIndex, [u64; WindowOrigin::ALL.len()]>,
}

impl Events {
    pub(super) fn push(&mut self, kind: &'static str, text: String, at: NanosSinceStart) {
        self.pushed_count += 1;
        if self.kept.len() >= LIVE_EVENTS_MAX {
            self.kept.pop_front();
        }
        let id = self.pushed_count;
        let number = self.pushed_count;
        self.kept.push_back(LiveEvent { id, number, ranks: None, workers: None, at, kind, text });
    }

    /// Begins an event for a worker, or adds the worker to the event of many workers.
    fn push_worker(&mut self, kind: &'static str, name: &str, words: &str, at: NanosSinceStart) {
        let is_alike = |event: &LiveEvent| {
            event.kind == kind && event.ranks.is_none() && event.at.plus(TOGETHER) > at
        };
        let text = |count| match count {
            1 => format!("1 more worker {words}"),
            _ => format!("{count} more workers: each {words}"),
        };
        if let Some(event) = self.kept.iter_mut().rev().find(|event| is_alike(event))
            && let Some(count) = event.workers
        {
            self.pushed_count += 1;
            event.number = self.pushed_count;
            event.workers = Some(count + 1);
            event.text = text(count + 1);
            return;
        }
        let alike = self.kept.iter().filter(|event| is_alike(event)).count();
        if alike < LOG_ALIKE_LINES_MAX as usize {
            self.push(kind, format!("{name} {words}"), at);
            return;
        }
        self.push(kind, text(1), at);
        if let Some(event) = self.kept.back_mut() {
            event.workers = Some(1);
        }
    }

    /// Adds ranks of a worker to its recent event of the same kind, or begins an event.
    fn push_ranks(&mut self, change: FeedChange<'_>, at: NanosSinceStart) {
        let FeedChange { kind, worker, name, words, ranks } = change;
        if ranks.is_empty() {
            return;
        }
        let text = |ranks: &BTreeSet<_>| format!("{name}: {words} {}", ranks_in_words(ranks.len()));
        let is_recent = |event: &LiveEvent| event.kind == kind && event.at.plus(TOGETHER) > at;
        for event in self.kept.iter_mut().rev().filter(|event| is_recent(event)) {
            if let Some((_, all)) = event.ranks.as_mut().filter(|(of, _)| *of == worker) {
                all.extend(ranks);
                event.text = text(all);
                self.pushed_count += 1;
                event.number = self.pushed_count;
                return;
            }
        }
        self.push(kind, text(&ranks), at);
        if let Some(event) = self.kept.back_mut() {
            event.ranks = Some((worker, ranks));
        }
    }

    /// Events as JSON, oldest first; all, or only the recent ones.
    pub(super) fn list(&self, all: bool, now: NanosSinceStart) -> Vec<Value> {
        let is_shown = |event: &&LiveEvent| all || event.at.plus(RECENT) > now;
        let shown = |event: &LiveEvent| {
            json!({
                "id": event.id,
                "number": event.number,
                "age_ms": now.since(event.at) / 1_000_000,
                "kind": event.kind,
                "text": event.text,
            })
        };
        self.kept.iter().filter(is_shown).map(shown).collect()
    }

    pub(super) fn compare(
        &mut self,
        before: &FleetSnapshot,
        after: &FleetSnapshot,
        now: NanosSinceStart,
    ) {
        for (position, worker) in after.workers.iter().enumerate() {
            let Some(index) = WorkerIndex::try_from_index(position) else { continue };
            let was = before.workers.get(position).filter(|was| was.name == worker.name);
            for (kind, words) in state_changes(was, worker) {
                self.push_worker(kind, &worker.name, words, now);
            }
            if worker.state != WorkerState::Gone {
                self.compare_feeds(before, after, index, now);
            }
        }
    }

    /// A single event for all ranks of a worker.
    fn compare_feeds(
        &mut self,
        before: &FleetSnapshot,
        after: &FleetSnapshot,
        worker: WorkerIndex,
        now: NanosSinceStart,
    ) {
        let changed = |has: fn(&Rank) -> bool, wanted: bool| -> BTreeSet<RankIndex> {
            let ranks = after.ranks.iter().enumerate().filter(|(_, rank)| rank.worker == worker);
            let changed = ranks.filter(|(position, rank)| {
                let had = before.ranks.get(*position).is_some_and(has);
                has(rank) == wanted && had != wanted
            });
            changed.filter_map(|(position, _)| RankIndex::try_from_index(position)).collect()
        };
        let is_live = |rank: &Rank| rank.kv_feed_live;
        let is_suspect = |rank: &Rank| rank.feed_suspicion.is_some();
        let name = after.workers.get(worker.index()).map_or("", |worker| &*worker.name);
        for (kind, words, ranks) in [
            ("feed", "follows the KV events of", changed(is_live, true)),
            ("lost", "lost the KV events of", changed(is_live, false)),
            ("suspected", "suspect KV events of", changed(is_suspect, true)),
            ("cleared", "no longer suspect: KV events of", changed(is_suspect, false)),
        ] {
            self.push_ranks(FeedChange { kind, worker, name, words, ranks }, now);
        }
    }

    pub(super) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        windows: &Windows,
        now: NanosSinceStart,
    ) {
        for (pool, _) in fleet.used_pools() {
            let openings = WindowOrigin::ALL.map(|by| windows.openings_by(pool, by));
            let known = self.openings.insert(pool, openings).unwrap_or_default();
            let mut opened = WindowOrigin::ALL.into_iter().zip(openings).zip(known);
            let opened = opened.find(|((_, openings), known)| openings > known);
            let is_open = windows.open_until(pool, now).is_some();
            let place = self.open.iter().position(|open| *open == pool);
            match (place, opened) {
                (None, _) if is_open => {
                    self.open.push(pool);
                    let name = pool_name(fleet, pool);
                    let by = openers(windows, pool, now);
                    let cause = window_cause(fleet, windows, pool, now);
                    let text = format!("{name}: rejection window opened ({by}): {cause}");
                    self.push("opened", text, now);
                }
                // The whole window lies between two checks.
                (None, Some(((by, _), _))) => {
                    let name = pool_name(fleet, pool);
                    let cause = cause_by(fleet, windows, pool, by);
                    let by = opener(by);
                    let text =
                        format!("{name}: rejection window opened and closed ({by}): {cause}");
                    self.push("opened", text, now);
                }
                (Some(place), _) if !is_open => {
                    self.open.swap_remove(place);
                    let name = pool_name(fleet, pool);
                    self.push("closed", format!("{name}: rejection window closed"), now);
                }
                _ => {}
            }
        }
    }
}

/// Kind and text of each change.
fn state_changes(was: Option<&Worker>, is: &Worker) -> Vec<(&'static str, &'static str)> {
    let before = was.map_or(WorkerState::Gone, |was| was.state);
    let mut changes = Vec::new();
    match (before, is.state) {
        (WorkerState::Gone, WorkerState::Gone) => return changes,
        (WorkerState::Gone, _) => changes.push(("joined", "joined the fleet")),
        (_, WorkerState::Gone) => {
            changes.push(("left", "left the fleet"));
            return changes;
        }
        _ => {}
    }
    match (before.answers(), is.state.answers()) {
        (false, true) if is.state != WorkerState::Unused => changes.push(("up", "is up")),
        (true, false) => changes.push(("down", "is down: its checks fail")),
        _ if is.state == WorkerState::Down && before != WorkerState::Down => {
            changes.push(("down", "is down: its checks fail"));
        }
        _ => {}
    }
    match (before.is_draining(), is.state.is_draining()) {
        (false, true) => changes.push(("drain", "drains: it gets nothing new")),
        (true, false) if is.state != WorkerState::Unused => {
            changes.push(("undrain", "takes requests again"));
        }
        _ => {}
    }
    match (before == WorkerState::Unused, is.state) {
        (false, WorkerState::Unused) => {
            changes.push(("unused", "is unused: another worker is the same engine"));
        }
        (true, WorkerState::Up) => changes.push(("used", "takes the requests of its engine")),
        _ => {}
    }
    changes
}

fn ranks_in_words(count: usize) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_board::WindowOrigin;
    use forebay_fleet::worker::test_support::two_pools;
    use forebay_fleet::worker::{EventSocket, FeedSuspicion, SuspicionSign};
    use std::sync::Arc;

    const NOW: NanosSinceStart = NanosSinceStart(0);

    fn kinds(events: &Events) -> Vec<&'static str> {
        events.kept.iter().map(|event| event.kind).collect()
    }

    /// M1: a second name of an engine had the events of a worker that comes up and is drained.
    #[test]
    fn a_second_name_of_an_engine_is_unused_and_neither_up_nor_drained() {
        let worker = |state| {
            let mut fleet = two_pools();
            fleet.workers[0].state = state;
            fleet
        };
        let unused = WorkerState::Unused;
        let steps = [
            (WorkerState::Unknown, &["joined"][..]),
            (unused, &["unused"]),
            (unused, &[]),
            (unused.draining(false), &["drain"]),
            (unused, &["unused"]),
            (WorkerState::Up, &["used"]),
            (unused, &["unused"]),
            (WorkerState::Down, &["down"]),
            (WorkerState::Gone, &["left"]),
        ];
        let mut before: Option<FleetSnapshot> = None;
        for (state, wanted) in steps {
            let after = worker(state);
            let was = before.as_ref().map(|before| &before.workers[0]);
            let found = state_changes(was, &after.workers[0]);
            let kinds: Vec<&str> = found.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, wanted, "{state:?}");
            before = Some(after);
        }
    }

    #[test]
    fn changes_of_the_fleet_are_told_in_their_order() {
        let fleet = |state, kv_feed_live| {
            let mut fleet = two_pools();
            fleet.workers[0].state = state;
            fleet.ranks[1].kv_feed_live = kv_feed_live;
            fleet
        };
        let up = WorkerState::Up;
        let down = WorkerState::Down;
        let steps = [
            (up, false),
            (down, false),
            (up, false),
            (up, true),
            (up, false),
            (up.draining(false), false),
            (up, false),
            (WorkerState::Gone, false),
            (WorkerState::Gone, false),
        ];
        let mut events = Events::default();
        let mut before = FleetSnapshot::default();
        for (state, kv_feed_live) in steps {
            let after = fleet(state, kv_feed_live);
            events.compare(&before, &after, NOW);
            before = after;
        }
        let wanted = ["joined", "up", "down", "up", "feed", "lost", "drain", "undrain", "left"];
        assert_eq!(kinds(&events), wanted);
        assert_eq!(events.kept[4].text, "w: follows the KV events of 1 rank");
    }

    /// Issue 39: suspect KV events were a line of the log alone.
    #[test]
    fn suspect_kv_events_begin_and_end() {
        let suspicion = FeedSuspicion {
            socket: EventSocket::Replay,
            endpoint: "tcp://h:9".into(),
            sign: SuspicionSign::ForeignReplay,
        };
        let suspicion = Arc::new(suspicion);
        let mut events = Events::default();
        let mut before = two_pools();
        for suspects in [0, 2, 2, 1, 0] {
            let mut after = two_pools();
            let ranks = after.ranks.iter_mut().take(suspects);
            ranks.for_each(|rank| rank.feed_suspicion = Some(Arc::clone(&suspicion)));
            events.compare(&before, &after, NOW);
            before = after;
        }
        let texts: Vec<&str> = events.kept.iter().map(|event| &*event.text).collect();
        let wanted =
            ["w: suspect KV events of 2 ranks", "w: no longer suspect: KV events of 2 ranks"];
        assert_eq!(texts, wanted);
        assert_eq!(kinds(&events), ["suspected", "cleared"]);
    }

    /// M1: a fleet that dies does not bury the other events, and each worker counts.
    #[test]
    fn many_workers_are_ten_events_and_a_count() {
        let mut events = Events::default();
        events.push("reload", "configuration read again".to_owned(), NOW);
        for worker in 0..1_020 {
            let kind = if worker % 2 == 0 { "down" } else { "left" };
            events.push_worker(kind, &format!("gpu{worker}"), "is away", NOW);
        }
        assert_eq!(events.kept.len(), 1 + 2 * 11);
        assert_eq!(events.kept[1].text, "gpu0 is away");
        let sums = events.kept.iter().filter(|event| event.workers.is_some());
        let texts: Vec<_> = sums.map(|event| event.text.as_str()).collect();
        assert_eq!(texts, ["500 more workers: each is away"; 2]);
        events.push_worker("down", "gpu7", "is away", NOW.plus(TOGETHER));
        assert_eq!(events.kept.back().unwrap().text, "gpu7 is away", "a new period");
    }

    #[test]
    fn ranks_that_come_one_after_the_other_are_one_event() {
        let mut events = Events::default();
        let mut before = two_pools();
        for (rank, seconds) in [(0, 0), (1, 1), (2, 30)] {
            let mut after = two_pools();
            after.ranks.iter_mut().take(rank + 1).for_each(|rank| rank.kv_feed_live = true);
            events.compare(&before, &after, NOW.plus(Duration::from_secs(seconds)));
            before = after;
        }
        let told: Vec<(u64, u64, &str)> =
            events.kept.iter().map(|one| (one.id, one.number, &*one.text)).collect();
        let two = "w: follows the KV events of 2 ranks";
        let one = "w: follows the KV events of 1 rank";
        assert_eq!(told, [(1, 2, two), (3, 3, one)]);
    }

    /// N7: an engine that starts twice in ten seconds had "2 ranks", with one rank.
    #[test]
    fn a_rank_that_is_lost_twice_is_one_rank() {
        let mut events = Events::default();
        let mut before = two_pools();
        for seconds in 0..6 {
            let mut after = two_pools();
            after.ranks[0].kv_feed_live = seconds % 2 == 0;
            events.compare(&before, &after, NOW.plus(Duration::from_secs(seconds)));
            before = after;
        }
        let texts: Vec<&str> = events.kept.iter().map(|event| &*event.text).collect();
        let wanted = ["w: follows the KV events of 1 rank", "w: lost the KV events of 1 rank"];
        assert_eq!(texts, wanted);
    }

    #[test]
    fn windows_are_told_once_and_old_events_go() {
        let fleet = two_pools();
        let windows = Windows::new();
        let mut events = Events::default();
        let later = |seconds| NOW.plus(Duration::from_secs(seconds));
        windows.open(PoolIndex(0), WindowOrigin::Hand, NOW, later(2));
        for seconds in [0, 1, 2, 3] {
            events.observe(&fleet, &windows, later(seconds));
        }
        assert_eq!(kinds(&events), ["opened", "closed"]);
        assert_eq!(
            events.kept[0].text,
            "base: rejection window opened (hand): an operator opened the window"
        );
        windows.open(PoolIndex(0), WindowOrigin::Here, later(4), later(5));
        events.observe(&fleet, &windows, later(6));
        assert_eq!(kinds(&events), ["opened", "closed", "opened"], "between two checks");
        let text = &events.kept[2].text;
        assert!(text.starts_with("base: rejection window opened and closed (here): "), "{text}");
        events.observe(&fleet, &windows, later(6));
        assert_eq!(events.kept.len(), 3);
        events.kept.pop_back();
        assert_eq!(events.list(false, later(6)).len(), 1, "the other one is too old");
        assert_eq!(events.list(true, later(60)).len(), 2);
        for _ in 0..LIVE_EVENTS_MAX {
            events.push("reload", String::new(), NOW);
        }
        assert_eq!(events.kept.len(), LIVE_EVENTS_MAX);
    }
}

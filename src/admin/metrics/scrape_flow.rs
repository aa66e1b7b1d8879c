//! Samples of back pressure: rooms of ranks, queues, windows, drain rates. A pool is labeled with
//! its first model, and with `leg="prefill"` if its ranks serve the prefill leg of pairs; a queue
//! of a single rank also has that rank's labels.

use super::metrics_text::Family;
use super::samples::{each_rank, load};
use crate::calls::windows::{OPENERS, is_open_by};
use crate::sources::{FleetView, ScrapeSources};
use forebay_base::{PoolIndex, QueueIndex, RankIndex};
use forebay_board::QueueCell;
use forebay_board::account::REASONS_MAX;
use forebay_config::QueueMode;
use forebay_fleet::worker::pools;
use forebay_fleet::worker::{FleetSnapshot, RoomLimits};
use forebay_prompt::parse::Reason;

/// Every reason of a refusal has a counter of its own.
const _: () = assert!(Reason::ALL.len() < REASONS_MAX);

/// Labels of a pool: its first model, and the leg if it is the prefill leg.
fn of_pool(fleet: &FleetSnapshot, pool: PoolIndex) -> Vec<(&str, &str)> {
    let model = pools::models(fleet, pool).next().map_or("", |(_, model)| &*model.name);
    let leg = pools::is_prefill(pool).then_some(("leg", "prefill"));
    [("model", model)].into_iter().chain(leg).collect()
}

pub(crate) fn drain_rates(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let FleetView { fleet, now, .. } = sources.fleet;
    for (pool, _) in fleet.used_pools() {
        if let Some(rate) = sources.drain_rates.per_second(pool, now) {
            family.fraction(&of_pool(fleet, pool), rate);
        }
    }
}

/// Requests in flight in all shards, if they have a limit.
pub(crate) fn router_in_flight(sources: &ScrapeSources<'_>) -> Option<u64> {
    let max = sources.fleet.fleet.config.flow.router_in_flight_max;
    (max > 0).then(|| sources.fleet.board.in_flight().get().into())
}

/// Limits of a rank at this time. A limit that follows the rank's speed is 0 while the speed is
/// unknown.
pub(crate) fn room(sources: &ScrapeSources<'_>, rank: RankIndex) -> Option<RoomLimits> {
    let FleetView { fleet, board, .. } = sources.fleet;
    fleet.ranks.get(rank.index()).map(|of| board.limits_now(rank, of.room))
}

/// Places of a rank; 0 if the rank is closed.
pub(crate) fn places_max(sources: &ScrapeSources<'_>, rank: RankIndex) -> Option<u64> {
    let room = room(sources, rank)?;
    let load = load(sources, rank)?;
    Some(if room.is_closed() { 0 } else { load.limited(room).places_max.into() })
}

pub(crate) fn places_source(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    each_rank(sources, |rank, labels| {
        if let Some((rank, _)) = sources.fleet.fleet.rank(rank) {
            family.sample(&[labels, &[("source", rank.limit_source.word())]].concat(), 1);
        }
    });
}

/// A figure of each queue.
pub(crate) fn queues(
    sources: &ScrapeSources<'_>,
    family: &mut Family<'_>,
    read: fn(&QueueCell) -> u64,
) {
    let FleetView { fleet, board, .. } = sources.fleet;
    match fleet.config.flow.queue.mode {
        QueueMode::Off => {}
        QueueMode::Pool => {
            for (pool, _) in fleet.used_pools() {
                if let Some(queue) = board.queue(QueueIndex(pool.0)) {
                    family.sample(&of_pool(fleet, pool), read(queue));
                }
            }
        }
        QueueMode::Endpoint => each_rank(sources, |rank, labels| {
            let of_rank = fleet.rank(rank).zip(board.queue(QueueIndex(rank.0)));
            if let Some(((rank, _), queue)) = of_rank {
                family.sample(&[&of_pool(fleet, rank.pool), labels].concat(), read(queue));
            }
        }),
    }
}

/// Requests that a queue may hold, if there are queues.
pub(crate) fn queue_limit(sources: &ScrapeSources<'_>) -> Option<u64> {
    let queue = &sources.fleet.fleet.config.flow.queue;
    (queue.mode != QueueMode::Off).then(|| queue.depth_max.into())
}

pub(crate) fn windows_open(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let FleetView { fleet, board, now, .. } = sources.fleet;
    for (pool, _) in fleet.used_pools() {
        for (label, origins) in OPENERS {
            let open = is_open_by(board.windows(), pool, origins, now);
            family.sample(&[&of_pool(fleet, pool)[..], &[("by", label)]].concat(), open.into());
        }
    }
}

pub(crate) fn window_openings(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let FleetView { fleet, board, .. } = sources.fleet;
    for (pool, _) in fleet.used_pools() {
        family.sample(&of_pool(fleet, pool), board.windows().openings(pool));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::render::render;
    use crate::sources::{FeedsView, ProcessFigures, ShardsView, SourceFault, WorkerSource};
    use forebay_base::{Clock, ModelIndex, NanosSinceStart};
    use forebay_board::LoadBoard;
    use forebay_board::account::{StageHistograms, TtftHistory};
    use forebay_board::admit::DrainRates;
    use forebay_board::{QueueDemand, QueueLimits, WindowOrigin};
    use forebay_config::{Config, FlowConfig, QueueConfig};
    use forebay_fleet::worker::pools;
    use forebay_fleet::worker::test_support::two_pools;
    use forebay_fleet::worker::{Role, RoomDemand};
    use forebay_index::KeySeed;
    use forebay_kv_events::FeedCounters;
    use forebay_load::LoadReporter;
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;
    use std::time::Duration;

    fn with_mode(mode: QueueMode) -> FleetSnapshot {
        let queue = QueueConfig { mode, ..QueueConfig::default() };
        let flow = FlowConfig { queue, router_in_flight_max: 9, ..FlowConfig::default() };
        FleetSnapshot { config: Arc::new(Config { flow, ..Config::default() }), ..two_pools() }
    }

    fn scraped(fleet: &FleetSnapshot, board: &Arc<LoadBoard>) -> String {
        scraped_with(fleet, board, &[])
    }

    fn scraped_with(
        fleet: &FleetSnapshot,
        board: &Arc<LoadBoard>,
        sources: &[WorkerSource],
    ) -> String {
        let clock = Clock::start();
        let second = Duration::from_secs(1);
        let loads = &LoadReporter::new(clock, Arc::clone(board), second, Box::new(|_| 0));
        let (index, _) = forebay_index::index(1, KeySeed(1), 1 << 20);
        let counters = &FeedCounters::default();
        let feeds = &FeedsView { counters, statuses: HashMap::new(), pools: Vec::new() };
        let histograms = &StageHistograms::new();
        let shards = &ShardsView { counters: &[], histograms, stalled: Vec::new() };
        render(&ScrapeSources {
            fleet: FleetView {
                fleet,
                board,
                loads,
                sources,
                restarts: &BTreeMap::new(),
                ttft_history: &TtftHistory::default(),
                now: NanosSinceStart(0),
            },
            drain_rates: &DrainRates::default(),
            feeds,
            shards,
            index: &index,
            snapshots: None,
            replicas: None,
            process: ProcessFigures::default(),
        })
    }

    #[test]
    fn each_source_has_a_sample_and_a_fault_is_1() {
        let source = |name: &str, error: Option<&str>| WorkerSource {
            name: name.to_owned(),
            error: error.map(SourceFault::of),
            refused: None,
        };
        let sources = [source("/etc/w.toml", Some("no TOML")), source("http://gpu:80", None)];
        let text = scraped_with(&two_pools(), &Arc::new(LoadBoard::new()), &sources);
        for sample in ["{source=\"/etc/w.toml\"} 1", "{source=\"http://gpu:80\"} 0"] {
            assert!(text.contains(&format!("forebay_source_failing{sample}\n")), "{sample}");
        }
    }

    #[test]
    fn ranks_queues_and_windows_are_shown() {
        let board = Arc::new(LoadBoard::new());
        let load = board.rank(RankIndex(1)).unwrap();
        let limits = RoomLimits::default();
        let second = Duration::from_secs(1);
        assert!(
            load.try_acquire(limits, RoomDemand { kv_tokens: 70, prefill_tokens: 0 }).is_some()
        );
        assert!(load.try_acquire(limits, RoomDemand { kv_tokens: 5, prefill_tokens: 0 }).is_some());
        board.give_back(RankIndex(1), 5, Some(ModelIndex(0)));
        load.set_elsewhere(3, 100);
        load.refused(ModelIndex(0), NanosSinceStart(0));
        assert!(board.in_flight().enter(9));
        let most = QueueLimits { depth_max: 9, bytes_max: 999, tokens_max: 0 };
        let queue = board.queue(QueueIndex(0)).unwrap();
        queue.join(most, QueueDemand { bytes: 20, tokens: 30, ..QueueDemand::default() }).unwrap();
        let until = NanosSinceStart(0).plus(second);
        board.windows().open(PoolIndex(2), WindowOrigin::Elsewhere, NanosSinceStart(0), until);
        board.windows().open(PoolIndex(0), WindowOrigin::HandElsewhere, NanosSinceStart(0), until);
        let text = scraped(&with_mode(QueueMode::Pool), &board);
        for line in [
            r#"rank_places_max{worker="w",dp_rank="1"} 4"#,
            r#"rank_kv_tokens{worker="w",dp_rank="1"} 70"#,
            r#"rank_kv_tokens_max{worker="w",dp_rank="1"} 1520"#,
            r#"rank_prefill_tokens_max{worker="w",dp_rank="1"} 0"#,
            r#"rank_places_elsewhere{worker="w",dp_rank="1"} 3"#,
            r#"rank_busy{worker="w",dp_rank="0"} 0"#,
            r#"rank_busy{worker="w",dp_rank="1"} 1"#,
            r#"rank_ended_total{worker="w",dp_rank="1"} 1"#,
            r#"queue_depth{model="base"} 1"#,
            r#"queue_bytes{model="base"} 20"#,
            r#"queue_kv_tokens{model="base"} 30"#,
            r#"queue_depth{model="other~"} 0"#,
            r#"window_open{model="base",by="hand"} 1"#,
            r#"window_open{model="base",by="elsewhere"} 0"#,
            r#"window_open{model="other~",by="here"} 0"#,
            r#"window_open{model="other~",by="elsewhere"} 1"#,
            r#"window_openings_total{model="other~"} 1"#,
            "router_in_flight 1",
        ] {
            assert!(text.contains(&format!("\nforebay_{line}\n")), "{line}:\n{text}");
        }
        assert!(!text.contains("drain_rate"), "unknown");
    }

    #[test]
    fn a_prefill_limit_by_speed_is_shown_as_it_is_now() {
        let mut fleet = with_mode(QueueMode::Pool);
        fleet.ranks[1].room.prefill_tokens_max = RoomLimits::PREFILL_BY_SPEED;
        let board = Arc::new(LoadBoard::new());
        let shown = |tokens: u64| {
            let line = format!(r#"rank_prefill_tokens_max{{worker="w",dp_rank="1"}} {tokens}"#);
            scraped(&fleet, &board).contains(&format!("\nforebay_{line}\n"))
        };
        assert!(shown(0), "the speed is not known");
        let past = board.past(RankIndex(1)).unwrap();
        let at = NanosSinceStart(1 << 30);
        past.prefill_began(1 << 20, NanosSinceStart(0));
        past.prefill_ended(1 << 20, 0, at);
        assert!(past.prefill_room() > 100_000 && shown(past.prefill_room()));
    }

    #[test]
    fn pools_of_prefill_ranks_are_told_apart_and_ranks_that_are_gone_are_not_shown() {
        let mut fleet = with_mode(QueueMode::Pool);
        fleet.ranks[1].role = Role::Prefill;
        fleet.models[2].ranks.clear();
        pools::assign(&mut fleet);
        let board = Arc::new(LoadBoard::new());
        let text = scraped(&fleet, &board);
        for line in [
            r#"queue_depth{model="base"} 0"#,
            r#"queue_depth{model="base",leg="prefill"} 0"#,
            r#"window_open{model="base",leg="prefill",by="here"} 0"#,
            r#"window_openings_total{model="base",leg="prefill"} 0"#,
            r#"rank_places_max{worker="w",dp_rank="1"} 4"#,
        ] {
            assert!(text.contains(&format!("\nforebay_{line}\n")), "{line}:\n{text}");
        }
        assert!(!text.contains(r#"dp_rank="2""#) && !text.contains(r#"model="other~""#), "{text}");
    }

    #[test]
    fn queues_of_ranks_have_their_labels_and_none_has_none() {
        let text = scraped(&with_mode(QueueMode::Endpoint), &Arc::new(LoadBoard::new()));
        let line = r#"forebay_queue_depth{model="other~",worker="w",dp_rank="2"} 0"#;
        assert!(text.contains(line), "{text}");
        let text = scraped(&with_mode(QueueMode::Off), &Arc::new(LoadBoard::new()));
        assert!(!text.contains("queue_depth"), "{text}");
    }
}

//! The part of `/metrics` about back pressure: rooms of ranks, queues, windows, drain rates. Called
//! by [`super::scrape`]. A pool is labeled with its first model, and with `leg="prefill"` if its
//! ranks serve the prefill leg of pairs; a queue of a single rank also has that rank's labels.

use super::catalogue;
use super::metrics_text::MetricsText;
use crate::calls::windows::OPENERS;
use forebay_base::{NanosSinceStart, PoolIndex, QueueIndex, RankIndex};
use forebay_board::account::{Metric, REASONS_MAX};
use forebay_board::admit::DrainRates;
use forebay_board::{LoadBoard, QueueCell, RankLoad};
use forebay_config::QueueMode;
use forebay_fleet::worker::pools;
use forebay_fleet::worker::{FleetSnapshot, Rank, RoomLimits};
use forebay_prompt::parse::Reason;

/// Every reason of a refusal has a counter of its own.
const _: () = assert!(Reason::ALL.len() < REASONS_MAX);

/// Sources of these metrics.
#[derive(Clone, Copy)]
pub(crate) struct FlowSources<'a> {
    pub(crate) fleet: &'a FleetSnapshot,
    pub(crate) board: &'a LoadBoard,
    pub(crate) drain_rates: &'a DrainRates,
    pub(crate) now: NanosSinceStart,
}

/// Writes all of these metrics.
pub(crate) fn flow(sources: &FlowSources<'_>, text: &mut MetricsText) {
    rooms(sources, text);
    queues(sources, text);
    windows(sources, text);
    let mut family = text.open(&catalogue::DRAIN_RATE);
    for (pool, _) in sources.fleet.used_pools() {
        if let Some(rate) = sources.drain_rates.per_second(pool, sources.now) {
            family.fraction(&of_pool(sources.fleet, pool), rate);
        }
    }
    let max = sources.fleet.config.flow.router_in_flight_max;
    if max > 0 {
        text.open(&catalogue::ROUTER_IN_FLIGHT).sample(&[], sources.board.in_flight().get().into());
    }
}

/// Labels of a pool: its first model, and the leg if it is the prefill leg.
fn of_pool(fleet: &FleetSnapshot, pool: PoolIndex) -> Vec<(&str, &str)> {
    let model = pools::models(fleet, pool).next().map_or("", |(_, model)| &*model.name);
    let leg = pools::is_prefill(pool).then_some(("leg", "prefill"));
    [("model", model)].into_iter().chain(leg).collect()
}

/// Reads a figure of a rank and its limits.
type RoomFigure = fn(&RankLoad, &RoomLimits, NanosSinceStart) -> u64;

/// Gauges of the room of each rank.
pub(crate) static ROOM_GAUGES: [(&Metric, RoomFigure); 6] = [
    (&catalogue::RANK_PLACES_MAX, |load, room, _| {
        if room.is_closed() { 0 } else { load.limited(*room).places_max.into() }
    }),
    (&catalogue::RANK_KV_TOKENS, |load, _, _| load.kv_tokens()),
    (&catalogue::RANK_KV_TOKENS_MAX, |_, room, _| room.kv_tokens_max),
    // If the limit follows the rank's speed: the current limit, and 0 while the speed is unknown.
    (&catalogue::RANK_PREFILL_TOKENS_MAX, |_, room, _| room.prefill_tokens_shown()),
    (&catalogue::RANK_PLACES_ELSEWHERE, |load, _, _| load.places_elsewhere().into()),
    (&catalogue::RANK_BUSY, |load, _, now| u64::from(load.busy_until(None) > now)),
];

fn rooms(sources: &FlowSources<'_>, text: &mut MetricsText) {
    for (metric, read) in &ROOM_GAUGES {
        let mut family = text.open(metric);
        each_rank(sources, |labels, (index, rank), load| {
            let room = sources.board.limits_now(index, rank.room);
            family.sample(labels, read(load, &room, sources.now));
        });
    }
    let mut family = text.open(&catalogue::RANK_PLACES_SOURCE);
    each_rank(sources, |labels, (_, rank), _| {
        let source = ("source", rank.limit_source.word());
        family.sample(&[labels, &[source]].concat(), 1);
    });
    let mut family = text.open(&catalogue::RANK_ENDED);
    each_rank(sources, |labels, _, load| family.sample(labels, load.ended()));
}

fn each_rank(
    sources: &FlowSources<'_>,
    mut sample: impl FnMut(&[(&str, &str)], (RankIndex, &Rank), &RankLoad),
) {
    for (index, rank, worker) in sources.fleet.present() {
        let Some(load) = sources.board.rank(index) else { continue };
        let dp_rank = rank.dp_rank.0.to_string();
        sample(&[("worker", &worker.name), ("dp_rank", &dp_rank)], (index, rank), load);
    }
}

fn queues(sources: &FlowSources<'_>, text: &mut MetricsText) {
    type Read = fn(&QueueCell) -> u64;
    let gauges: [(&'static Metric, Read); 3] = [
        (&catalogue::QUEUE_DEPTH, |queue| queue.waiting().into()),
        (&catalogue::QUEUE_BYTES, QueueCell::waiting_bytes),
        (&catalogue::QUEUE_KV_TOKENS, QueueCell::waiting_tokens),
    ];
    for (metric, read) in gauges {
        let mut family = text.open(metric);
        each_queue(sources, |labels, queue| family.sample(labels, read(queue)));
    }
    let queue = &sources.fleet.config.flow.queue;
    if queue.mode != QueueMode::Off {
        text.open(&catalogue::QUEUE_LIMIT).sample(&[], queue.depth_max.into());
    }
}

fn each_queue(sources: &FlowSources<'_>, mut sample: impl FnMut(&[(&str, &str)], &QueueCell)) {
    let fleet = sources.fleet;
    match fleet.config.flow.queue.mode {
        QueueMode::Off => {}
        QueueMode::Pool => {
            for (pool, _) in fleet.used_pools() {
                if let Some(queue) = sources.board.queue(QueueIndex(pool.0)) {
                    sample(&of_pool(fleet, pool), queue);
                }
            }
        }
        QueueMode::Endpoint => {
            for (index, rank, worker) in fleet.present() {
                let Some(queue) = sources.board.queue(QueueIndex(index.0)) else { continue };
                let dp_rank = rank.dp_rank.0.to_string();
                let of_rank = [("worker", &*worker.name), ("dp_rank", &dp_rank)];
                let labels = [&of_pool(fleet, rank.pool)[..], &of_rank].concat();
                sample(&labels, queue);
            }
        }
    }
}

fn windows(sources: &FlowSources<'_>, text: &mut MetricsText) {
    let windows = sources.board.windows();
    let mut family = text.open(&catalogue::WINDOW_OPEN);
    for (pool, _) in sources.fleet.used_pools() {
        for (by, label) in OPENERS {
            let open = windows.open_by_until(pool, by, sources.now).is_some();
            let labels = [&of_pool(sources.fleet, pool)[..], &[("by", label)]].concat();
            family.sample(&labels, open.into());
        }
    }
    let mut family = text.open(&catalogue::WINDOW_OPENINGS);
    for (pool, _) in sources.fleet.used_pools() {
        family.sample(&of_pool(sources.fleet, pool), windows.openings(pool));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ModelIndex;
    use forebay_board::{QueueDemand, QueueLimits, WindowOrigin};
    use forebay_config::{Config, FlowConfig, QueueConfig};
    use forebay_fleet::worker::pools;
    use forebay_fleet::worker::test_support::two_pools;
    use forebay_fleet::worker::{Role, RoomDemand};
    use std::sync::Arc;
    use std::time::Duration;

    fn with_mode(mode: QueueMode) -> FleetSnapshot {
        let queue = QueueConfig { mode, ..QueueConfig::default() };
        let flow = FlowConfig { queue, router_in_flight_max: 9, ..FlowConfig::default() };
        FleetSnapshot { config: Arc::new(Config { flow, ..Config::default() }), ..two_pools() }
    }

    fn scraped(fleet: &FleetSnapshot, board: &LoadBoard) -> String {
        let mut text = MetricsText::default();
        let drain_rates = &DrainRates::default();
        let now = NanosSinceStart(0);
        flow(&FlowSources { fleet, board, drain_rates, now }, &mut text);
        text.finish()
    }

    #[test]
    fn ranks_queues_and_windows_are_shown() {
        let board = LoadBoard::new();
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
        let board = LoadBoard::new();
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
        let board = LoadBoard::new();
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
        let text = scraped(&with_mode(QueueMode::Endpoint), &LoadBoard::new());
        let line = r#"forebay_queue_depth{model="other~",worker="w",dp_rank="2"} 0"#;
        assert!(text.contains(line), "{text}");
        let text = scraped(&with_mode(QueueMode::Off), &LoadBoard::new());
        assert!(!text.contains("queue_depth"), "{text}");
    }
}

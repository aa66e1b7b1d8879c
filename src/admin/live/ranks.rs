//! The ranks of a snapshot: a column for each figure, named after its metric, with an entry for
//! each rank. Columns that change only with the fleet are in whole snapshots only.

use super::super::calls::prompt_faults::prompt_fault;
use super::super::calls::roles;
use super::super::calls::workers::{models_of, rank_fault, scheme, state, waits_for};
use super::super::metrics::catalogue;
use super::super::metrics::metrics_text::approximate;
use super::super::metrics::samples::Samples;
use super::super::sources::{ScrapeSources, WorkerSources};
use forebay_base::{RankIndex, WorkerIndex};
use forebay_board::account::TtftMean;
use forebay_fleet::worker::{Rank, Worker};
use forebay_kv_events::TextFit;
use serde_json::{Map, Value, json};

/// Figures of all ranks; null where a rank has no such figure.
pub(super) fn figures(sources: &ScrapeSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let board = sources.fleet.board;
    let now = sources.fleet.now;
    let ranks: Vec<(RankIndex, &Rank)> =
        fleet.present().map(|(index, rank, _)| (index, rank)).collect();
    let mut columns = Map::new();
    for (metric, samples) in catalogue::OF_CONTROL {
        let values: Value = match samples {
            Samples::Ranks(read) => {
                ranks.iter().map(|(rank, _)| json!(read(sources, *rank))).collect()
            }
            Samples::RankFractions(read) => {
                ranks.iter().map(|(rank, _)| json!(read(sources, *rank))).collect()
            }
            _ => continue,
        };
        columns.insert(metric.name.to_owned(), values);
    }
    let reports = sources.fleet.loads.reports();
    let ages = ranks.iter().map(|(rank, _)| {
        json!(reports.newest(*rank).map(|report| approximate(now.since(report.at) / 1_000_000)))
    });
    columns.insert("report_age_ms".to_owned(), ages.collect());
    let ttft = |read: fn(TtftMean) -> Value| -> Value {
        let means = ranks.iter().map(|(rank, _)| sources.fleet.ttft_history.mean(*rank));
        means.map(|mean| mean.map_or(Value::Null, read)).collect()
    };
    columns.insert("ttft_1m_streams".to_owned(), ttft(|of| json!(of.streams)));
    columns.insert("ttft_1m_mean_seconds".to_owned(), ttft(|of| json!(of.mean.as_secs_f64())));
    let feeds = ranks.iter().map(|(rank, _)| {
        let feed = sources.feeds.status(*rank);
        json!(feed.map(|feed| match feed.text() {
            Some(TextFit::Mismatch) => "mismatch",
            _ => feed.state().name(),
        }))
    });
    columns.insert("feed".to_owned(), feeds.collect());
    let faults = fleet.present().map(|(index, rank, worker)| {
        let feed = sources.feeds.status(index);
        let fault = board.rank(index).and_then(|load| rank_fault(load, rank, worker, feed, now));
        json!(fault.or_else(|| prompt_fault(fleet, index, feed)))
    });
    columns.insert("fault".to_owned(), faults.collect());
    Value::Object(columns)
}

/// Workers and properties of the ranks.
pub(super) fn places(sources: &ScrapeSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let column = |read: &dyn Fn(&Rank) -> Value| -> Value {
        fleet.present().map(|(_, rank, _)| read(rank)).collect()
    };
    json!({
        "worker": column(&|rank| json!(rank.worker.0)),
        "dp_rank": column(&|rank| json!(rank.dp_rank.0)),
        "role": column(&|rank| json!(rank.role.name())),
        "kv_blocks": column(&|rank| json!(rank.kv_block_count)),
        "block_size": column(&|rank| json!(rank.block_size_tokens)),
        "running_max": column(&|rank| json!(rank.running_max)),
        "pool": column(&|rank| json!(rank.pool.0)),
    })
}

/// All workers; `index` is the `worker` of their ranks.
pub(super) fn workers(sources: &WorkerSources<'_>) -> Value {
    let fleet = sources.fleet.fleet;
    let shown = |(index, worker): (WorkerIndex, &Worker)| {
        let trouble = (sources.trouble)(index);
        json!({
            "index": index.0,
            "name": &*worker.name,
            "url": format!("{}://{}", scheme(worker), worker.authority),
            "engine": worker.engine_name(),
            "state": state(worker.state),
            "draining": worker.state.is_draining(),
            "role": roles::role_of(fleet, index),
            "waits_for": waits_for(index, sources),
            "error": trouble.map(|trouble| trouble.reason),
            "help": trouble.map(|trouble| trouble.help),
            "answers": trouble.map(|trouble| trouble.is_answer),
            "models": models_of(fleet, index),
        })
    };
    fleet.present_workers().map(shown).collect()
}

//! The part of `/metrics` about load reports. Called with the rest of it, see [`super::scrape`].

use super::load::{ReadFault, SCRAPE_BOUNDS};
use super::metrics_text::{MetricsText, approximate};
use super::scrape::Sources;
use crate::base::{RankIndex, WorkerIndex};
use crate::worker::LoadReport;

/// What engines report, how old it is, and what went wrong.
pub(super) fn loads(sources: &Sources<'_>, text: &mut MetricsText) {
    reported(sources, text);
    faults(sources, text);
    let scrapes = sources.desk.scrapes();
    let mut below = 0;
    let cumulative = SCRAPE_BOUNDS.iter().zip(scrapes.buckets).map(|((_, bound), count)| {
        below += count;
        (*bound, below)
    });
    let cumulative: Vec<(f64, u64)> = cumulative.collect();
    let whole = (scrapes.buckets.iter().sum(), scrapes.sum.as_secs_f64());
    let help = "Time of one question to an engine about its load, with the answer.";
    text.histogram("load_scrape_seconds", help).buckets(&[], cumulative.into_iter(), whole);
    let help = "Load reports that a shard had no room for.";
    text.counter("load_reports_dropped_total", help).sample(&[], sources.desk.dropped_count());
}

type Read = fn(&LoadReport) -> Option<f64>;

/// Gauges per rank. Values that are too old to count are left out; their age stays.
fn reported(sources: &Sources<'_>, text: &mut MetricsText) {
    let gauges: [(&str, &str, Read); 4] = [
        ("reported_running", "Requests in the engine's batch, as it reports.", |report| {
            Some(f64::from(report.running))
        }),
        ("reported_waiting", "Requests that wait in the engine, as it reports.", |report| {
            Some(f64::from(report.waiting))
        }),
        ("reported_foreign", "Reported requests that this router did not send.", |report| {
            Some(f64::from(report.foreign.requests))
        }),
        ("reported_kv_usage", "Share of the KV cache held by live requests.", |report| {
            report.kv_permille.map(|permille| f64::from(permille) / 1e3)
        }),
    ];
    let reports = sources.desk.reports();
    for (name, help, read) in gauges {
        let value = |rank| read(reports.counting(rank, sources.now)?.0);
        per_rank(sources, text, (name, help), value);
    }
    let help = "Age of the rank's last load report.";
    let age = |rank| Some(approximate(sources.now.since(reports.newest(rank)?.at)) / 1e9);
    per_rank(sources, text, ("load_report_age_seconds", help), age);
}

fn per_rank(
    sources: &Sources<'_>,
    text: &mut MetricsText,
    (name, help): (&str, &str),
    value: impl Fn(RankIndex) -> Option<f64>,
) {
    let mut family = text.gauge(name, help);
    for (index, rank, worker) in sources.fleet.present() {
        let Some(value) = value(index) else { continue };
        let dp_rank = rank.dp_rank.0.to_string();
        family.fraction(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
    }
}

fn faults(sources: &Sources<'_>, text: &mut MetricsText) {
    let help = "Load reports, or parts of them, that did not come or were not taken.";
    let mut family = text.counter("load_report_errors_total", help);
    for (index, worker) in sources.fleet.workers.iter().enumerate() {
        let Some(index) = WorkerIndex::try_from_index(index) else { continue };
        for (fault, reason) in ReadFault::ALL {
            let count = sources.desk.fault_count(index, fault);
            if count > 0 {
                family.sample(&[("worker", &worker.name), ("reason", reason)], count);
            }
        }
    }
}

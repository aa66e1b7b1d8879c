//! The part of `/metrics` about load reports. Called by [`super::scrape`].

use super::catalogue;
use super::metrics_text::{MetricsText, WholeHistogram, approximate};
use crate::sources::FleetView;
use forebay_base::RankIndex;
use forebay_board::LoadReport;
use forebay_board::account::Metric;
use forebay_load::{ReadFault, SCRAPE_BOUNDS};

/// Writes reported load, its age, and errors.
pub(crate) fn loads(sources: &FleetView<'_>, text: &mut MetricsText) {
    reported(sources, text);
    faults(sources, text);
    let scrapes = sources.loads.scrapes();
    let mut below = 0;
    let cumulative = SCRAPE_BOUNDS.iter().zip(scrapes.buckets).map(|((_, bound), count)| {
        below += count;
        (*bound, below)
    });
    let cumulative: Vec<(f64, u64)> = cumulative.collect();
    let count = scrapes.buckets.iter().sum();
    let sum = scrapes.sum.as_secs_f64();
    let whole = WholeHistogram { count, sum };
    text.open(&catalogue::LOAD_SCRAPE_SECONDS).buckets(&[], cumulative.into_iter(), whole);
    text.open(&catalogue::LOAD_REPORTS_DROPPED).sample(&[], sources.loads.dropped_count());
}

/// Reads a figure of a load report.
type LoadFigure = fn(&LoadReport) -> Option<f64>;

/// Gauges of each rank's load report.
pub(crate) static REPORT_GAUGES: [(&Metric, LoadFigure); 4] = [
    (&catalogue::REPORTED_RUNNING, |report| Some(f64::from(report.running))),
    (&catalogue::REPORTED_WAITING, |report| Some(f64::from(report.waiting))),
    (&catalogue::REPORTED_FOREIGN, |report| Some(f64::from(report.foreign.requests))),
    (&catalogue::REPORTED_KV_USAGE, |report| {
        report.kv_permille.map(|permille| f64::from(permille) / 1e3)
    }),
];

/// Gauges per rank. Reports that are too old to count are omitted; their age remains.
fn reported(sources: &FleetView<'_>, text: &mut MetricsText) {
    let reports = sources.loads.reports();
    for (metric, read) in &REPORT_GAUGES {
        let value = |rank| read(reports.counting(rank, sources.now)?.0);
        per_rank(sources, text, metric, value);
    }
    let age = |rank| Some(approximate(sources.now.since(reports.newest(rank)?.at)) / 1e9);
    per_rank(sources, text, &catalogue::LOAD_REPORT_AGE_SECONDS, age);
}

fn per_rank(
    sources: &FleetView<'_>,
    text: &mut MetricsText,
    metric: &'static Metric,
    value: impl Fn(RankIndex) -> Option<f64>,
) {
    let mut family = text.open(metric);
    for (index, rank, worker) in sources.fleet.present() {
        let Some(value) = value(index) else { continue };
        let dp_rank = rank.dp_rank.0.to_string();
        family.fraction(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
    }
}

fn faults(sources: &FleetView<'_>, text: &mut MetricsText) {
    let mut family = text.open(&catalogue::LOAD_REPORT_ERRORS);
    for (index, worker) in sources.fleet.present_workers() {
        for (fault, reason) in ReadFault::ALL {
            let count = sources.loads.fault_count(index, fault);
            if count > 0 {
                family.sample(&[("worker", &worker.name), ("reason", reason)], count);
            }
        }
    }
}

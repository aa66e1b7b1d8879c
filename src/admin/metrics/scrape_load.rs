//! Samples of load reports.

use super::metrics_text::{Family, WholeHistogram};
use super::samples::{per_rank, seconds};
use crate::sources::ScrapeSources;
use forebay_base::RankIndex;
use forebay_board::LoadReport;
use forebay_load::{ReadFault, SCRAPE_BOUNDS};

/// Load report of a rank, unless the report is too old to count.
pub(crate) fn report(sources: &ScrapeSources<'_>, rank: RankIndex) -> Option<LoadReport> {
    Some(*sources.fleet.loads.reports().counting(rank, sources.fleet.now)?.0)
}

/// Age of each rank's report, also of a report that is too old to count.
pub(crate) fn ages(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let reports = sources.fleet.loads.reports();
    let age = |rank| Some(seconds(sources.fleet.now.since(reports.newest(rank)?.at)));
    per_rank(sources, family, age);
}

pub(crate) fn scrapes(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let scrapes = sources.fleet.loads.scrapes();
    let mut below = 0;
    let cumulative = SCRAPE_BOUNDS.iter().zip(scrapes.buckets).map(|((_, bound), count)| {
        below += count;
        (*bound, below)
    });
    let cumulative: Vec<(f64, u64)> = cumulative.collect();
    let count = scrapes.buckets.iter().sum();
    let sum = scrapes.sum.as_secs_f64();
    family.buckets(&[], cumulative.into_iter(), WholeHistogram { count, sum });
}

/// Restarts of each worker's engine. A worker without a restart has a sample too: an increase
/// needs a value before the first restart.
pub(crate) fn restarts(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (index, worker) in sources.fleet.fleet.present_workers() {
        family.sample(&[("worker", &worker.name)], sources.fleet.restart_count(index));
    }
}

pub(crate) fn faults(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (index, worker) in sources.fleet.fleet.present_workers() {
        for (fault, reason) in ReadFault::ALL {
            let count = sources.fleet.loads.fault_count(index, fault);
            if count > 0 {
                family.sample(&[("worker", &worker.name), ("reason", reason)], count);
            }
        }
    }
}

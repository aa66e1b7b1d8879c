//! Samples of KV events, KV pools and snapshots.

use super::metrics_text::Family;
use super::samples::wide;
use super::scrape::by;
use crate::sources::ScrapeSources;
use forebay_kv_events::{BatchOutcome, DropReason, EventKind, Tier};

pub(crate) fn events(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (kind, kind_label) in EventKind::ALL {
        for (outcome, label) in BatchOutcome::ALL {
            let count = sources.feeds.counters.event_count(kind, outcome);
            if count > 0 || outcome == BatchOutcome::Applied {
                family.sample(&[("kind", kind_label), ("result", label)], count);
            }
        }
    }
}

pub(crate) fn tiers(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let tiers = Tier::ALL.map(|tier| (tier, tier.label()));
    by("tier", tiers, family, |tier| wide(sources.feeds.counters.tier_block_count(tier)));
}

pub(crate) fn expired(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let tiers = [Tier::Host, Tier::Disk].map(|tier| (tier, tier.label()));
    by("tier", tiers, family, |tier| sources.feeds.counters.expired_count(tier));
}

pub(crate) fn pools(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for pool in &sources.feeds.pools {
        family.sample(&[("kv_pool", pool.name), ("model", pool.model)], wide(pool.blocks));
    }
}

/// Memory of the ledgers of ranks and pools.
pub(crate) fn tracked_bytes(sources: &ScrapeSources<'_>) -> u64 {
    let of_pools: usize = sources.feeds.pools.iter().map(|pool| pool.bytes).sum();
    wide(sources.feeds.counters.byte_count() + of_pools)
}

pub(crate) fn orphans(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let gone = sources.feeds.counters.orphans_gone_count();
    let counts = [(gone.applied, "applied"), (gone.dropped, "dropped"), (gone.removed, "removed")];
    by("result", counts, family, wide);
}

pub(crate) fn snapshot_writes(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let Some(figures) = &sources.snapshots else { return };
    let counts = [(figures.written_count, "written"), (figures.failed_count, "failed")];
    by("result", counts, family, |count| count);
}

pub(crate) fn snapshot_drops(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    if sources.snapshots.is_some() {
        let counters = sources.feeds.counters;
        by("reason", DropReason::ALL, family, |reason| counters.dropped_count(reason));
    }
}

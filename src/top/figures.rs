//! Rates and quantiles: differences of two snapshots, computed as on the live page.

use crate::clean::clean;
use crate::snapshot::{Snapshot, StageCounts, StageSeconds, TenantCounts};
use std::collections::{BTreeMap, VecDeque};

/// Stored snapshots; about 1 arrives per second.
const KEPT_MAX: usize = 40;
/// Tolerance: snapshots arrive slightly less than a second apart.
const SLACK_MS: u64 = 300;
const RATE_MS: u64 = 5_000;
const STAGE_MS: u64 = 10_000;
const SHARE_MS: u64 = 30_000;

/// Stored part of a snapshot.
#[derive(Clone, Debug)]
struct KeptSnapshot {
    uptime_ms: u64,
    generation: u64,
    requests: KeptRequests,
    overlap_bytes: f64,
    prompt_bytes: f64,
    stages: StageSeconds,
    /// Requests that each rank has ended.
    ended: Vec<Option<f64>>,
}

#[derive(Clone, Debug)]
struct KeptRequests {
    answered: f64,
    refused: f64,
    /// Refused requests by their reason.
    refusals: BTreeMap<String, f64>,
    /// `None`: the router had no tenants.
    tenants: Option<BTreeMap<String, TenantCounts>>,
}

/// The last snapshots, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentSnapshots {
    router_id: String,
    kept: VecDeque<KeptSnapshot>,
}

/// Figures of the head line. `None`: unknown yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FigureLine {
    pub(crate) answered_per_s: Option<f64>,
    pub(crate) refused_per_s: Option<f64>,
    /// Most frequent reason of the refusals.
    pub(crate) refused_for: Option<String>,
    pub(crate) ttft_p50_s: Option<f64>,
    pub(crate) ttft_p99_s: Option<f64>,
    pub(crate) queue_p99_s: Option<f64>,
    pub(crate) cached_share: Option<f64>,
    /// Empty in a router without tenants.
    pub(crate) tenants: Vec<TenantRates>,
}

impl FigureLine {
    /// Share of refused requests, of all requests that ended.
    pub(crate) fn refused_share(&self) -> Option<f64> {
        let ended = self.refused_per_s? + self.answered_per_s?;
        (ended > 0.0).then_some(self.refused_per_s? / ended)
    }
}

/// Requests of a tenant per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TenantRates {
    pub(crate) name: String,
    pub(crate) answered_per_s: f64,
    pub(crate) refused_per_s: f64,
    pub(crate) invalid_per_s: f64,
    pub(crate) failed_per_s: f64,
    /// Limits in words; empty without a limit.
    pub(crate) limits: String,
}

impl RecentSnapshots {
    /// Stores a snapshot, after its history where nothing is stored yet. True if it is from another
    /// process: older snapshots are then dropped.
    pub(crate) fn push(&mut self, snapshot: &Snapshot) -> bool {
        // A router of an older version has no id: then only the time shows a restart.
        let is_older = self.kept.back().is_some_and(|last| snapshot.uptime_ms < last.uptime_ms);
        let is_renamed = !self.kept.is_empty() && snapshot.counts.router_id != self.router_id;
        let is_other = is_older || is_renamed;
        if is_other {
            self.kept.clear();
        }
        self.router_id.clone_from(&snapshot.counts.router_id);
        if self.kept.is_empty() {
            let past = snapshot.counts.history.iter();
            past.filter(|past| past.uptime_ms < snapshot.uptime_ms).for_each(|past| self.add(past));
        }
        self.add(snapshot);
        is_other
    }

    fn add(&mut self, snapshot: &Snapshot) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        let total = |name: &str| snapshot.counts.totals.get(name).copied().unwrap_or_default();
        let ended = snapshot.ranks.get("rank_ended_total").map_or(&[][..], Vec::as_slice);
        let refusals = &snapshot.counts.refusals;
        self.kept.push_back(KeptSnapshot {
            uptime_ms: snapshot.uptime_ms,
            generation: snapshot.generation,
            requests: KeptRequests {
                answered: snapshot.counts.requests_total.values().sum(),
                refused: refusals.rejected_total.values().sum(),
                refusals: refusals.rejected_total.clone(),
                tenants: snapshot.counts.tenants.clone(),
            },
            overlap_bytes: total("overlap_bytes_total"),
            prompt_bytes: total("prompt_bytes_total"),
            stages: snapshot.counts.stage_seconds.clone(),
            ended: ended.iter().map(serde_json::Value::as_f64).collect(),
        });
    }

    /// The oldest snapshot within this time, and the newest.
    fn ends(&self, within_ms: u64) -> Option<(&KeptSnapshot, &KeptSnapshot)> {
        self.ends_where(within_ms, |_| true)
    }

    fn ends_where(
        &self,
        within_ms: u64,
        is_meant: impl Fn(&KeptSnapshot) -> bool,
    ) -> Option<(&KeptSnapshot, &KeptSnapshot)> {
        let newest = self.kept.back()?;
        let from = newest.uptime_ms.saturating_sub(within_ms + SLACK_MS);
        let oldest = self.kept.iter().find(|kept| kept.uptime_ms >= from && is_meant(kept))?;
        Some((oldest, newest))
    }

    fn rate(&self, read: impl Fn(&KeptSnapshot) -> Option<f64>) -> Option<f64> {
        self.rate_where(|_| true, read)
    }

    fn rate_where(
        &self,
        is_meant: impl Fn(&KeptSnapshot) -> bool,
        read: impl Fn(&KeptSnapshot) -> Option<f64>,
    ) -> Option<f64> {
        let (old, new) = self.ends_where(RATE_MS, is_meant)?;
        let ms = new.uptime_ms.checked_sub(old.uptime_ms).filter(|ms| *ms > 0)?;
        let seconds = std::time::Duration::from_millis(ms).as_secs_f64();
        Some(((read(new)? - read(old)?) / seconds).max(0.0))
    }

    /// Requests that a rank ends per second since the fleet last changed: rank positions change
    /// with the fleet.
    pub(crate) fn ended_per_s(&self, place: usize) -> Option<f64> {
        let generation = self.kept.back()?.generation;
        let is_same = |kept: &KeptSnapshot| kept.generation == generation;
        self.rate_where(is_same, |kept| kept.ended.get(place).copied().flatten())
    }

    /// Most frequent reason of refusals, in the time of a rate.
    fn refused_for(&self) -> Option<String> {
        let (old, new) = self.ends(RATE_MS)?;
        let before = |reason: &str| old.requests.refusals.get(reason).copied().unwrap_or_default();
        let growth = new.requests.refusals.iter();
        let growth = growth.map(|(reason, count)| (reason, count - before(reason)));
        let most = growth.filter(|(_, count)| *count > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
        most.map(|(reason, _)| clean(reason))
    }

    pub(crate) fn figures(&self) -> FigureLine {
        let share = self.ends(SHARE_MS).and_then(|(old, new)| {
            let whole = new.prompt_bytes - old.prompt_bytes;
            let held = new.overlap_bytes - old.overlap_bytes;
            (whole > 0.0).then(|| (held / whole).clamp(0.0, 1.0))
        });
        FigureLine {
            answered_per_s: self.rate(|kept| Some(kept.requests.answered - kept.requests.refused)),
            refused_per_s: self.rate(|kept| Some(kept.requests.refused)),
            refused_for: self.refused_for(),
            ttft_p50_s: self.quantile("first_token", 0.5),
            ttft_p99_s: self.quantile("first_token", 0.99),
            queue_p99_s: self.quantile("queue", 0.99),
            cached_share: share,
            tenants: self.tenants(),
        }
    }

    /// Rates of all tenants, the most refused or failed first. A snapshot without tenants has no
    /// count of theirs, and not a count of 0. A tenant that such a list lacks has the count 0.
    fn tenants(&self) -> Vec<TenantRates> {
        let newest = self.kept.back().and_then(|kept| kept.requests.tenants.as_ref());
        let Some(tenants) = newest else { return Vec::new() };
        let has_tenants = |kept: &KeptSnapshot| kept.requests.tenants.is_some();
        let rate = |name: &str, read: fn(TenantCounts) -> f64| {
            let counts = |kept: &KeptSnapshot| {
                let tenants = kept.requests.tenants.as_ref()?;
                Some(read(tenants.get(name).copied().unwrap_or_default()))
            };
            self.rate_where(has_tenants, counts).unwrap_or_default()
        };
        let rates = tenants.iter().map(|(name, counts)| TenantRates {
            name: clean(name),
            answered_per_s: rate(name, |counts| counts.answered),
            refused_per_s: rate(name, |counts| counts.refused),
            invalid_per_s: rate(name, |counts| counts.invalid),
            failed_per_s: rate(name, |counts| counts.failed),
            limits: counts.limits.words(),
        });
        let mut rates: Vec<TenantRates> = rates.collect();
        let trouble = |tenant: &TenantRates| tenant.refused_per_s + tenant.failed_per_s;
        rates.sort_by(|a, b| {
            let by_trouble = trouble(b).total_cmp(&trouble(a));
            by_trouble.then(b.answered_per_s.total_cmp(&a.answered_per_s))
        });
        rates
    }

    /// True if two snapshots of this fleet have arrived: ranks have rates.
    pub(crate) fn has_rank_rates(&self) -> bool {
        let Some(newest) = self.kept.back() else { return false };
        let same = self.kept.iter().filter(|kept| kept.generation == newest.generation);
        same.count() > 1
    }

    fn quantile(&self, stage: &str, share: f64) -> Option<f64> {
        let (old, new) = self.ends(STAGE_MS)?;
        let from = old.stages.stages.get(stage);
        let to = new.stages.stages.get(stage)?;
        let bounds = if to.bounds.is_empty() { &new.stages.bounds } else { &to.bounds };
        quantile(bounds, from, to, share)
    }
}

/// A quantile as in Prometheus' `histogram_quantile`.
fn quantile(
    bounds: &[f64],
    from: Option<&StageCounts>,
    to: &StageCounts,
    share: f64,
) -> Option<f64> {
    let before = |place: usize| from.and_then(|from| from.below.get(place)).copied().unwrap_or(0.0);
    let count = to.count - from.map_or(0.0, |from| from.count);
    if count <= 0.0 {
        return None;
    }
    let wanted = share * count;
    let mut low_bound = 0.0;
    let mut low_count = 0.0;
    for (place, (bound, below)) in bounds.iter().zip(&to.below).enumerate() {
        let below = below - before(place);
        if below >= wanted {
            let inside = below - low_count;
            let part = if inside > 0.0 { (wanted - low_count) / inside } else { 1.0 };
            return Some(low_bound + (bound - low_bound) * part);
        }
        low_bound = *bound;
        low_count = below;
    }
    bounds.last().copied()
}

/// Formats a count of any size in at most five characters.
pub(crate) fn count(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match value {
        value if value >= 1e10 => format!("{:.0}G", value / 1e9),
        value if value >= 1e9 => format!("{:.1}G", value / 1e9),
        value if value >= 1e7 => format!("{:.0}M", value / 1e6),
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e5 => format!("{:.0}k", value / 1e3),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

pub(crate) fn rate(value: Option<f64>) -> String {
    match value {
        Some(value) if value > 0.0 && value < 100.0 => format!("{value:.1}"),
        value => count(value),
    }
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

/// Formats a duration in its two largest units.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    let minutes = ms / 60_000;
    let hours = ms / 3_600_000;
    match hours / 24 {
        0 if hours > 0 => format!("{hours} h {} min", minutes % 60),
        0 if minutes > 0 => format!("{minutes} min {} s", seconds % 60),
        0 => format!("{seconds} s"),
        days => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_prometheus() {
        let stage =
            |below: &[f64], count| StageCounts { bounds: Vec::new(), below: below.to_vec(), count };
        let bounds = [0.001, 0.01, 0.1];
        let old = stage(&[1.0, 1.0, 1.0], 1.0);
        let new = stage(&[1.0, 11.0, 11.0], 11.0);
        let close = |found: Option<f64>, wanted: f64| (found.unwrap() - wanted).abs() < 1e-9;
        assert!(close(quantile(&bounds, Some(&old), &new, 0.5), 0.0055));
        assert!(close(quantile(&bounds, None, &stage(&[0.0, 0.0, 0.0], 3.0), 0.5), 0.1));
        assert_eq!(quantile(&bounds, Some(&new), &new, 0.5), None);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 9_999.0, 12_345.0, 123_456.0, 1_234_567.0, 5.5e9, 7e12];
        let shown: Vec<String> = shown.into_iter().map(|value| count(Some(value))).collect();
        assert_eq!(shown, ["0", "9999", "12.3k", "123k", "1.2M", "5.5G", "7000G"]);
        assert_eq!([rate(Some(0.25)), rate(Some(0.0)), rate(None)], ["0.2", "0", "-"]);
        assert_eq!(
            [span(61_000), span(3_600_000), span(90_000_000)],
            ["1 min 1 s", "1 h 0 min", "1 d 1 h"]
        );
    }
}

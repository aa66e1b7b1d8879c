//! Ejection: ranks that stall, or have first bytes far later than their pool, get no requests for a
//! while. Sans-IO: the fleet, observations of ranks, and time are arguments; returns steps for
//! ranks. Watches ranks that serve whole requests, of workers that are up. Holds an entry for each
//! such rank.

mod events;
mod look;
mod rules;
mod silence;
mod speed;
#[cfg(test)]
mod tests;

pub(crate) use self::events::RankEvent;

use self::look::RankLook;
use self::rules::EjectionRules;
use self::silence::Silence;
use self::speed::{FirstByteSpeed, SPEED_STEPS, lower_median};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::EjectReason;
use forebay_fleet::worker::{FleetSnapshot, Role, WorkerState};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest gap between two looks. A longer gap gives no evidence for the time between.
const LATE: Duration = Duration::from_secs(1);
/// After this time in service, a rank begins with the shortest pause again.
const FORGIVEN_AFTER: Duration = Duration::from_mins(10);

/// A step for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EjectionStep {
    /// The rank gets no requests until then.
    Eject { reason: EjectReason, until: NanosSinceStart },
    /// A single request tries the rank.
    LetTry,
    /// The rank gets requests again.
    Readmit,
}

/// State of all watched ranks.
#[derive(Debug, Default)]
pub(super) struct Ejection {
    ranks: BTreeMap<RankIndex, WatchedRank>,
    looked_at: NanosSinceStart,
    judged_at: NanosSinceStart,
}

#[derive(Debug, Default)]
struct WatchedRank {
    place: EjectionPlace,
    silence: Silence,
    speed: FirstByteSpeed,
    /// The breaker is open for another reason than an ejection.
    is_failing: bool,
    /// Ejections in quick succession.
    row: u32,
    readmitted_at: Option<NanosSinceStart>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EjectionPlace {
    #[default]
    In,
    Out {
        reason: EjectReason,
        until: NanosSinceStart,
    },
    /// The rank had stalled, and its pause ended at `until`: a request may try the rank.
    Tried {
        until: NanosSinceStart,
    },
}

impl Ejection {
    /// Looks at all ranks. Returns steps for some of the ranks, in order.
    fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        now: NanosSinceStart,
        mut look: impl FnMut(RankIndex) -> RankLook,
    ) -> Vec<(RankIndex, EjectionStep)> {
        let rules = EjectionRules::of(&fleet.config);
        let is_late = Duration::from_nanos(now.since(self.looked_at)) > LATE;
        self.looked_at = now;
        let mut steps = self.forget(fleet);
        for rank in watched_ranks(fleet) {
            let watched = self.ranks.entry(rank).or_default();
            if is_late {
                watched.silence = Silence::default();
            }
            let step = watched.pass(&rules, look(rank), now);
            steps.extend(step.map(|step| (rank, step)));
        }
        self.judge_speeds(fleet, &rules, now);
        self.keep_share(fleet, &rules, now, &mut steps);
        self.eject(fleet, &rules, now, &mut steps);
        steps
    }

    /// The ejected ranks, and the ends of their pauses.
    fn ejected(&self) -> impl Iterator<Item = (RankIndex, NanosSinceStart)> {
        self.ranks.iter().filter_map(|(rank, watched)| match watched.place {
            EjectionPlace::In => None,
            EjectionPlace::Out { until, .. } | EjectionPlace::Tried { until } => {
                Some((*rank, until))
            }
        })
    }

    /// Forgets ranks that are gone or down, so that they start afresh when they return.
    fn forget(&mut self, fleet: &FleetSnapshot) -> Vec<(RankIndex, EjectionStep)> {
        let mut steps = Vec::new();
        self.ranks.retain(|&rank, watched| {
            let is_kept = is_watched(fleet, rank);
            if !is_kept && watched.place != EjectionPlace::In {
                steps.push((rank, EjectionStep::Readmit));
            }
            is_kept
        });
        steps
    }

    /// Compares the ranks of each pool.
    fn judge_speeds(&mut self, fleet: &FleetSnapshot, rules: &EjectionRules, now: NanosSinceStart) {
        let step = rules.slow_after / SPEED_STEPS;
        if rules.slow_factor == 0 || Duration::from_nanos(now.since(self.judged_at)) < step {
            return;
        }
        self.judged_at = now;
        for (_, pool) in fleet.used_pools() {
            let rate = |rank| self.ranks.get(rank).and_then(|watched| watched.speed.rate());
            let median = lower_median(pool.ranks.iter().filter_map(rate).collect());
            for rank in &pool.ranks {
                if let Some(watched) = self.ranks.get_mut(rank) {
                    watched.speed.judge(median, rules.slow_factor, now);
                }
            }
        }
    }

    /// Readmits ranks beyond the allowed share, after ranks have gone or the limit has changed.
    fn keep_share(
        &mut self,
        fleet: &FleetSnapshot,
        rules: &EjectionRules,
        now: NanosSinceStart,
        steps: &mut Vec<(RankIndex, EjectionStep)>,
    ) {
        let ejected: Vec<RankIndex> = self.ejected().map(|(rank, _)| rank).collect();
        for rank in ejected {
            if !self.fits_share(fleet, rules, rank)
                && let Some(watched) = self.ranks.get_mut(&rank)
            {
                steps.push((rank, watched.readmit(now)));
            }
        }
    }

    fn eject(
        &mut self,
        fleet: &FleetSnapshot,
        rules: &EjectionRules,
        now: NanosSinceStart,
        steps: &mut Vec<(RankIndex, EjectionStep)>,
    ) {
        let due = |(rank, watched): (&RankIndex, &mut WatchedRank)| {
            watched.fault(rules, now).map(|reason| (*rank, reason))
        };
        let due: Vec<(RankIndex, EjectReason)> = self.ranks.iter_mut().filter_map(due).collect();
        for (rank, reason) in due {
            if self.fits_share(fleet, rules, rank)
                && let Some(watched) = self.ranks.get_mut(&rank)
            {
                steps.push((rank, watched.eject(rules, reason, now)));
            }
        }
    }

    /// May the rank be ejected beside the ejected ranks? In each model of the rank, at most the
    /// share is out, and at least 1 rank is left.
    fn fits_share(&self, fleet: &FleetSnapshot, rules: &EjectionRules, rank: RankIndex) -> bool {
        let is_out = |one: &WatchedRank| one.place != EjectionPlace::In;
        let mut models = fleet.models.iter().filter(|model| model.ranks.contains(&rank));
        models.all(|model| {
            let mut all = 0_usize;
            let mut out = 0_usize;
            for other in &model.ranks {
                let Some(watched) = self.ranks.get(other) else { continue };
                all += usize::from(!watched.is_failing);
                out += usize::from(is_out(watched) || *other == rank);
            }
            out < all && out * 100 <= all * rules.share_percent
        })
    }
}

impl WatchedRank {
    /// Takes an observation of the rank.
    fn pass(
        &mut self,
        rules: &EjectionRules,
        seen: RankLook,
        now: NanosSinceStart,
    ) -> Option<EjectionStep> {
        self.is_failing = seen.is_restricted && self.place == EjectionPlace::In;
        match self.place {
            EjectionPlace::In => {
                self.silence.note(seen, now);
                self.speed.add(seen.first_bytes);
                None
            }
            EjectionPlace::Out { reason: EjectReason::Slow, until } => {
                (rules.slow_factor == 0 || now >= until).then(|| self.readmit(now))
            }
            _ if seen.answers || rules.stall_timeout.is_zero() => Some(self.readmit(now)),
            EjectionPlace::Out { until, .. } => {
                if now < until {
                    return None;
                }
                self.place = EjectionPlace::Tried { until };
                Some(EjectionStep::LetTry)
            }
            EjectionPlace::Tried { .. } => {
                // Only the trial counts: earlier requests may still run there.
                self.silence.note(RankLook { awaited: seen.is_tried, ..seen }, now);
                let is_over = self.stands_still(rules, now);
                is_over.then(|| self.eject(rules, EjectReason::Stalled, now))
            }
        }
    }

    fn stands_still(&self, rules: &EjectionRules, now: NanosSinceStart) -> bool {
        let is_over = |since: NanosSinceStart| now >= since.plus(rules.stall_timeout);
        !rules.stall_timeout.is_zero() && self.silence.since().is_some_and(is_over)
    }

    /// Reason to eject the rank.
    fn fault(&mut self, rules: &EjectionRules, now: NanosSinceStart) -> Option<EjectReason> {
        if self.place != EjectionPlace::In || self.is_failing {
            return None;
        }
        if self.stands_still(rules, now) {
            return Some(EjectReason::Stalled);
        }
        let is_slow = rules.slow_factor > 0 && self.speed.check_slow_for(rules.slow_after, now);
        is_slow.then_some(EjectReason::Slow)
    }

    fn eject(
        &mut self,
        rules: &EjectionRules,
        reason: EjectReason,
        now: NanosSinceStart,
    ) -> EjectionStep {
        let is_forgiven = |at| Duration::from_nanos(now.since(at)) >= FORGIVEN_AFTER;
        if self.readmitted_at.take().is_some_and(is_forgiven) {
            self.row = 0;
        }
        let until = now.plus(rules.pause(reason, self.row));
        self.row = self.row.saturating_add(1);
        self.silence = Silence::default();
        self.speed = FirstByteSpeed::default();
        self.place = EjectionPlace::Out { reason, until };
        EjectionStep::Eject { reason, until }
    }

    /// Readmits the rank. Earlier observations no longer count.
    fn readmit(&mut self, now: NanosSinceStart) -> EjectionStep {
        let row = self.row;
        *self = Self { row, readmitted_at: Some(now), ..Self::default() };
        EjectionStep::Readmit
    }
}

fn watched_ranks(fleet: &FleetSnapshot) -> impl Iterator<Item = RankIndex> {
    let indices = (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    indices.filter(|rank| is_watched(fleet, *rank))
}

/// A leg of a pair waits for the other leg too, so its silence proves nothing.
fn is_watched(fleet: &FleetSnapshot, rank: RankIndex) -> bool {
    let is_up = fleet
        .rank(rank)
        .is_some_and(|(rank, worker)| rank.role == Role::Both && worker.state == WorkerState::Up);
    is_up && fleet.has(rank)
}

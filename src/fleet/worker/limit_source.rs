//! Source of a rank's limit of requests. The control plane and `forebay doctor` use the same rule.

use crate::worker::Role;
use crate::worker::RoomLimits;
use forebay_config::FlowConfig;

/// Source of [`RoomLimits::places_max`] of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitSource {
    /// A configuration key; a value of 0 means no limit.
    Configured,
    /// The engine declares the limit.
    Declared,
    /// Neither: learned from load reports, see `LearnedLimit` of `forebay_board`.
    #[default]
    Learned,
    /// Neither, and the engine reports no load.
    Unlimited,
    /// The slow start of the worker or rank, for now.
    SlowStart,
}

/// A limit of requests, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacesLimit {
    /// Most requests in flight; 0: no limit, or a learned limit.
    pub places_max: u32,
    pub source: LimitSource,
}

/// Capabilities of an engine that decide the source of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Limit that the engine declares; 0: none.
    pub running_max: u32,
    /// The engine reports its load.
    pub reports_load: bool,
}

impl PlacesLimit {
    /// The limit of the first source that has any: the worker (`own`), its role, all ranks, the
    /// engine's declaration.
    #[must_use]
    pub fn of(flow: &FlowConfig, own: Option<u32>, role: Role, engine: EngineLimits) -> Self {
        let of_role = match role {
            Role::Both => None,
            Role::Prefill => flow.disaggregation.prefill_concurrency_max,
            Role::Decode => flow.disaggregation.decode_concurrency_max,
        };
        let configured = own.or(of_role).or(flow.rank_concurrency_max);
        let source = match (configured, engine.running_max) {
            (Some(_), _) => LimitSource::Configured,
            (None, 1..) => LimitSource::Declared,
            (None, 0) if engine.reports_load => LimitSource::Learned,
            (None, 0) => LimitSource::Unlimited,
        };
        let places_max = configured.unwrap_or(engine.running_max).min(RoomLimits::PLACES_MAX);
        Self { places_max, source }
    }

    /// The limit and its source, for people.
    #[must_use]
    pub fn in_words(self) -> String {
        match (self.source, self.places_max) {
            (LimitSource::Configured, 0) => "no limit of requests (configured)".to_owned(),
            (LimitSource::Configured, most) => format!("limit {most} (configured)"),
            (LimitSource::Declared, most) => format!("limit {most} (declared)"),
            (LimitSource::SlowStart, most) => format!("limit {most} (slow start)"),
            (LimitSource::Learned, _) => "limit learned from load reports".to_owned(),
            (LimitSource::Unlimited, _) => {
                "no limit of requests (none declared, no load reports)".to_owned()
            }
        }
    }
}

impl LimitSource {
    /// Value in `GET /workers` and of the metrics label `source`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Declared => "declared",
            Self::Learned => "learned",
            Self::Unlimited => "none",
            Self::SlowStart => "slow_start",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_limit_goes_before_a_declared_one_and_this_before_a_learned_one() {
        let mut flow = FlowConfig::default();
        let words = |flow: &FlowConfig, own, role, running_max, reports_load| {
            let engine = EngineLimits { running_max, reports_load };
            PlacesLimit::of(flow, own, role, engine).in_words()
        };
        let both = Role::Both;
        assert_eq!(words(&flow, None, both, 0, true), "limit learned from load reports");
        assert!(words(&flow, None, both, 0, false).starts_with("no limit of requests (none"));
        assert_eq!(words(&flow, None, both, 32, true), "limit 32 (declared)");
        flow.rank_concurrency_max = Some(0);
        assert_eq!(words(&flow, None, both, 32, true), "no limit of requests (configured)");
        assert_eq!(words(&flow, Some(7), both, 32, true), "limit 7 (configured)");
        flow.disaggregation.decode_concurrency_max = Some(9);
        assert_eq!(words(&flow, None, Role::Decode, 0, true), "limit 9 (configured)");
        assert_eq!(words(&flow, None, Role::Prefill, 0, true), "no limit of requests (configured)");
    }
}

//! What is to be asked of a worker, or listened to: made by the fleet from what was discovered and
//! configured.

use crate::control::described::AnnouncedLoad;
use forebay_base::{RankIndex, WorkerIndex};
use forebay_config::LoadSource;
use forebay_fleet::worker::Dialect;
use std::sync::Arc;

/// Where a worker's reports come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum ReportSource {
    /// `GET /metrics`.
    Metrics,
    /// `GET /v1/loads`, else `/get_load`, else `/metrics`.
    Loads,
    /// Messages of every rank; while they do not come, as `Loads`.
    Push,
}

/// One worker and its ranks; tasks are replaced when their plan changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct LoadPlan {
    pub(in crate::control) worker: WorkerIndex,
    pub(in crate::control) name: Arc<str>,
    /// `host:port`.
    pub(in crate::control) authority: Arc<str>,
    pub(in crate::control) api_key: Option<Arc<str>>,
    pub(in crate::control) source: ReportSource,
    /// Number of the first rank, as the engine counts.
    pub(in crate::control) first: u32,
    /// From that one on, in order; `None` where the fleet had no room.
    pub(in crate::control) ranks: Vec<Option<PlannedRank>>,
}

/// One rank of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct PlannedRank {
    pub(in crate::control) rank: RankIndex,
    /// KV tokens that it can hold; 0 if discovery does not know.
    pub(in crate::control) capacity_tokens: u64,
    pub(in crate::control) publisher: Option<AnnouncedLoad>,
}

impl ReportSource {
    /// The source that is used; `None` for no reports.
    pub(in crate::control) fn resolve(
        wanted: LoadSource,
        dialect: Dialect,
        ranks: &[Option<PlannedRank>],
    ) -> Option<Self> {
        let publishes =
            |rank: &Option<PlannedRank>| rank.as_ref().is_none_or(|rank| rank.publisher.is_some());
        let all_publish = ranks.iter().any(Option::is_some) && ranks.iter().all(publishes);
        match (wanted, dialect) {
            (LoadSource::Off, _) | (LoadSource::Auto, Dialect::Openai) => None,
            (LoadSource::Metrics, _) | (LoadSource::Auto, Dialect::Vllm) => Some(Self::Metrics),
            (LoadSource::Push | LoadSource::Auto, _) if all_publish => Some(Self::Push),
            (LoadSource::Push, _) => None,
            (LoadSource::Loads, _) | (LoadSource::Auto, Dialect::Sglang) => Some(Self::Loads),
        }
    }

    /// Its word in `/workers`.
    pub(in crate::control) fn word(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Loads => "loads",
            Self::Push => "push",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_kv_events::zmq::ZmqEndpoint;

    #[test]
    fn sources_are_found_forced_and_turned_off() {
        let publisher = AnnouncedLoad {
            endpoint: ZmqEndpoint::parse("tcp://a:1", "a").unwrap(),
            topic: "load".into(),
        };
        let silent = PlannedRank { rank: RankIndex(0), capacity_tokens: 0, publisher: None };
        let loud = PlannedRank { publisher: Some(publisher), ..silent };
        let none = [Some(silent.clone())];
        let (some, all) = ([Some(silent), Some(loud.clone())], [Some(loud), None]);
        let resolve = |wanted, dialect, ranks: &[_]| ReportSource::resolve(wanted, dialect, ranks);
        let (vllm, sglang, openai) = (Dialect::Vllm, Dialect::Sglang, Dialect::Openai);
        assert_eq!(resolve(LoadSource::Auto, vllm, &none), Some(ReportSource::Metrics));
        assert_eq!(resolve(LoadSource::Auto, sglang, &none), Some(ReportSource::Loads));
        assert_eq!(resolve(LoadSource::Auto, sglang, &some), Some(ReportSource::Loads));
        assert_eq!(resolve(LoadSource::Auto, sglang, &all), Some(ReportSource::Push));
        assert_eq!(resolve(LoadSource::Auto, openai, &none), None);
        assert_eq!(resolve(LoadSource::Metrics, openai, &none), Some(ReportSource::Metrics));
        assert_eq!(resolve(LoadSource::Loads, sglang, &all), Some(ReportSource::Loads));
        assert_eq!(resolve(LoadSource::Push, sglang, &none), None);
        assert_eq!(resolve(LoadSource::Off, sglang, &all), None);
        assert_eq!(resolve(LoadSource::Auto, sglang, &[None]), Some(ReportSource::Loads));
    }
}

//! Plan of a worker's scrapes and subscriptions: made by the fleet from discovery and
//! configuration.

use forebay_base::{RankIndex, WorkerIndex};
use forebay_config::LoadSource;
use forebay_fleet::worker::Dialect;
use forebay_zmq::ZmqEndpoint;
use std::sync::Arc;

/// Source of a worker's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportSource {
    /// `GET /metrics`.
    Metrics,
    /// `GET /v1/loads`, else `/get_load`, else `/metrics`.
    Loads,
    /// Messages of every rank; without messages, as `Loads`.
    Push,
}

/// A worker and its ranks; tasks are replaced when their plan changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// Index of the worker in the fleet.
    pub worker: WorkerIndex,
    /// Name of the worker, for the log.
    pub name: Arc<str>,
    /// `host:port` for scrapes.
    pub authority: Arc<str>,
    /// The bearer token that the worker requires.
    pub api_key: Option<Arc<str>>,
    pub source: ReportSource,
    /// Number of the first rank in the engine's numbering.
    pub first: u32,
    /// Ranks from `first` on, in order; `None`: the fleet had no room.
    pub ranks: Vec<Option<PlannedRank>>,
}

/// A rank of the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRank {
    /// Index of the rank in the fleet.
    pub rank: RankIndex,
    /// KV tokens that the rank can hold; 0: not discovered.
    pub capacity_tokens: u64,
    /// Socket and topic of the rank's load messages, if it publishes any.
    pub publisher: Option<AnnouncedLoad>,
}

/// Socket and topic of a rank's load messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedLoad {
    /// Socket that the rank publishes on.
    pub endpoint: ZmqEndpoint,
    /// First part of each message.
    pub topic: String,
}

impl ReportSource {
    /// The source to use; `None`: no reports.
    pub fn resolve(
        wanted: LoadSource,
        dialect: Dialect,
        ranks: &[Option<PlannedRank>],
    ) -> Option<Self> {
        let publishes =
            |rank: &Option<PlannedRank>| rank.as_ref().is_none_or(|rank| rank.publisher.is_some());
        Self::of(wanted, dialect, ranks.iter().any(Option::is_some) && ranks.iter().all(publishes))
    }

    /// [`Self::resolve`], given whether all ranks publish their load.
    #[must_use]
    pub const fn of(wanted: LoadSource, dialect: Dialect, all_publish: bool) -> Option<Self> {
        match (wanted, dialect) {
            (LoadSource::Off, _) | (LoadSource::Auto, Dialect::Openai) => None,
            (LoadSource::Metrics, _) | (LoadSource::Auto, Dialect::Vllm) => Some(Self::Metrics),
            (LoadSource::Push | LoadSource::Auto, _) if all_publish => Some(Self::Push),
            (LoadSource::Push, _) => None,
            (LoadSource::Loads, _) | (LoadSource::Auto, Dialect::Sglang) => Some(Self::Loads),
        }
    }

    /// Value of the source in `/workers`.
    pub fn word(self) -> &'static str {
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

    #[test]
    fn sources_are_found_forced_and_turned_off() {
        let publisher = AnnouncedLoad {
            endpoint: ZmqEndpoint::parse("tcp://a:1", "a").unwrap(),
            topic: "load".into(),
        };
        let silent = PlannedRank { rank: RankIndex(0), capacity_tokens: 0, publisher: None };
        let loud = PlannedRank { publisher: Some(publisher), ..silent };
        let none = [Some(silent.clone())];
        let some = [Some(silent), Some(loud.clone())];
        let all = [Some(loud), None];
        let resolve = |wanted, dialect, ranks: &[_]| ReportSource::resolve(wanted, dialect, ranks);
        let vllm = Dialect::Vllm;
        let sglang = Dialect::Sglang;
        let openai = Dialect::Openai;
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

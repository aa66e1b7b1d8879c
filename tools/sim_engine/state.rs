//! What the routes of an engine share, whichever wire it speaks.

use super::aborts::Aborts;
use super::config::EngineConfig;
use super::encode::EncodeHandle;
use super::fault::Faults;
use super::kv_publisher::KvEndpoints;
use super::ranks::RanksHandle;
use super::tally::EngineTally;
use super::times::{Timed, TimesLog};
use super::transfer::{KvSeeker, TransferTable};
use forebay_base::Clock;
use std::sync::Arc;

/// What every route can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    pub(super) config: Arc<EngineConfig>,
    pub(super) place: EnginePlace,
    /// Started with the engine.
    pub(super) clock: Clock,
    pub(super) encode: EncodeHandle,
    pub(super) ranks: RanksHandle,
    pub(super) transfer: TransferEnds,
    pub(super) requests: RequestTracking,
    pub(super) faults: Faults,
}

/// Where the engine can be reached, and since when.
#[derive(Clone, Debug)]
pub(super) struct EnginePlace {
    /// Where requests are taken.
    pub(super) http_port: u16,
    /// Where decode engines ask.
    pub(super) registry_port: u16,
    pub(super) kv_sources: Arc<[KvEndpoints]>,
    pub(super) started_s: u64,
}

/// Both ends of transfers of KV.
#[derive(Clone, Debug)]
pub(super) struct TransferEnds {
    /// What is offered to decode engines, and of a decode engine what it waits for.
    pub(super) offers: TransferTable,
    /// Asks prefill engines for what they offer.
    pub(super) seeker: KvSeeker,
}

/// What is counted, written down and ordered of requests.
#[derive(Clone, Debug)]
pub(super) struct RequestTracking {
    pub(super) tally: EngineTally,
    pub(super) times: Option<TimesLog>,
    pub(super) aborts: Aborts,
}

impl EngineState {
    /// A request is here, if such are written down.
    pub(super) fn times(&self) -> Timed {
        self.requests
            .times
            .as_ref()
            .map_or_else(Timed::unwanted, |times| times.received(self.config.role))
    }
}

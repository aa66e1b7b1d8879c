//! State that the routes of an engine share, for both wires.

use super::aborts::Aborts;
use super::batching::ranks::RanksHandle;
use super::config::EngineConfig;
use super::encode::EncodeHandle;
use super::events::kv_publisher::KvEndpoints;
use super::fault::Faults;
use super::tally::EngineTally;
use super::times::{TimedRequest, TimesLog};
use super::transfer::{KvSeeker, TransferTable};
use forebay_base::Clock;
use std::sync::Arc;

/// State of all routes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    pub(super) config: Arc<EngineConfig>,
    pub(super) place: EnginePlace,
    /// Clock since the start of the engine.
    pub(super) clock: Clock,
    pub(super) encode: EncodeHandle,
    pub(super) ranks: RanksHandle,
    pub(super) transfer: TransferEnds,
    pub(super) requests: RequestTracking,
    pub(super) faults: Faults,
}

/// Ports and endpoints of the engine.
#[derive(Clone, Debug)]
pub(super) struct EnginePlace {
    /// Port of the HTTP server.
    pub(super) http_port: u16,
    /// Port for KV requests of decode engines.
    pub(super) registry_port: u16,
    pub(super) kv_sources: Arc<[KvEndpoints]>,
    pub(super) started_s: u64,
}

/// Both ends of transfers of KV.
#[derive(Clone, Debug)]
pub(super) struct TransferEnds {
    /// Offers to decode engines; in a decode engine, transfers that it waits for.
    pub(super) offers: TransferTable,
    /// Client for the offers of prefill engines.
    pub(super) seeker: KvSeeker,
}

/// Counters, time log and aborts of requests.
#[derive(Clone, Debug)]
pub(super) struct RequestTracking {
    pub(super) tally: EngineTally,
    pub(super) times: Option<TimesLog>,
    pub(super) aborts: Aborts,
}

impl EngineState {
    /// Starts the time log of a request, if configured.
    pub(super) fn times(&self) -> TimedRequest {
        self.requests
            .times
            .as_ref()
            .map_or_else(TimedRequest::unwanted, |times| times.received(self.config.role))
    }
}

//! What the routes of an engine share, whichever wire it speaks.

use super::aborts::Aborts;
use super::config::EngineConfig;
use super::encode::EncodeHandle;
use super::fault::Faults;
use super::kv_publisher::KvEndpoints;
use super::ranks::RanksHandle;
use super::tally::EngineTally;
use super::times::{Timed, TimesLog};
use super::tokenizer::Tokenizer;
use super::transfer::{KvSeeker, TransferTable};
use crate::base::Clock;
use std::sync::Arc;

/// What every route can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    pub(super) config: Arc<EngineConfig>,
    pub(super) kv_sources: Arc<[KvEndpoints]>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) encode: EncodeHandle,
    pub(super) ranks: RanksHandle,
    pub(super) times: Option<TimesLog>,
    pub(super) started_s: u64,
    /// Started with the engine.
    pub(super) clock: Clock,
    /// What is offered to decode engines, and of a decode engine what it waits for.
    pub(super) offers: TransferTable,
    pub(super) seeker: KvSeeker,
    pub(super) aborts: Aborts,
    pub(super) tally: EngineTally,
    pub(super) faults: Faults,
    /// Where requests are taken.
    pub(super) http_port: u16,
    /// Where decode engines ask.
    pub(super) registry_port: u16,
}

impl EngineState {
    /// A request is here, if such are written down.
    pub(super) fn times(&self) -> Timed {
        self.times.as_ref().map_or_else(Timed::unwanted, |times| times.received(self.config.role))
    }
}

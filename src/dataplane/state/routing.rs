//! State that the shard needs to choose ranks.

use super::prompt_text::PromptText;
use super::workers::Workers;
use forebay_base::NanosSinceStart;
use forebay_base::limits::LOAD_RING_MAX;
use forebay_board::LoadReport;
use forebay_index::IndexReader;
use forebay_ring::Consumer;
use forebay_router::request::Stages;
use forebay_router::stored_response::StoredResponses;
use forebay_select::ReportedPaths;
use std::cell::{RefCell, RefMut};

/// Matches, places and queues requests.
pub(crate) struct RoutingState {
    /// Stages that decide for requests.
    pub(crate) stages: RefCell<Stages>,
    /// Load reports of engines.
    pub(crate) load_reports: RefCell<Consumer<LoadReport>>,
    /// Reads the slices of all shards.
    pub(crate) index: IndexReader,
    /// Routed paths recently reported to the owners of their slices.
    pub(crate) reported_paths: RefCell<ReportedPaths>,
    /// Ranks of stored responses.
    pub(crate) stored_responses: RefCell<StoredResponses>,
    /// Buffer for prompt texts.
    pub(crate) text: PromptText,
}

impl RoutingState {
    /// Stages, after all pending load reports are applied; bounded by the ring. Without reports
    /// this costs a single load of a shared cache line.
    pub(crate) fn informed(&self) -> RefMut<'_, Stages> {
        let mut stages = self.stages.borrow_mut();
        let mut ring = self.load_reports.borrow_mut();
        for _ in 0..LOAD_RING_MAX {
            let Some(report) = ring.pop() else { break };
            stages.loads.reports.take(report);
        }
        stages
    }

    /// Updates the drain rate of every pool. Cheap when called often.
    pub(crate) fn observe_drain(&self, workers: &Workers, now: NanosSinceStart) {
        let mut stages = self.stages.borrow_mut();
        stages.drain_rates.observe(&workers.fleet(), &workers.board, now);
    }
}

//! What the shard chooses ranks with.

use super::prompt_text::PromptText;
use super::workers::Workers;
use forebay_base::NanosSinceStart;
use forebay_base::limits::LOAD_RING_MAX;
use forebay_fleet::worker::LoadReport;
use forebay_index::IndexReader;
use forebay_ring::Consumer;
use forebay_router::request::Stages;
use forebay_router::stored_response::StoredResponses;
use forebay_select::ReportedPaths;
use std::cell::{RefCell, RefMut};

/// Requests are matched, placed and queued with it.
pub(crate) struct RoutingState {
    /// What requests decide with.
    pub(crate) stages: RefCell<Stages>,
    /// What engines say of their load.
    pub(crate) load_reports: RefCell<Consumer<LoadReport>>,
    /// Reads the slices of all shards.
    pub(crate) index: IndexReader,
    /// What owners of slices have been told a moment ago.
    pub(crate) told: RefCell<ReportedPaths>,
    /// Which rank keeps which response.
    pub(crate) kept: RefCell<StoredResponses>,
    /// Has the texts of prompts.
    pub(crate) text: PromptText,
}

impl RoutingState {
    /// What requests decide with, after all reports that have come; bounded by their ring. One load
    /// of a shared line when there is none.
    pub(crate) fn informed(&self) -> RefMut<'_, Stages> {
        let mut stages = self.stages.borrow_mut();
        let mut ring = self.load_reports.borrow_mut();
        for _ in 0..LOAD_RING_MAX {
            let Some(report) = ring.pop() else { break };
            stages.loads.reports.take(report);
        }
        stages
    }

    /// Looks at how many requests of every pool have ended. Cheap when called often.
    pub(crate) fn observe_drain(&self, workers: &Workers, now: NanosSinceStart) {
        let mut stages = self.stages.borrow_mut();
        stages.drain_rates.observe(&workers.fleet(), &workers.board, now);
    }
}

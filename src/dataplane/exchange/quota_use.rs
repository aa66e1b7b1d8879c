//! What a request holds of its tenant's limits, given back by a guard on every path.

use super::work_meter::WorkMeter;
use forebay_base::{Clock, TenantIndex};
use forebay_fleet::tenant::{TakenUnits, TenantCell};
use forebay_fleet::worker::ShardBoard;

/// What one request has taken. Dropping it gives tokens and place back.
#[derive(Debug, Default)]
pub(crate) struct QuotaUse {
    pub(crate) held: Option<Held>,
    /// Tokens that its prompt is believed to have.
    pub(crate) prompt_estimate: u64,
    /// What engines compute for it, where that is counted. Apart: most tenants are not, and each
    /// connection would hold the place.
    meter: Option<Box<WorkMeter>>,
}

/// Places and tokens of a tenant with limits.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) board: ShardBoard,
    pub(crate) clock: Clock,
    pub(crate) billed: TenantIndex,
    pub(crate) has_place: bool,
    /// Taken of the limit of tokens.
    pub(crate) tokens: Option<TakenUnits>,
}

impl Held {
    fn cell(&self) -> Option<&TenantCell> {
        self.board.tenants().of(self.billed)
    }

    /// The request ends, and has used so many tokens.
    pub(crate) fn settle(&mut self, used: u64) {
        if let Some(taken) = self.tokens.take()
            && let Some(cell) = self.cell()
        {
            cell.correct_tokens(taken, self.clock.now(), used);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.settle(0);
        if self.has_place
            && let Some(cell) = self.cell()
        {
            cell.in_flight().exit();
        }
    }
}

impl QuotaUse {
    /// What the request costs is of interest. Its prompt is believed to have so many tokens.
    pub(crate) fn count(&mut self, prompt_estimate: u64) {
        self.prompt_estimate = prompt_estimate;
        self.meter = (prompt_estimate > 0).then(Box::default);
    }

    /// What engines compute for it, where that is counted.
    pub(crate) fn meter(&self) -> Option<&WorkMeter> {
        self.meter.as_deref()
    }

    /// Is it of interest what the request costs?
    pub(crate) const fn is_counted(&self) -> bool {
        self.meter.is_some()
    }
}

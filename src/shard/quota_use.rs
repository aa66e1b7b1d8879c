//! What a request holds of its tenant's limits, given back by a guard on every path.

use forebay_base::{Clock, TenantIndex};
use forebay_fleet::tenant::{TakenUnits, TenantCell, TokenUsage};
use forebay_fleet::worker::ShardBoard;

/// What one request has taken. Dropping it gives tokens and place back.
#[derive(Debug, Default)]
pub(super) struct QuotaUse {
    pub(super) held: Option<Held>,
    /// Tokens that its prompt is believed to have.
    pub(super) prompt_estimate: u64,
}

/// Places and tokens of a tenant with limits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) board: ShardBoard,
    pub(super) clock: Clock,
    pub(super) billed: TenantIndex,
    pub(super) has_place: bool,
    /// Taken of the limit of tokens.
    pub(super) tokens: Option<TakenUnits>,
}

impl Held {
    fn cell(&self) -> Option<&TenantCell> {
        self.board.tenants().of(self.billed)
    }

    /// The request ends, and has used so many tokens.
    pub(super) fn settle(&mut self, used: u64) {
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
    /// Is it of interest what the request costs?
    pub(super) const fn is_counted(&self) -> bool {
        self.prompt_estimate > 0
    }

    /// What an answer has cost of which the engine tells nothing: about a token an event.
    pub(super) const fn estimated(&self, events: u64) -> TokenUsage {
        TokenUsage { prompt: self.prompt_estimate, cached: 0, output: events }
    }
}

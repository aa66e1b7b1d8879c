//! Place and tokens that a request holds in its tenant's limits. A guard returns them on every
//! path.

use forebay_base::{Clock, TenantIndex};
use forebay_board::ShardBoard;
use forebay_board::TenantCell;
use forebay_fleet::tenant::TakenUnits;

/// Place and tokens of a tenant with limits.
#[derive(Debug)]
pub(crate) struct QuotaHold {
    pub(crate) board: ShardBoard,
    pub(crate) clock: Clock,
    pub(crate) billed: TenantIndex,
    pub(crate) has_place: bool,
    /// Tokens taken from the token limit.
    pub(crate) tokens: Option<TakenUnits>,
}

impl QuotaHold {
    fn cell(&self) -> Option<&TenantCell> {
        self.board.tenants().of(self.billed)
    }

    /// Corrects the taken tokens by the used tokens.
    pub(crate) fn settle(&mut self, used: u64) {
        if let Some(taken) = self.tokens.take()
            && let Some(cell) = self.cell()
        {
            cell.correct_tokens(taken, self.clock.now(), used);
        }
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        self.settle(0);
        if self.has_place
            && let Some(cell) = self.cell()
        {
            cell.in_flight().exit();
        }
    }
}

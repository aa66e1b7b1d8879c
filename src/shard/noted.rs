//! What a recorder is told of a request, see `noting`.

use super::kept_scan::KeptSearch;
use forebay_base::RankIndex;
use forebay_fleet::tenant::TokenUsage;
use std::cell::Cell;

/// What is known of a request for its notes.
#[derive(Debug, Default)]
pub(super) struct NotedSlot {
    /// As long as the id of a response may come.
    pub(super) kept: KeptSearch,
    /// The note of its beginning, if there is one.
    pub(super) send: Cell<Option<NotedSend>>,
    /// What the engine has told of its tokens.
    pub(super) usage: Cell<Option<TokenUsage>>,
}

/// The note of a request's beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedSend {
    pub(super) id: u64,
    /// The rank of the last attempt that computes the prompt.
    pub(super) rank: RankIndex,
}

impl NotedSlot {
    pub(super) fn forget(&self) {
        self.kept.end();
        self.send.set(None);
        self.usage.set(None);
    }
}

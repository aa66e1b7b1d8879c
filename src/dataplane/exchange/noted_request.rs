//! What a recorder is told of a request, see `noting`.

use super::response_scan::KeptSearch;
use forebay_base::RankIndex;
use forebay_fleet::tenant::TokenUsage;
use std::cell::Cell;

/// What is known of a request for its notes.
#[derive(Debug, Default)]
pub(crate) struct NotedSlot {
    /// As long as the id of a response may come.
    pub(crate) kept: KeptSearch,
    /// The note of its beginning, if there is one.
    pub(crate) send: Cell<Option<NotedSend>>,
    /// What the engine has told of its tokens.
    pub(crate) usage: Cell<Option<TokenUsage>>,
}

/// The note of a request's beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedSend {
    pub(crate) id: u64,
    /// The rank of the last attempt that computes the prompt.
    pub(crate) rank: RankIndex,
}

impl NotedSlot {
    pub(crate) fn forget(&self) {
        self.kept.end();
        self.send.set(None);
        self.usage.set(None);
    }
}

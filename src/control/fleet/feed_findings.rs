//! What feeds have found themselves, and the last judgement of all feeds.

use forebay_base::RankIndex;
use forebay_fleet::worker::FeedSuspicion;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The last judgement of all feeds.
#[derive(Debug, Default)]
pub(super) struct FeedJudgement {
    /// Workers are described again after a reload: half of it would show wrong endpoints.
    pub(super) is_deferred: bool,
    pub(super) found: BTreeMap<RankIndex, Arc<FeedSuspicion>>,
}

/// What the feed of a rank has found itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FeedFindings {
    /// The replay endpoint belongs to another engine.
    pub(super) has_foreign_replay: bool,
    /// No batch has come, and the engine has computed prompts.
    pub(super) is_silent: bool,
}

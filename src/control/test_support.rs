//! What the control plane's tests share.

use super::pools;
use crate::block::Vocabulary;
use crate::worker::FleetSnapshot;
use crate::worker::test_support::three_ranks;
use std::future::Future;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Runs a test on a runtime like the control plane's own.
pub(super) fn block_on_local(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// The vocabulary of the small tokenizer that the tests share.
pub(super) fn vocabulary() -> Vocabulary {
    let text = include_str!("../../tests/data/tokenizer/tokenizer.json");
    Vocabulary::from_tokenizer_json(text).unwrap()
}

/// Two pools on three ranks of one worker: `base` with its `adapter`, and `other`. Nobody serves
/// `nobody`.
pub(super) fn two_pools() -> FleetSnapshot {
    let mut fleet = three_ranks();
    pools::assign(&mut fleet);
    fleet
}

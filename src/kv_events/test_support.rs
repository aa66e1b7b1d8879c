//! Helpers for tests of feeds, here and in the control plane.
#![allow(clippy::unwrap_used, reason = "a test that cannot begin must stop")]

use forebay_text::Vocabulary;
use std::future::Future;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Runs a test on a runtime like the control plane's own.
///
/// # Panics
/// Where the system has no more sockets.
pub fn block_on_local(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// The vocabulary of the small tokenizer that the tests share.
///
/// # Panics
/// Never: the file is part of the tree.
#[must_use]
pub fn vocabulary() -> Vocabulary {
    let text = include_str!("../../tests/data/tokenizer/tokenizer.json");
    Vocabulary::from_tokenizer_json(text).unwrap()
}

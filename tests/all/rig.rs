//! What tests of the simulated engine share: an engine in this process and a client of it.

#![expect(clippy::expect_used, reason = "helpers of tests may stop the test")]

use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use std::sync::OnceLock;
use std::time::Duration;

/// Longest wait for any answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An engine with the small text of its own, read once.
pub(crate) fn start(config: EngineConfig) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("loads"));
    Engine::start_with(config, text.clone()).expect("engine starts")
}

/// A client that goes through no proxy and gives up after [`DEADLINE`].
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(DEADLINE).build().expect("client")
}

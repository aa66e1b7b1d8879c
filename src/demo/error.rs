//! Reasons why the demo cannot run; the command line prints them.

use forebay_sim_engine::EngineError;

/// Why the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// An engine does not start.
    #[error("engine: {0}")]
    Engine(#[from] EngineError),
    /// The router does not start.
    #[error("router: {0}")]
    Router(String),
    /// The HTTP client cannot be built.
    #[error("client: {0}")]
    Client(#[from] reqwest::Error),
    /// A file, the terminal or a runtime fails.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

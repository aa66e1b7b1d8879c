//! Configuration of `forebay demo`.

use std::path::PathBuf;
use std::time::Duration;

/// Configuration of `forebay demo`.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// Time under load of each act.
    pub duration: Duration,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
    /// Redraw in place instead of writing lines.
    pub terminal: bool,
}

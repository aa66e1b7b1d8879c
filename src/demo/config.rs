//! What `forebay demo` is asked to do.

use std::path::PathBuf;
use std::time::Duration;

/// What `forebay demo` is asked to do.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// How long each act is under load.
    pub duration: Duration,
    /// Where to write the figures as JSON.
    pub json: Option<PathBuf>,
    /// Redraw in place instead of writing lines.
    pub terminal: bool,
}

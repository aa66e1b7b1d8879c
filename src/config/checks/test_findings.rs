//! Findings on a configuration, for tests of the checks.

use crate::Config;

/// Findings on this text with a single worker added.
pub(crate) fn findings(text: &str) -> Vec<String> {
    let text = format!("{text}\n[[worker]]\nurl = \"http://a:1\"\n");
    let read = Config::from_toml(&text);
    read.err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

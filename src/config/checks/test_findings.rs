//! Findings on a configuration, for tests of the checks.

use crate::{ConfigText, Flags, load};

/// Errors and warnings about this text with a single worker added.
pub(crate) fn findings(text: &str) -> Vec<String> {
    let text = format!("{text}\n[[worker]]\nurl = \"http://a:1\"\n");
    let loaded = load(Some(ConfigText { name: "forebay.toml", text: &text }), &Flags::default());
    loaded.findings.iter().map(ToString::to_string).collect()
}

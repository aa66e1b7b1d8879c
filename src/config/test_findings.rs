//! What the checks say of a configuration, for their tests.

use crate::Config;

/// Of this text and one worker.
pub(crate) fn findings(text: &str) -> Vec<String> {
    let text = format!("{text}\n[[worker]]\nurl = \"http://a:1\"\n");
    let read = Config::from_toml(&text);
    read.err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

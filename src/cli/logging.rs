//! Structured events on standard error: text for people, or one JSON object per line.

use crate::config::LogConfig;
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Starts logging. Once per process; a second call changes nothing.
pub(super) fn start(log: &LogConfig) -> Result<(), String> {
    // The NATS client has words of its own for what is said once here; a level for `async_nats` brings them back.
    let filter = EnvFilter::try_new(format!("async_nats=error,{}", log.level))
        .map_err(|error| format!("`log.level` {:?}: {error}; write for example info", log.level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal());
    let started =
        if log.json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    // Only a test that runs two commands in one process comes here twice.
    drop(started);
    Ok(())
}

//! Structured logging to standard error: text, or a JSON object per line.

use super::log_line::{LineForm, LogLine};
use crate::log::LogQueue;
use crate::worker_lines::SUMS;
use forebay_config::LogConfig;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Flushes the log when dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct LogFlusher(LogQueue);

impl Drop for LogFlusher {
    fn drop(&mut self) {
        self.0.flush_all();
    }
}

/// Tests whether `log.level` can be read.
pub(super) fn check_level(log: &LogConfig) -> Result<(), String> {
    filter(log).map(|_| ())
}

/// Are the reasons of a failed start lines of the log? Plain lines without a time are for a person
/// at a terminal.
pub(super) fn takes_faults(log: &LogConfig) -> bool {
    log.json || !io::stderr().is_terminal()
}

/// Target of the lines about a start that fails, which no level silences.
pub(super) const START: &str = "forebay::start";

// The NATS client logs events that Forebay logs itself; a level for `async_nats` brings its lines
// back. A sum is of lines that have passed the filter.
fn filter(log: &LogConfig) -> Result<EnvFilter, String> {
    let level = &log.level;
    EnvFilter::try_new(format!("async_nats=error,{SUMS}=trace,{level},{START}=trace"))
        .map_err(|error| format!("`log.level` {level:?}: {error}; write for example info"))
}

/// Starts logging. Once per process; further calls change nothing.
pub(super) fn start(log: &LogConfig) -> Result<LogFlusher, String> {
    let filter = filter(log)?;
    let queue = LogQueue::start(io::stderr())
        .map_err(|error| format!("cannot start the thread that writes the log: {error}"))?;
    let to_queue = queue.clone();
    let form = if log.json {
        LineForm::Json
    } else {
        LineForm::Text { is_terminal: io::stderr().is_terminal() }
    };
    let format = LogLine { form, pid: std::process::id() };
    let started = tracing_subscriber::fmt()
        // The subscriber would print them to standard error by a macro that panics if that is
        // closed.
        .log_internal_errors(false)
        .event_format(format)
        .with_env_filter(filter)
        .with_writer(move || to_queue.clone())
        .try_init();
    // Only a test that runs two commands in a single process calls this twice.
    if started.is_ok() && !cfg!(test) {
        log_panics();
    }
    Ok(LogFlusher(queue))
}

/// The default hook writes to standard error itself: a panicking thread would block on a slow
/// reader.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        tracing::error!(
            thread = thread.name().unwrap_or_default(),
            place,
            backtrace = backtrace.map(tracing::field::display),
            "panic (this is a bug): {}",
            panic.payload_as_str().unwrap_or_default()
        );
    }));
}

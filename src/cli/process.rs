//! Parts that subcommands share: the runtime, the signals that end a command, the exit code.

use forebay_base::limits::LOG_FLUSH_TIME_MAX;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code of a command without output at its end.
pub(super) fn finish(done: Result<(), String>) -> ExitCode {
    done.map_or_else(failed, |()| ExitCode::SUCCESS)
}

/// Replaces control characters: text from outside must not steer the terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// Runs a task on a runtime of this thread alone.
pub(super) fn run_local<T>(task: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, task))
}

/// Returns at the first SIGTERM or SIGINT.
pub(super) async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Prints the reason for a failure to standard error.
pub(super) fn failed(reason: impl Display) -> ExitCode {
    warned(reason);
    ExitCode::FAILURE
}

/// Prints a line to standard error. A reader that blocks must not keep the process from ending.
pub(super) fn warned(text: impl Display) {
    let text = format!("forebay: {text}\n");
    let (done, written) = std::sync::mpsc::sync_channel(1);
    let writing = std::thread::Builder::new().spawn(move || {
        // A closed standard error leaves no other way to report.
        let _ = io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    });
    if writing.is_ok() {
        let _ = written.recv_timeout(LOG_FLUSH_TIME_MAX);
    }
}

//! The side of the new process, and of a command that requests an upgrade.

use super::address::{HandoverAddress, OF_UPGRADE};
use super::wire::{
    protocol_error, read_line, read_report, receive_files, write_line, write_report,
};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Timeout of answers that need no work.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Timeout of the index, which the running process must write first.
const INDEX_MAX: Duration = Duration::from_secs(60);
/// Timeout until a new process serves.
pub(super) const UPGRADE_MAX: Duration = Duration::from_secs(120);
/// Most descriptors: listeners of many shards.
const SOCKETS_MAX: usize = 4_096;

/// Sockets and index of a running process. When dropped before [`Self::serves`], the running
/// process continues.
#[derive(Debug)]
pub struct TakenProcess {
    /// All listening sockets of the running process.
    pub sockets: Vec<OwnedFd>,
    /// Index of the running process, if it could write it.
    pub index: Option<File>,
    /// Id of the running process.
    pub from: Pid,
    stream: UnixStream,
}

/// Why a takeover failed.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The running process is already stopping.
    #[error("the running process stops already")]
    Drains,
    /// The request to the running process failed.
    #[error("the running process cannot be asked: {0}")]
    Io(#[from] io::Error),
    /// Another process took over, or the running process ended, before the answer.
    #[error(
        "the running process ended, or another upgrade was faster: see which process serves, and \
         call again if it is not the new one"
    )]
    TakenMeanwhile,
    /// The new process did not start.
    #[error("{reason}")]
    Failed {
        reason: String,
        /// Errors of the new process, a line each; empty if the new process reported none.
        report: String,
    },
}

/// Takes the sockets and the index of the process that listens at `place`; `None` without such a
/// process.
///
/// # Errors
/// [`TakeError`]; the running process continues.
pub fn take(place: &HandoverAddress) -> Result<Option<TakenProcess>, TakeError> {
    let Some((stream, from)) = place.meet()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    write_line(&stream, "sockets")?;
    let count = match read_line(&stream, ANSWER_MAX) {
        Err(error)
            if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            return Ok(None);
        }
        answer => number(&answer?, SOCKETS_MAX)?,
    };
    let sockets = receive_files(&stream, count, ANSWER_MAX)?;
    let count = number(&read_line(&stream, INDEX_MAX)?, 1)?;
    let index = receive_files(&stream, count, ANSWER_MAX)?.pop().map(File::from);
    Ok(Some(TakenProcess { sockets, index, from, stream }))
}

/// Requests the models of the workers from the process at `place`; `None` without a process, and
/// from an older version.
///
/// # Errors
/// [`TakeError`]; the running process continues.
pub fn take_models(place: &HandoverAddress) -> Result<Option<File>, TakeError> {
    let Some((stream, _)) = place.meet()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    write_line(&stream, "models")?;
    let count = match read_line(&stream, ANSWER_MAX) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        answer => number(&answer?, 1)?,
    };
    Ok(receive_files(&stream, count, ANSWER_MAX)?.pop().map(File::from))
}

fn number(line: &str, most: usize) -> Result<usize, TakeError> {
    if line == "drains" {
        return Err(TakeError::Drains);
    }
    let number = line.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| protocol_error().into())
}

impl TakenProcess {
    /// Reports that this process serves. On success the running process drains.
    ///
    /// # Errors
    /// [`TakeError`] when the running process does not answer; it may have ended.
    pub fn serves(&self) -> Result<(), TakeError> {
        write_line(&self.stream, "serves")?;
        match read_line(&self.stream, ANSWER_MAX)?.as_str() {
            "drains" => Ok(()),
            _ => Err(protocol_error().into()),
        }
    }
}

/// Requests that the process at `place` starts its program again, and waits until the new process
/// serves. Returns the id of the new process; `None` without a process at `place`.
///
/// # Errors
/// [`TakeError`]; the running process continues.
pub fn upgrade(place: &HandoverAddress) -> Result<Option<i32>, TakeError> {
    let Some(stream) = place.meet_for_order()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let answer =
        write_line(&stream, "upgrade").and_then(|()| read_line(&stream, UPGRADE_MAX + ANSWER_MAX));
    let answer = answer.map_err(|error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            TakeError::TakenMeanwhile
        }
        _ => error.into(),
    })?;
    match answer.split_once(' ') {
        Some(("serves", pid)) => pid.parse().map(Some).map_err(|_| protocol_error().into()),
        Some(("failed", reason)) => {
            // An older version sends none.
            let report = read_report(&stream, ANSWER_MAX).unwrap_or_default();
            Err(TakeError::Failed { reason: reason.to_owned(), report })
        }
        _ => Err(protocol_error().into()),
    }
}

/// Sends the reasons of a start that failed, a line each, to the process that has started this
/// process for an upgrade. Does nothing outside an upgrade.
pub fn report_failed_start(reasons: &str) {
    // The log has the reasons too: a running process that does not take them loses nothing.
    let _ = std::env::var_os(OF_UPGRADE).map(|name| report_to(&name, reasons));
}

pub(super) fn report_to(name: &OsStr, reasons: &str) -> io::Result<()> {
    let Some((stream, _)) = HandoverAddress::named(name)?.meet()? else { return Ok(()) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    write_line(&stream, "failed")?;
    write_report(&stream, reasons)?;
    // The running process closes the stream when it has taken the report.
    read_report(&stream, ANSWER_MAX).map(drop)
}

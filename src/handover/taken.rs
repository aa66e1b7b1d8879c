//! The side of the new process, and of whoever asks for one.

use super::MeetingPlace;
use super::wire::{hear, receive_files, say, strange};
use rustix::process::Pid;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// For answers that need no work.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// In which an index is written.
const INDEX_MAX: Duration = Duration::from_secs(60);
/// In which a new process serves, or has given up.
pub(super) const UPGRADE_MAX: Duration = Duration::from_secs(120);
/// Most descriptors: listeners of many shards.
const SOCKETS_MAX: usize = 4_096;

/// What a running process hands over. Dropping it before it was told leaves everything as it is.
#[derive(Debug)]
pub struct TakenProcess {
    /// Everything that it listens on.
    pub sockets: Vec<OwnedFd>,
    /// What it knows of the caches of its workers, if it could write that.
    pub index: Option<File>,
    /// The process that hands over.
    pub from: Pid,
    stream: UnixStream,
}

/// Why a running process hands nothing over.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It ends without that already.
    #[error("the running process stops already")]
    Drains,
    /// It could not be asked.
    #[error("the running process cannot be asked: {0}")]
    Io(#[from] io::Error),
    /// Another process took over, or it ended, before it answered.
    #[error(
        "the running process ended, or another upgrade was faster: see which process serves, and \
         call again if it is not the new one"
    )]
    TakenMeanwhile,
    /// It could not start another process.
    #[error("{0}")]
    Failed(String),
}

/// Asks the process that waits at the place for its sockets; `None` if none waits there.
///
/// # Errors
/// [`TakeError`]; the running process goes on then.
pub fn take(place: &MeetingPlace) -> Result<Option<TakenProcess>, TakeError> {
    let Some((stream, from)) = place.meet()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    say(&stream, "sockets")?;
    let count = match hear(&stream, ANSWER_MAX) {
        Err(error)
            if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            return Ok(None);
        }
        heard => number(&heard?, SOCKETS_MAX)?,
    };
    let sockets = receive_files(&stream, count, ANSWER_MAX)?;
    let count = number(&hear(&stream, INDEX_MAX)?, 1)?;
    let index = receive_files(&stream, count, ANSWER_MAX)?.pop().map(File::from);
    Ok(Some(TakenProcess { sockets, index, from, stream }))
}

/// Asks the process that waits at the place for the models of its workers; `None` if no process
/// waits there, or an older one.
///
/// # Errors
/// [`TakeError`]; the running process goes on then.
pub fn take_models(place: &MeetingPlace) -> Result<Option<File>, TakeError> {
    let Some((stream, _)) = place.meet()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    say(&stream, "models")?;
    let count = match hear(&stream, ANSWER_MAX) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        heard => number(&heard?, 1)?,
    };
    Ok(receive_files(&stream, count, ANSWER_MAX)?.pop().map(File::from))
}

fn number(line: &str, most: usize) -> Result<usize, TakeError> {
    if line == "drains" {
        return Err(TakeError::Drains);
    }
    let number = line.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| strange().into())
}

impl TakenProcess {
    /// Says that this process serves. The other one drains when this returns.
    ///
    /// # Errors
    /// [`TakeError`] when it did not hear; it may have ended.
    pub fn serves(&self) -> Result<(), TakeError> {
        say(&self.stream, "serves")?;
        match hear(&self.stream, ANSWER_MAX)?.as_str() {
            "drains" => Ok(()),
            _ => Err(strange().into()),
        }
    }
}

/// Asks the process that waits at the place to start its program again, and waits until the new
/// process serves; returns its number. `None` if no process waits there.
///
/// # Errors
/// [`TakeError`]; the running process goes on then.
pub fn upgrade(place: &MeetingPlace) -> Result<Option<i32>, TakeError> {
    let Some((stream, _)) = place.meet()? else { return Ok(None) };
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let heard = say(&stream, "upgrade").and_then(|()| hear(&stream, UPGRADE_MAX + ANSWER_MAX));
    let heard = heard.map_err(|error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            TakeError::TakenMeanwhile
        }
        _ => error.into(),
    })?;
    match heard.split_once(' ') {
        Some(("serves", pid)) => pid.parse().map(Some).map_err(|_| strange().into()),
        Some(("failed", reason)) => Err(TakeError::Failed(reason.to_owned())),
        _ => Err(strange().into()),
    }
}

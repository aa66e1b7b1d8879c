//! Messages between the two processes: lines, some followed by descriptors.

use forebay_base::Clock;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest line without its end.
const LINE_BYTES_MAX: usize = 128;
/// Longest report after a line: the errors of a start that failed. The rest is dropped.
const REPORT_BYTES_MAX: usize = 16 << 10;
/// Most descriptors in a message; the kernel accepts 253.
const FILES_A_BYTE: usize = 64;
/// Payload of a message with descriptors.
const MARK: u8 = b'.';

pub(super) fn write_line(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// Reads a line within a time limit. Reads no byte after the line, because descriptors may come
/// with that byte.
pub(super) fn read_line(mut stream: &UnixStream, patience: Duration) -> io::Result<String> {
    let clock = Clock::start();
    let until = clock.now().plus(patience);
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        let left = until.since(clock.now());
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left)))?;
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(|_| protocol_error()),
            _ if line.len() == LINE_BYTES_MAX => return Err(protocol_error()),
            [other] => line.push(other),
        }
    }
}

/// Sends a report after a line, and with it the end of what this side sends.
pub(super) fn write_report(mut stream: &UnixStream, report: &str) -> io::Result<()> {
    let bytes = report.as_bytes();
    stream.write_all(bytes.get(..REPORT_BYTES_MAX).unwrap_or(bytes))?;
    stream.shutdown(Shutdown::Write)
}

/// Reads a report to its end within a time limit.
pub(super) fn read_report(mut stream: &UnixStream, patience: Duration) -> io::Result<String> {
    let clock = Clock::start();
    let until = clock.now().plus(patience);
    let mut bytes = Vec::new();
    let mut some = [0; 1_024];
    while bytes.len() < REPORT_BYTES_MAX {
        let left = until.since(clock.now());
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(Duration::from_nanos(left)))?;
        let length = stream.read(&mut some)?;
        if length == 0 {
            break;
        }
        bytes.extend_from_slice(some.get(..length).unwrap_or_default());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn send_files(stream: &UnixStream, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    for some in files.chunks(FILES_A_BYTE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_A_BYTE))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        if !with.push(SendAncillaryMessage::ScmRights(some)) {
            return Err(protocol_error());
        }
        sendmsg(stream, &[IoSlice::new(&[MARK])], &mut with, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

pub(super) fn receive_files(
    stream: &UnixStream,
    count: usize,
    patience: Duration,
) -> io::Result<Vec<OwnedFd>> {
    stream.set_read_timeout(Some(patience))?;
    let mut files = Vec::new();
    while files.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_A_BYTE))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let mut mark = [0];
        let before = files.len();
        let into = &mut [IoSliceMut::new(&mut mark)];
        recvmsg(stream, into, &mut with, RecvFlags::CMSG_CLOEXEC)?;
        for message in with.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
        if mark != [MARK] || files.len() == before {
            return Err(protocol_error());
        }
    }
    Ok(files)
}

pub(super) fn protocol_error() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the other process speaks otherwise")
}

//! What a parked shard sleeps on: an eventfd read in the io_uring, or a socket when the driver is
//! epoll (which cannot wait for a plain read).

use super::Driver;
use monoio::io::AsyncReadRent;
use monoio::net::UnixStream;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;

/// The reading end, on its way to the shard's thread.
#[derive(Debug)]
pub enum WakeSource {
    /// Counts the wakes; for io_uring.
    EventFd(OwnedFd),
    /// Gets eight bytes a wake; for epoll.
    Socket(std::os::unix::net::UnixStream),
}

/// The reading end, inside the shard's runtime.
#[derive(Debug)]
pub enum Sleeper {
    /// Read in the io_uring.
    EventFd(monoio::fs::File),
    /// Read when epoll says so.
    Socket(UnixStream),
}

/// Makes both ends of one shard's wake-up: the descriptor to write to, and what the shard sleeps
/// on.
///
/// # Errors
/// When the process is out of descriptors.
pub fn wake_pair(driver: Driver) -> io::Result<(OwnedFd, WakeSource)> {
    match driver {
        Driver::IoUring => {
            // Not EFD_NONBLOCK: io_uring would complete the read at once with EAGAIN instead of
            // waiting.
            let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
            let source = bell.try_clone()?;
            Ok((bell, WakeSource::EventFd(source)))
        }
        Driver::Epoll => {
            let (bell, source) = std::os::unix::net::UnixStream::pair()?;
            bell.set_nonblocking(true)?;
            source.set_nonblocking(true)?;
            Ok((bell.into(), WakeSource::Socket(source)))
        }
    }
}

impl Sleeper {
    /// Takes the reading end into the runtime of this thread.
    pub fn new(source: WakeSource) -> io::Result<Self> {
        Ok(match source {
            WakeSource::EventFd(fd) => Self::EventFd(monoio::fs::File::from_std(fd.into())?),
            WakeSource::Socket(socket) => Self::Socket(UnixStream::from_std(socket)?),
        })
    }

    /// Sleeps until the bell is rung, or has been since the last sleep.
    pub async fn sleep(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Self::EventFd(file) => file.read_at(buffer, 0).await,
            Self::Socket(socket) => socket.read(buffer).await,
        }
    }
}

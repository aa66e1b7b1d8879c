//! Wake-up of a parked shard: an eventfd that other threads signal.

use forebay_net::Source;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

/// The reading end, before the shard's thread registers it.
#[derive(Debug)]
pub struct WakeSource(OwnedFd);

/// The reading end in the shard's loop.
#[derive(Debug)]
pub struct Sleeper(Source);

/// Creates both ends of a shard's wake-up: the descriptor to write to, and the reading end.
///
/// # Errors
/// The process is out of descriptors.
pub fn wake_pair() -> io::Result<(OwnedFd, WakeSource)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let source = bell.try_clone()?;
    Ok((bell, WakeSource(source)))
}

impl Sleeper {
    /// Registers the reading end with the loop of this thread.
    ///
    /// # Errors
    /// The registration failed.
    pub fn new(source: WakeSource) -> io::Result<Self> {
        Source::new(source.0).map(Self)
    }

    /// Ready if the bell has rung since this was last ready.
    pub fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_signalled(cx)
    }
}

//! What a parked shard sleeps on: an eventfd that other threads count up.

use forebay_net::Source;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

/// The reading end, on its way to the shard's thread.
#[derive(Debug)]
pub struct WakeSource(OwnedFd);

/// The reading end, inside the shard's loop.
#[derive(Debug)]
pub struct Sleeper(Source);

/// Makes both ends of one shard's wake-up: the descriptor to write to, and what the shard sleeps
/// on.
///
/// # Errors
/// When the process is out of descriptors.
pub fn wake_pair() -> io::Result<(OwnedFd, WakeSource)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let source = bell.try_clone()?;
    Ok((bell, WakeSource(source)))
}

impl Sleeper {
    /// Takes the reading end into the loop of this thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(source: WakeSource) -> io::Result<Self> {
        Source::new(source.0).map(Self)
    }

    /// Ready when the bell has been rung since this was last ready.
    pub fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_signalled(cx)
    }
}

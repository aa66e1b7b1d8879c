//! The shard's runtime: monoio on io_uring with the best flags the kernel grants, or on epoll.

use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};
use std::future::Future;
use std::io;

/// How a shard waits for I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Waits for completions of io_uring.
    IoUring,
    /// epoll, where io_uring is refused (e.g. Docker's default seccomp profile,
    /// `kernel.io_uring_disabled`).
    Epoll,
}

/// Submission entries; small, so that 50 shards fit into 8 MiB of locked memory.
const ENTRIES: u32 = 1_024;
/// Completion entries: a burst of completions must not overflow.
const COMPLETION_ENTRIES: u32 = 4_096;

impl Driver {
    /// io_uring if this process may use it. `FOREBAY_DRIVER=epoll` forces epoll (for tests).
    #[must_use]
    pub fn detect() -> Self {
        let forced = std::env::var_os("FOREBAY_DRIVER").is_some_and(|driver| driver == "epoll");
        if !forced && uring(io_uring::IoUring::builder()).is_ok() {
            Self::IoUring
        } else {
            Self::Epoll
        }
    }
}

/// Runs `main` to its end on this thread. The runtime is built here, because the best io_uring
/// flags tie a ring to the thread that made it.
///
/// # Errors
/// When no runtime can be built.
pub fn block_on<F: Future>(driver: Driver, main: F) -> io::Result<F::Output> {
    if driver == Driver::Epoll {
        let mut runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
        return Ok(runtime.block_on(main));
    }
    // DEFER_TASKRUN runs completions when the shard asks for them (Linux 6.1), COOP_TASKRUN spares
    // the interrupt (5.19).
    let mut deferred = io_uring::IoUring::builder();
    deferred.setup_single_issuer().setup_defer_taskrun();
    let mut cooperative = io_uring::IoUring::builder();
    cooperative.setup_coop_taskrun();
    let flags = [deferred, cooperative, io_uring::IoUring::builder()];
    let granted = flags.into_iter().find(|builder| uring(builder.clone()).is_ok());
    let mut builder = granted.ok_or(io::ErrorKind::Unsupported)?;
    builder.setup_cqsize(COMPLETION_ENTRIES);
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
        .uring_builder(builder)
        .with_entries(ENTRIES)
        .enable_timer()
        .build()?;
    Ok(runtime.block_on(main))
}

fn uring(mut builder: io_uring::Builder) -> io::Result<io_uring::IoUring> {
    builder.setup_cqsize(COMPLETION_ENTRIES).build(ENTRIES)
}

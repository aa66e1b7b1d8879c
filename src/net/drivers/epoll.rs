//! The driver for hosts that refuse io_uring: edge-triggered epoll.

use super::readiness::Readiness;
use forebay_base::limits::COMPLETIONS_MAX;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use slab::Slab;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// The epoll descriptor of a thread and its watched sockets.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    watched: Slab<Rc<Readiness>>,
    events: Vec<epoll::Event>,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, watched: Slab::new(), events: Vec::with_capacity(COMPLETIONS_MAX) })
    }

    pub(crate) fn add(&mut self, fd: &OwnedFd, readiness: &Rc<Readiness>) -> io::Result<usize> {
        use epoll::EventFlags as Flags;
        let entry = self.watched.vacant_entry();
        let data = epoll::EventData::new_u64(u64::try_from(entry.key()).unwrap_or(u64::MAX));
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        epoll::add(&self.epoll, fd, data, flags)?;
        let key = entry.key();
        entry.insert(Rc::clone(readiness));
        Ok(key)
    }

    pub(crate) fn remove(&mut self, key: usize, fd: BorrowedFd<'_>) {
        // The descriptor may be shared with another thread, which keeps it open.
        let _ = epoll::delete(self.epoll.as_fd(), fd);
        let _ended = self.watched.try_remove(key);
    }

    /// `wait`: longest wait; `None`: until a descriptor is ready.
    pub(crate) fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        // Rounded up to milliseconds, so that the loop does not spin right before a timer's
        // deadline.
        let millis = wait.map(|wait| wait.as_nanos().div_ceil(1_000_000));
        let timeout = millis.map(|millis| Timespec {
            tv_sec: i64::try_from(millis / 1_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(millis % 1_000).unwrap_or(0) * 1_000_000,
        });
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let flags = event.flags;
            let key = event.data.u64();
            let watched = usize::try_from(key).ok().and_then(|key| self.watched.get(key));
            let Some(readiness) = watched else { continue };
            let ended = flags.intersects(Flags::HUP | Flags::ERR);
            if ended || flags.contains(Flags::RDHUP) {
                readiness.set_ended();
            }
            let readable = ended || flags.intersects(Flags::IN | Flags::RDHUP);
            readiness.set(readable, ended || flags.contains(Flags::OUT));
        }
        Ok(())
    }
}

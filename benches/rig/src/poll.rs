//! Readiness of sockets: level-triggered epoll, with waits of nanoseconds' precision. Used by the
//! one thread that is both load and worker.

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Events taken from the kernel at once.
const READY_MAX: usize = 256;

/// The owner of a ready socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The worker's listening socket.
    Listener,
    /// A connection that the worker accepted.
    Worker(u32),
    /// A connection that the load opened.
    Client(u32),
}

/// One epoll instance.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(READY_MAX) })
    }

    /// Watches a socket for input; closing the socket ends it.
    pub fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.to_word());
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// Watches it for room to write too, or no longer.
    pub fn await_room(&self, socket: impl AsFd, token: Token, is_awaited: bool) -> io::Result<()> {
        let room = if is_awaited { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(token.to_word());
        Ok(epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN | room)?)
    }

    /// Appends what is ready within `wait_ns`; 0 only looks.
    pub fn wait(&mut self, wait_ns: u64, ready: &mut Vec<Token>) -> io::Result<()> {
        if wait_ns > 0 {
            // Waits of epoll itself are rounded up to milliseconds where `epoll_pwait2` may be
            // missing.
            let timeout = timespec(wait_ns);
            let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut epoll, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(0))) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().filter_map(|event| Token::from_word(event.data.u64())));
        Ok(())
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

impl Token {
    fn to_word(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Worker(number) => (1 << 32) | u64::from(number),
            Self::Client(number) => (2 << 32) | u64::from(number),
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        let number = u32::try_from(word & u64::from(u32::MAX)).ok()?;
        match word >> 32 {
            0 => Some(Self::Listener),
            1 => Some(Self::Worker(number)),
            2 => Some(Self::Client(number)),
            _ => None,
        }
    }
}

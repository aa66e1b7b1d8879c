//! Readiness of sockets: level-triggered epoll, with waits of nanoseconds' precision. Used by the
//! one thread that is both load and worker.

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

/// Events taken from the kernel at once.
const READY_MAX: usize = 256;

/// Whose socket is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The worker's listening socket.
    Listener,
    /// A connection that the worker accepted.
    Worker(u32),
    /// A connection that the load opened.
    Client(u32),
}

/// One epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(READY_MAX) })
    }

    /// Watches a socket for input; closing the socket ends it.
    pub(crate) fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.to_word());
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// Watches it for room to write too, or no longer.
    pub(crate) fn await_room(
        &self,
        socket: impl AsFd,
        token: Token,
        is_awaited: bool,
    ) -> io::Result<()> {
        let room = if is_awaited { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(token.to_word());
        Ok(epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN | room)?)
    }

    /// Appends what is ready within `wait_ns`; 0 only looks.
    pub(crate) fn wait(&mut self, wait_ns: u64, ready: &mut Vec<Token>) -> io::Result<()> {
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

/// Appends what one read gives. False when the other side has closed.
pub(crate) fn read_into(
    stream: &mut TcpStream,
    scratch: &mut [u8],
    input: &mut Vec<u8>,
) -> io::Result<bool> {
    match stream.read(scratch) {
        Ok(0) => Ok(false),
        Ok(count) => {
            input.extend_from_slice(scratch.get(..count).unwrap_or_default());
            Ok(true)
        }
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(true),
            ErrorKind::ConnectionReset => Ok(false),
            _ => Err(error),
        },
    }
}

/// Non-blocking, without Nagle's delay, with room for a whole message, so that one write always
/// suffices.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_send_buffer_size(256 * 1024)
}

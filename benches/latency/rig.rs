//! The one thread of the load's core: client connections and the worker in one loop. It sleeps only
//! when nothing is awaited and nothing is due soon, so an answer is seen when it arrives and a
//! request leaves when it is due.

use crate::poll::{Poller, Token};
use crate::stub::Stub;
use forebay::base::Clock;
use std::io;
use std::time::Duration;

/// Waking from sleep may take this long; what is due sooner is waited for awake.
const AWAKE_BEFORE_DUE_NS: u64 = 80_000;
const SCRATCH_BYTES: usize = 256 * 1024;

/// Load and worker share this.
pub(crate) struct Rig {
    pub(crate) clock: Clock,
    pub(crate) poller: Poller,
    pub(crate) stub: Stub,
    pub(crate) scratch: Vec<u8>,
    ready: Vec<Token>,
}

impl Rig {
    pub(crate) fn new() -> io::Result<Self> {
        let poller = Poller::new()?;
        let stub = Stub::start(&poller)?;
        Ok(Self {
            clock: Clock::start(),
            poller,
            stub,
            scratch: vec![0; SCRATCH_BYTES],
            ready: Vec::new(),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    /// Serves the worker's sockets for that long.
    pub(crate) fn pause(&mut self, time: Duration) -> io::Result<()> {
        let end_ns = self.now_ns() + u64::try_from(time.as_nanos()).map_err(io::Error::other)?;
        while self.now_ns() < end_ns {
            self.turn(false, end_ns, &mut Vec::new())?;
        }
        Ok(())
    }

    /// One turn: sends due events, waits if nothing is `awaited`, at most until `due_ns`, serves
    /// the worker's sockets. Appends the numbers of client connections that are ready.
    pub(crate) fn turn(
        &mut self,
        awaited: bool,
        due_ns: u64,
        clients: &mut Vec<u32>,
    ) -> io::Result<()> {
        let now = self.now_ns();
        self.stub.emit_due(now)?;
        let due_ns = self.stub.next_due_ns().map_or(due_ns, |event| event.min(due_ns));
        let idle_ns = due_ns.saturating_sub(now).saturating_sub(AWAKE_BEFORE_DUE_NS);
        self.ready.clear();
        self.poller.wait(if awaited { 0 } else { idle_ns }, &mut self.ready)?;
        for token in &self.ready {
            match token {
                Token::Listener => self.stub.accept(&self.poller)?,
                Token::Worker(number) => {
                    let now = self.clock.now().0;
                    self.stub.serve(*number, now, &mut self.scratch)?;
                }
                Token::Client(number) => clients.push(*number),
            }
        }
        Ok(())
    }
}

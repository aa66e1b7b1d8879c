//! The one thread of the load's core: clients and workers in one loop.

use crate::poll::{Poller, Token};
use crate::stub::Stub;
use forebay_base::Clock;
use std::io;
use std::time::Duration;

/// Waking from sleep may take this long; what is due sooner is waited for awake.
const AWAKE_BEFORE_DUE_NS: u64 = 80_000;
/// The longest sleep.
const IDLE_NS_MAX: u64 = 100_000_000;
const SCRATCH_BYTES: usize = 256 * 1024;

/// Load and workers share this.
pub struct Rig {
    pub poller: Poller,
    pub stub: Stub,
    pub scratch: Vec<u8>,
    pub clock: Clock,
    ready: Vec<Token>,
}

impl Rig {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            stub: Stub::new(),
            scratch: vec![0; SCRATCH_BYTES],
            clock: Clock::start(),
            ready: Vec::new(),
        })
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    /// Serves the workers for that long.
    ///
    /// # Errors
    /// As the kernel reports them.
    pub fn pause(&mut self, time: Duration) -> io::Result<()> {
        let end_ns = self.now_ns() + u64::try_from(time.as_nanos()).map_err(io::Error::other)?;
        while self.now_ns() < end_ns {
            self.turn(false, end_ns, &mut Vec::new())?;
        }
        Ok(())
    }

    /// One turn: sends due events, sleeps if `may_sleep`, at most until `due_ns`, serves the
    /// workers. Appends the numbers of clients that are ready. True if there was anything to do.
    pub fn turn(&mut self, awake: bool, due_ns: u64, clients: &mut Vec<u32>) -> io::Result<bool> {
        let now = self.now_ns();
        let has_sent = self.stub.emit_due(&self.poller, now)?;
        let due_ns = self.stub.next_due_ns().map_or(due_ns, |event| event.min(due_ns));
        let idle_ns = due_ns.saturating_sub(now).saturating_sub(AWAKE_BEFORE_DUE_NS);
        self.ready.clear();
        self.poller.wait(if awake { 0 } else { idle_ns.min(IDLE_NS_MAX) }, &mut self.ready)?;
        for at in 0..self.ready.len() {
            match self.ready[at] {
                Token::Listener => self.stub.accept(&self.poller)?,
                Token::Worker(number) => {
                    let now = self.now_ns();
                    self.stub.serve(&self.poller, number, now, &mut self.scratch);
                }
                Token::Client(number) => clients.push(number),
            }
        }
        Ok(has_sent || !self.ready.is_empty())
    }
}

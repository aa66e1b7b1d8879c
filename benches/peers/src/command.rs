//! What `tools/peers` asks for.

use forebay_bench_rig::{Poller, Rig, Token};
use serde::Deserialize;
use std::io;
use std::os::fd::AsFd;

/// Number of the input among the clients.
const INBOX: u32 = u32::MAX;
/// A longer line is no command.
const LINE_BYTES_MAX: usize = 64 * 1024;
const READ_BYTES: usize = 4_096;

/// One line of the input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Workers listen on these ports.
    Listen {
        ports: Vec<u16>,
    },
    Run(Plan),
}

/// When requests leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// Each connection sends when its answer is complete.
    Closed,
    /// At a fixed rate that waits for nothing.
    Open,
    /// Each prompt of the pool once; the answers may say anything.
    Fill,
}

/// One run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) pace: Pace,
    pub(crate) port: u16,
    pub(crate) connections: u32,
    /// Bytes of each body.
    pub(crate) bytes: usize,
    /// Different prompts, sent in turn.
    pub(crate) prompts: usize,
    /// Each request differs from its middle on.
    #[serde(default)]
    pub(crate) distinct: bool,
    /// Answers are streams of so many events, one each `interval_us`. 0: one JSON body.
    #[serde(default)]
    pub(crate) events: u32,
    #[serde(default)]
    pub(crate) interval_us: u64,
    /// Requests per second of an open loop.
    #[serde(default)]
    pub(crate) rate: u64,
    #[serde(default)]
    pub(crate) warm_ms: u64,
    #[serde(default)]
    pub(crate) run_ms: u64,
    /// Sleeps where it could look again and again, while answers are awaited.
    #[serde(default)]
    pub(crate) asleep: bool,
    /// Processes of the router.
    #[serde(default)]
    pub(crate) watch: Vec<u32>,
    /// Other processes of the comparison.
    #[serde(default)]
    pub(crate) own: Vec<u32>,
}

/// The input of the program.
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Inbox {
    pub(crate) fn open(poller: &Poller) -> io::Result<Self> {
        poller.add(io::stdin().as_fd(), Token::Client(INBOX))?;
        Ok(Self { bytes: Vec::new(), has_ended: false })
    }

    /// Serves the workers until there is a command; `None` at the end of the input.
    pub(crate) fn next_line(&mut self, rig: &mut Rig) -> io::Result<Option<Vec<u8>>> {
        let mut ready = Vec::new();
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.bytes) {
                let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.has_ended {
                return Ok(None);
            }
            ready.clear();
            rig.turn(false, u64::MAX, &mut ready)?;
            if ready.contains(&INBOX) {
                self.read()?;
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut part = [0; READ_BYTES];
        let count = rustix::io::read(io::stdin(), &mut part)?;
        self.has_ended = count == 0;
        self.bytes.extend_from_slice(&part[..count]);
        if self.bytes.len() > LINE_BYTES_MAX {
            return Err(io::Error::other("a command of over 64 KiB"));
        }
        Ok(())
    }
}

//! The side of the running process: a thread that waits for a new one.

use super::place::{BoundPlace, trusted};
use super::taken::UPGRADE_MAX;
use super::wire::{hear, say, send_files};
use forebay_base::{Clock, NanosSinceStart};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

/// For what a peer asks for, which it knows when it connects. Others wait meanwhile.
const FIRST_LINE_MAX: Duration = Duration::from_secs(1);
/// For what a peer says at once.
const LINE_MAX: Duration = Duration::from_secs(5);
/// In which the process writes its index. Shorter than the time in which it is waited for.
const INDEX_MAX: Duration = Duration::from_secs(50);
/// Between two looks at a process that was started.
const CHILD_TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What the process is asked.
#[derive(Debug)]
pub enum HostCall {
    /// For the models of its workers, in a file.
    Models(SyncSender<Option<File>>),
    /// For its index, in a file; `None` if there is none.
    Index(SyncSender<Option<File>>),
    /// Whether it gives its sockets away. From an answer of true on, another process may accept
    /// from them.
    Sockets(SyncSender<bool>),
    /// A process that got the sockets is gone without having served.
    Returned,
    /// Another process serves: drain. True if that was done.
    Serves(Pid, SyncSender<bool>),
}

/// How the process was started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file, which may be another one by now.
    pub path: PathBuf,
    /// What was said after its name.
    pub arguments: Vec<OsString>,
}

/// What a process hands over, and how it is asked.
pub struct HostSetup {
    /// Everything that it listens on.
    pub sockets: Arc<[OwnedFd]>,
    /// How it was started.
    pub program: Program,
    /// The clock of the process.
    pub clock: Clock,
    /// Asks the process; false if it does not listen any more.
    pub call: Box<dyn Fn(HostCall) -> bool + Send>,
}

/// A process that can be taken over. Dropping it ends that.
#[derive(Debug)]
pub struct HandoverHost(Arc<UnixListener>);

impl HandoverHost {
    /// Waits for others from now on.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(place: BoundPlace, setup: HostSetup) -> io::Result<Self> {
        let listener = Arc::new(place.0);
        let waiting = HostThread { listener: Arc::clone(&listener), upgrade: None, setup };
        thread::Builder::new().name("handover".into()).spawn(move || waiting.run())?;
        Ok(Self(listener))
    }
}

impl Drop for HandoverHost {
    fn drop(&mut self) {
        // Wakes the thread, which sees that nobody can come any more.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

/// Who asked for a new process, and the process.
struct Upgrade {
    asker: UnixStream,
    child: Child,
    until: NanosSinceStart,
}

/// The process that takes over.
struct Taker {
    stream: UnixStream,
    pid: Pid,
}

struct HostThread {
    listener: Arc<UnixListener>,
    upgrade: Option<Upgrade>,
    setup: HostSetup,
}

impl HostThread {
    /// Until the process is taken over, or ends.
    fn run(mut self) {
        loop {
            let tick = self.upgrade.is_some().then_some(&CHILD_TICK);
            let mut looked = [PollFd::new(&*self.listener, PollFlags::IN)];
            let _ = poll(&mut looked, tick);
            if looked.iter().any(|one| one.revents().contains(PollFlags::HUP)) {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => match self.serve(stream) {
                    Ok(Some(taker)) => return self.taken_over(&taker),
                    Ok(None) => {}
                    Err(error) => info!(%error, "an upgrade was given up; this process goes on"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            self.look_after_child();
        }
    }

    /// Hears one peer; returns the process that takes over.
    fn serve(&mut self, stream: UnixStream) -> io::Result<Option<Taker>> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(LINE_MAX))?;
        let Some(peer) = trusted(&stream)? else { return Ok(None) };
        match hear(&stream, FIRST_LINE_MAX)?.as_str() {
            "sockets" => self.hand_over(stream, peer),
            "models" => self.send_models(&stream).map(|()| None),
            "upgrade" => self.begin_upgrade(stream).map(|()| None),
            _ => Ok(None),
        }
    }

    fn send_models(&self, stream: &UnixStream) -> io::Result<()> {
        let models = self.ask(LINE_MAX, HostCall::Models).flatten();
        let models: Vec<_> = models.iter().map(AsFd::as_fd).collect();
        say(stream, &models.len().to_string())?;
        send_files(stream, &models)
    }

    fn hand_over(&self, taker: UnixStream, peer: Pid) -> io::Result<Option<Taker>> {
        if self.ask(LINE_MAX, HostCall::Sockets) != Some(true) {
            return say(&taker, "drains").map(|()| None);
        }
        let given = self.give(taker, peer);
        if given.as_ref().is_err_and(is_gone) {
            (self.setup.call)(HostCall::Returned);
        }
        given
    }

    fn give(&self, taker: UnixStream, peer: Pid) -> io::Result<Option<Taker>> {
        let stream = &taker;
        info!(process = peer.as_raw_nonzero().get(), "a new process takes over");
        let sockets: Vec<_> = self.setup.sockets.iter().map(AsFd::as_fd).collect();
        say(stream, &sockets.len().to_string())?;
        send_files(stream, &sockets)?;
        let index = self.ask(INDEX_MAX, HostCall::Index).flatten();
        let index: Vec<_> = index.iter().map(AsFd::as_fd).collect();
        say(stream, &index.len().to_string())?;
        send_files(stream, &index)?;
        if hear(stream, UPGRADE_MAX)? != "serves" {
            return Ok(None);
        }
        let drains = self.ask(LINE_MAX, |answer| HostCall::Serves(peer, answer));
        Ok((drains == Some(true)).then_some(Taker { stream: taker, pid: peer }))
    }

    fn ask<A>(&self, patience: Duration, call: impl Fn(SyncSender<A>) -> HostCall) -> Option<A> {
        let (answer, answered) = sync_channel(1);
        if !(self.setup.call)(call(answer)) {
            return None;
        }
        answered.recv_timeout(patience).ok()
    }

    /// Starts the program; one that is under way goes on.
    fn begin_upgrade(&mut self, asker: UnixStream) -> io::Result<()> {
        if self.upgrade.is_some() {
            return say(&asker, "failed another upgrade is under way");
        }
        let Program { path, arguments } = &self.setup.program;
        let started = Command::new(path).args(arguments).stdin(Stdio::null()).spawn();
        match started {
            Ok(child) => {
                let until = self.setup.clock.now().plus(UPGRADE_MAX);
                self.upgrade = Some(Upgrade { asker, child, until });
                Ok(())
            }
            Err(error) => {
                say(&asker, &format!("failed {} cannot be started: {error}", path.display()))
            }
        }
    }

    fn look_after_child(&mut self) {
        let Some(Upgrade { asker, child, until }) = &mut self.upgrade else { return };
        let reason = match child.try_wait() {
            Ok(Some(status)) => format!("the new process ended ({status}); its log says why"),
            _ if self.setup.clock.now() >= *until => {
                let _ = child.kill().and_then(|()| child.wait());
                format!("the new process does not serve after {} s", UPGRADE_MAX.as_secs())
            }
            _ => return,
        };
        warn!(reason, "not upgraded; this process goes on");
        let _ = say(asker, &format!("failed {reason}"));
        self.upgrade = None;
    }

    /// The place is free before the new process hears that it may wait there.
    fn taken_over(self, taker: &Taker) {
        let Self { listener, upgrade, setup } = self;
        drop((listener, setup));
        let _ = say(&taker.stream, "drains");
        if let Some(Upgrade { asker, .. }) = upgrade {
            let _ = say(&asker, &format!("serves {}", taker.pid.as_raw_nonzero()));
        }
    }
}

/// The peer has ended, or has closed all that it was given.
fn is_gone(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

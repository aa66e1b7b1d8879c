//! The side of the running process: a thread that waits for a new process.

use super::address::{HandoverAddress, HandoverListener, OF_UPGRADE, trusted};
use super::takeover::UPGRADE_MAX;
use super::wire::{read_line, read_report, send_files, write_line, write_report};
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

/// Timeout of a peer's request. Short, because other peers wait meanwhile.
const FIRST_LINE_MAX: Duration = Duration::from_secs(1);
/// Timeout of a line that a peer sends without work.
const LINE_MAX: Duration = Duration::from_secs(5);
/// Timeout for writing the index, shorter than the new process waits for it.
const INDEX_MAX: Duration = Duration::from_secs(50);
/// Interval between two checks of a started process.
const CHILD_TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Calls from the handover thread to the control plane.
#[derive(Debug)]
pub enum HostCall {
    /// Requests the models of the workers, in a file.
    Models(SyncSender<Option<File>>),
    /// Requests the index, in a file; `None` without an index.
    Index(SyncSender<Option<File>>),
    /// Requests permission to send the sockets. After an answer of true, another process may accept
    /// connections from them.
    Sockets(SyncSender<bool>),
    /// A process that received the sockets has ended before it served.
    Returned,
    /// Another process serves: drain. The answer is true if the drain has begun.
    Serves(Pid, SyncSender<bool>),
}

/// Command line of the process.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable, which may have been replaced since the start.
    pub path: PathBuf,
    /// Arguments after the name of the program.
    pub arguments: Vec<OsString>,
}

/// Settings of a [`HandoverHost`].
pub struct HostSetup {
    /// All listening sockets of the process.
    pub sockets: Arc<[OwnedFd]>,
    pub program: Program,
    pub clock: Clock,
    /// Calls the control plane; false if the control plane has stopped.
    pub call: Box<dyn Fn(HostCall) -> bool + Send>,
}

/// Accepts takeovers of this process until dropped.
#[derive(Debug)]
pub struct HandoverHost(Arc<UnixListener>);

impl HandoverHost {
    /// Starts the thread that waits for new processes.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(place: HandoverListener, setup: HostSetup) -> io::Result<Self> {
        let listener = Arc::new(place.0);
        let waiting = HostThread { listener: Arc::clone(&listener), upgrade: None, setup };
        thread::Builder::new().name("handover".into()).spawn(move || waiting.run())?;
        Ok(Self(listener))
    }
}

impl Drop for HandoverHost {
    fn drop(&mut self) {
        // Wakes the thread, which then sees the hang-up and ends.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

/// A started process, and the connection of the command that requested it.
struct Upgrade {
    requester: UnixStream,
    child: Child,
    until: NanosSinceStart,
    /// Why the start of the child failed, as the child reports; empty without a report.
    report: String,
}

/// The new process that takes over.
struct Successor {
    stream: UnixStream,
    pid: Pid,
}

struct HostThread {
    listener: Arc<UnixListener>,
    upgrade: Option<Upgrade>,
    setup: HostSetup,
}

impl HostThread {
    /// Runs until another process has taken over, or this process ends.
    fn run(mut self) {
        loop {
            let tick = self.upgrade.is_some().then_some(&CHILD_TICK);
            let mut polled = [PollFd::new(&*self.listener, PollFlags::IN)];
            let _ = poll(&mut polled, tick);
            if polled.iter().any(|fd| fd.revents().contains(PollFlags::HUP)) {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => match self.serve(stream) {
                    Ok(Some(successor)) => return self.taken_over(&successor),
                    Ok(None) => {}
                    Err(error) => info!(%error, "an upgrade was given up; this process goes on"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            self.check_child();
        }
    }

    /// Serves a request; returns the peer if it takes over.
    fn serve(&mut self, stream: UnixStream) -> io::Result<Option<Successor>> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(LINE_MAX))?;
        let Some(peer) = trusted(&stream)? else { return Ok(None) };
        match read_line(&stream, FIRST_LINE_MAX)?.as_str() {
            "sockets" => self.hand_over(stream, peer),
            "models" => self.send_models(&stream).map(|()| None),
            "upgrade" => self.begin_upgrade(stream).map(|()| None),
            "failed" => self.take_report(&stream).map(|()| None),
            _ => Ok(None),
        }
    }

    fn send_models(&self, stream: &UnixStream) -> io::Result<()> {
        let models = self.ask(LINE_MAX, HostCall::Models).flatten();
        let models: Vec<_> = models.iter().map(AsFd::as_fd).collect();
        write_line(stream, &models.len().to_string())?;
        send_files(stream, &models)
    }

    fn hand_over(&self, successor: UnixStream, peer: Pid) -> io::Result<Option<Successor>> {
        if self.ask(LINE_MAX, HostCall::Sockets) != Some(true) {
            return write_line(&successor, "drains").map(|()| None);
        }
        let given = self.give(successor, peer);
        if given.as_ref().is_err_and(is_gone) {
            (self.setup.call)(HostCall::Returned);
        }
        given
    }

    fn give(&self, successor: UnixStream, peer: Pid) -> io::Result<Option<Successor>> {
        let stream = &successor;
        let process = peer.as_raw_nonzero().get();
        if self.upgrade.is_some() {
            info!(process, "a new process takes over");
        } else {
            warn!(process, "a process that no upgrade has started takes over: this one drains");
        }
        let sockets: Vec<_> = self.setup.sockets.iter().map(AsFd::as_fd).collect();
        write_line(stream, &sockets.len().to_string())?;
        send_files(stream, &sockets)?;
        let index = self.ask(INDEX_MAX, HostCall::Index).flatten();
        let index: Vec<_> = index.iter().map(AsFd::as_fd).collect();
        write_line(stream, &index.len().to_string())?;
        send_files(stream, &index)?;
        if read_line(stream, UPGRADE_MAX)? != "serves" {
            return Ok(None);
        }
        let drains = self.ask(LINE_MAX, |answer| HostCall::Serves(peer, answer));
        Ok((drains == Some(true)).then_some(Successor { stream: successor, pid: peer }))
    }

    fn ask<A>(&self, patience: Duration, call: impl Fn(SyncSender<A>) -> HostCall) -> Option<A> {
        let (answer, answered) = sync_channel(1);
        if !(self.setup.call)(call(answer)) {
            return None;
        }
        answered.recv_timeout(patience).ok()
    }

    /// Starts the program, unless another upgrade is in progress.
    fn begin_upgrade(&mut self, requester: UnixStream) -> io::Result<()> {
        if self.upgrade.is_some() {
            return write_line(&requester, "failed another upgrade is under way");
        }
        let Program { path, arguments } = &self.setup.program;
        let name = HandoverAddress::name_of(&self.listener).unwrap_or_default();
        let started =
            Command::new(path).args(arguments).env(OF_UPGRADE, name).stdin(Stdio::null()).spawn();
        match started {
            Ok(child) => {
                let until = self.setup.clock.now().plus(UPGRADE_MAX);
                self.upgrade = Some(Upgrade { requester, child, until, report: String::new() });
            }
            Err(error) => {
                let report = format!("{}: {error}", path.display());
                fail(&requester, "the program cannot be started", &report);
            }
        }
        Ok(())
    }

    /// Takes the report of a started process that ends. The process waits until its report is
    /// taken, so that the report comes before its end.
    fn take_report(&mut self, stream: &UnixStream) -> io::Result<()> {
        let report = read_report(stream, FIRST_LINE_MAX)?;
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.report = report;
        }
        Ok(())
    }

    fn check_child(&mut self) {
        let Some(Upgrade { requester, child, until, report }) = &mut self.upgrade else { return };
        let reason = match child.try_wait() {
            Ok(Some(status)) if report.is_empty() => {
                format!("the new process ended ({status}); its log says why")
            }
            Ok(Some(status)) => format!("the new process ended ({status})"),
            _ if self.setup.clock.now() >= *until => {
                let _ = child.kill().and_then(|()| child.wait());
                format!("the new process does not serve after {} s", UPGRADE_MAX.as_secs())
            }
            _ => return,
        };
        fail(requester, &reason, report);
        self.upgrade = None;
    }

    /// Ends the handover. Closes the listener before "drains" is written, so that the new process
    /// can bind the same name.
    fn taken_over(self, successor: &Successor) {
        let Self { listener, upgrade, setup } = self;
        drop((listener, setup));
        let _ = write_line(&successor.stream, "drains");
        if let Some(Upgrade { requester, .. }) = upgrade {
            let _ = write_line(&requester, &format!("serves {}", successor.pid.as_raw_nonzero()));
        }
    }
}

/// Ends an upgrade without a new process. The command may have ended.
fn fail(requester: &UnixStream, reason: &str, report: &str) {
    warn!(reason, "not upgraded; this process goes on");
    let line = write_line(requester, &format!("failed {reason}"));
    let _ = line.and_then(|()| write_report(requester, report));
}

/// True for errors after the peer has ended or closed the connection.
fn is_gone(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

//! The driver on io_uring: operations in flight, and their completions.
//!
//! A buffer that the kernel may read or write belongs to its operation until the last completion of
//! that operation, or, for a quiet send without a completion, until [`Uring::settle`]. This holds
//! even after the owner has gone.

use super::provided::ProvidedBuffers;
use super::readiness::Readiness;
use crate::BufferPool;
use crate::inflow::Inflow;
use crate::outflow::Outflow;
use forebay_base::limits::{
    COMPLETIONS_MAX, FIRST_READ_BYTES, PROVIDED_BUFFERS, READ_BYTES, SUBMISSIONS_MAX,
};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// The only group of provided buffers.
const GROUP: u16 = 0;
/// Entries of the ring of provided buffers, in the kernel's type.
#[expect(clippy::cast_possible_truncation, reason = "a constant: 32,768 is the kernel's limit")]
const ENTRIES: u16 = PROVIDED_BUFFERS as u16;
/// `user_data` of operations without a waiter; never a key.
const NO_WAITER: u64 = u64::MAX;
/// The kernel's name is `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;
/// `MSG_WAITALL`: part of the bytes is no success.
const WAIT_ALL: SendFlags = SendFlags::from_bits_retain(0x100);
/// Waits of 10 ms for cancelled operations at the end of a thread, before buffers are leaked.
const ENDING_WAITS_MAX: usize = 100;

/// An operation in flight.
enum Op {
    /// A single completion, or several: chunks of a socket.
    Receive { flow: Rc<RefCell<Inflow>>, fd: Rc<OwnedFd> },
    /// No completion if `is_quiet` and the socket takes all bytes at submission; else a single
    /// completion, or several until all bytes are sent.
    Send {
        flow: Rc<RefCell<Outflow>>,
        fd: Rc<OwnedFd>,
        bytes: Vec<u8>,
        sent_bytes: usize,
        is_quiet: bool,
    },
    /// Each completion is an edge.
    Watch { readiness: Rc<Readiness>, _fd: Rc<OwnedFd> },
}

/// The io_uring of a shard.
pub(crate) struct Uring {
    ring: IoUring,
    ops: Slab<Op>,
    provided: ProvidedBuffers,
    /// Submissions that found the queue full.
    unsubmitted: VecDeque<squeue::Entry>,
    /// Keys of quiet sends that [`Self::settle`] has not ended.
    posted: Vec<usize>,
    /// A task waits for the end of a quiet send, which brings no completion.
    is_post_awaited: bool,
    /// The pool was tight at the last dispatch: new receives take a single chunk.
    is_tight: bool,
    submission_count: u64,
}

/// Creates the ring of a thread.
fn create_ring() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    // The kernel runs completions when the thread asks for them (Linux 6.1).
    builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all();
    builder.setup_cqsize(completions()).build(SUBMISSIONS_MAX)
}

fn completions() -> u32 {
    u32::try_from(COMPLETIONS_MAX).unwrap_or(u32::MAX)
}

impl Uring {
    /// # Errors
    /// The kernel lacks an operation, or the process may not use it.
    pub(crate) fn new(pool: &BufferPool) -> io::Result<Self> {
        let ring = create_ring()?;
        let provided = ProvidedBuffers::new(pool);
        // SAFETY: the entries and the buffers that they name live as long as `provided`, which
        // outlives the ring: see `drop`.
        unsafe { ring.submitter().register_buf_ring(provided.address(), ENTRIES, GROUP) }?;
        Ok(Self {
            ring,
            ops: Slab::new(),
            provided,
            unsubmitted: VecDeque::new(),
            posted: Vec::new(),
            is_post_awaited: false,
            is_tight: false,
            submission_count: 0,
        })
    }

    /// True if a thread of this process would get a ring.
    pub(crate) fn is_allowed() -> bool {
        let Ok(ring) = create_ring() else { return false };
        let provided = ProvidedBuffers::empty();
        // SAFETY: the entries name no buffer, and live longer than the ring.
        let registered =
            unsafe { ring.submitter().register_buf_ring(provided.address(), ENTRIES, GROUP) };
        drop(ring);
        registered.is_ok()
    }

    /// Receives from a socket until cancelled or ended; a single chunk while too many wait, and
    /// only the first bytes if the rest `is_in_place`.
    pub(crate) fn receive(
        &mut self,
        fd: &Rc<OwnedFd>,
        flow: &Rc<RefCell<Inflow>>,
        is_in_place: bool,
    ) -> usize {
        let op = Op::Receive { flow: Rc::clone(flow), fd: Rc::clone(fd) };
        let key = self.ops.insert(op);
        let amount = match (is_in_place, self.is_tight) {
            (true, _) => Amount::Once(FIRST_READ_BYTES),
            (false, true) => Amount::Once(READ_BYTES),
            (false, false) => Amount::All,
        };
        self.push(receive_entry(fd, key, amount));
        key
    }

    /// Begins to send all of `bytes`. The end of a send without a stall brings no completion: see
    /// [`Self::settle`].
    pub(crate) fn send(&mut self, fd: &Rc<OwnedFd>, flow: &Rc<RefCell<Outflow>>, bytes: Vec<u8>) {
        let flow = Rc::clone(flow);
        let fd = Rc::clone(fd);
        let key = self.ops.insert(Op::Send { flow, fd, bytes, sent_bytes: 0, is_quiet: true });
        if let Some(entry) = self.ops.get(key).and_then(|op| send_entry(op, key)) {
            self.push(entry);
        }
        self.posted.push(key);
    }

    /// The next turn does not wait: a task needs the end of a send, and the end brings no
    /// completion.
    pub(crate) const fn await_posted(&mut self) {
        self.is_post_awaited = true;
    }

    /// Begins to report edges; only the first edge for writes.
    pub(crate) fn watch(
        &mut self,
        fd: &Rc<OwnedFd>,
        readiness: &Rc<Readiness>,
        interest: PollFlags,
    ) -> usize {
        let target = types::Fd(fd.as_raw_fd());
        let flags = u32::from(interest.bits());
        let op = Op::Watch { readiness: Rc::clone(readiness), _fd: Rc::clone(fd) };
        let key = self.ops.insert(op);
        let poll = opcode::PollAdd::new(target, flags).multi(interest == PollFlags::IN);
        self.push(poll.build().user_data(as_data(key)));
        key
    }

    /// True if sends of this turn are not submitted yet.
    pub(crate) const fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Submits without a wait, so that posted bytes precede a direct system call on their socket.
    pub(crate) fn submit_now(&mut self, pool: &BufferPool) -> io::Result<()> {
        self.turn(Some(Duration::ZERO), pool)
    }

    /// Cancels an operation; its last completion is still to come.
    pub(crate) fn cancel(&mut self, key: usize) {
        self.push(cancel_entry(key));
    }

    /// In order, even when the ring has room: keys are reused, and a cancellation must reach the
    /// kernel before the next operation with its key.
    fn push(&mut self, entry: squeue::Entry) {
        if !self.unsubmitted.is_empty() || !self.try_push(&entry) {
            self.unsubmitted.push_back(entry);
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: memory that the entry points to belongs to an operation in `ops` until its last
        // completion, or for a quiet send until `settle`, when the kernel has consumed the entry
        // and copied the bytes; or the memory is provided. Moves of `ops` do not move the bytes,
        // which are on the heap. The descriptor is open as long.
        let pushed = unsafe { self.ring.submission().push(entry) }.is_ok();
        self.submission_count += u64::from(pushed);
        pushed
    }

    /// Operations submitted to the kernel so far, or with the next turn.
    pub(crate) const fn submission_count(&self) -> u64 {
        self.submission_count
    }

    /// Submits operations, waits, and dispatches completions. `wait`: longest wait; `None`: until
    /// an operation has completed.
    pub(crate) fn turn(&mut self, wait: Option<Duration>, pool: &BufferPool) -> io::Result<()> {
        while let Some(entry) = self.unsubmitted.front().cloned()
            && self.try_push(&entry)
        {
            self.unsubmitted.pop_front();
        }
        let all_pushed = self.unsubmitted.is_empty();
        let may_wait = all_pushed && !self.is_post_awaited;
        let entered = self.enter(if may_wait { wait } else { Some(Duration::ZERO) });
        self.dispatch(pool);
        if all_pushed {
            self.settle(pool);
        }
        match entered {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends the quiet sends: an operation that the kernel has consumed without a completion has
    /// sent all its bytes. The kernel attempts a send at its submission, and reports a stall in the
    /// same call; only a full completion queue delays the report.
    fn settle(&mut self, pool: &BufferPool) {
        let submission = self.ring.submission();
        if !submission.is_empty() || submission.cq_overflow() {
            return;
        }
        drop(submission);
        self.is_post_awaited = false;
        for key in self.posted.drain(..) {
            if !matches!(self.ops.get(key), Some(Op::Send { is_quiet: true, .. })) {
                continue;
            }
            if let Some(Op::Send { flow, bytes, .. }) = self.ops.try_remove(key) {
                pool.give(bytes);
                flow.borrow_mut().settled();
            }
        }
    }

    fn enter(&mut self, wait: Option<Duration>) -> io::Result<usize> {
        match wait {
            Some(Duration::ZERO) => {
                let count = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
                // SAFETY: no argument is passed, and the count is the queue's length.
                unsafe { self.ring.submitter().enter::<u64>(count, 0, GET_EVENTS, None) }
            }
            Some(wait) => {
                let timeout = types::Timespec::from(wait);
                let args = types::SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(1, &args)
            }
            None => self.ring.submitter().submit_and_wait(1),
        }
    }

    fn dispatch(&mut self, pool: &BufferPool) {
        let Self { ring, ops, provided, unsubmitted, is_tight, .. } = self;
        for completion in ring.completion() {
            let Ok(key) = usize::try_from(completion.user_data()) else { continue };
            let Some(op) = ops.get_mut(key) else { continue };
            let is_last = !cqueue::more(completion.flags());
            let is_over = match op {
                Op::Receive { flow, fd } => {
                    let chunk = chunk(&completion, provided, pool);
                    let mut flow = flow.borrow_mut();
                    if flow.receive(chunk, pool) {
                        unsubmitted.push_back(cancel_entry(key));
                    }
                    // Resubmits at once: in the idle pool no task would notice that the receive has
                    // ended.
                    let goes_on = is_last && flow.ended(pool);
                    if goes_on {
                        unsubmitted.push_back(receive_entry(fd, key, Amount::All));
                    }
                    is_last && !goes_on
                }
                Op::Send { flow, bytes, sent_bytes, is_quiet, .. } => {
                    let was_quiet = std::mem::replace(is_quiet, false);
                    let sent = sent(&completion, was_quiet);
                    if flow.borrow_mut().sent(key, sent, bytes, sent_bytes) {
                        true
                    } else {
                        unsubmitted.extend(send_entry(op, key));
                        false
                    }
                }
                Op::Watch { readiness, .. } => {
                    if is_last {
                        readiness.end();
                    }
                    // A source polls a single direction, and never reads the flag of the other.
                    readiness.set(true, true);
                    is_last
                }
            };
            if is_over {
                let _ended = ops.try_remove(key);
            }
        }
        provided.publish();
        if pool.is_tight() && !*is_tight {
            let receives = ops.iter().filter(|(_, op)| matches!(op, Op::Receive { .. }));
            unsubmitted.extend(receives.map(|(key, _)| cancel_entry(key)));
        }
        *is_tight = pool.is_tight();
    }
}

impl Drop for Uring {
    /// Waits until the kernel has released all buffers. Buffers that it does not release are
    /// leaked.
    fn drop(&mut self) {
        let pool = BufferPool::default();
        let keys: Vec<usize> = self.ops.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.cancel(key);
        }
        let mut waits = 0;
        while !self.ops.is_empty() && waits < ENDING_WAITS_MAX {
            let before = self.ops.len();
            if self.turn(Some(Duration::from_millis(10)), &pool).is_err() {
                break;
            }
            waits = if self.ops.len() < before { 0 } else { waits + 1 };
        }
        let is_unregistered = self.ring.submitter().unregister_buf_ring(GROUP).is_ok();
        if !self.ops.is_empty() || !is_unregistered {
            let ops = std::mem::take(&mut self.ops);
            let provided = std::mem::replace(&mut self.provided, ProvidedBuffers::empty());
            Box::leak(Box::new((ops, provided)));
        }
    }
}

/// The result of a receive completion: a chunk; `None` after a cancellation or for lack of buffers;
/// or the end.
fn chunk(
    completion: &cqueue::Entry,
    provided: &mut ProvidedBuffers,
    pool: &BufferPool,
) -> io::Result<Option<Vec<u8>>> {
    let received = as_result(completion.result());
    let bytes = received.as_ref().map_or(0, |bytes| *bytes);
    let id = cqueue::buffer_select(completion.flags());
    let chunk = id.map(|id| provided.receive(usize::from(id), bytes, pool));
    match received {
        Ok(_) => Ok(Some(chunk.unwrap_or_default())),
        Err(error) if is_interruption(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of a send completion. A quiet send without room in its socket has sent nothing.
fn sent(completion: &cqueue::Entry, was_quiet: bool) -> io::Result<usize> {
    match as_result(completion.result()) {
        Err(error) if was_quiet && error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// True if the error is about the operation, not the socket.
fn is_interruption(error: &io::Error) -> bool {
    matches!(errno_of(error), Some(Errno::CANCELED | Errno::NOBUFS | Errno::INTR | Errno::AGAIN))
}

/// True if the system call may be retried.
fn is_passing(error: &io::Error) -> bool {
    matches!(errno_of(error), Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN))
}

fn errno_of(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn as_result(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
}

fn as_data(key: usize) -> u64 {
    u64::try_from(key).unwrap_or(NO_WAITER)
}

fn cancel_entry(key: usize) -> squeue::Entry {
    let cancel = opcode::AsyncCancel::new(as_data(key)).build();
    cancel.flags(squeue::Flags::SKIP_SUCCESS).user_data(NO_WAITER)
}

/// Amount that a receive operation may bring.
#[derive(Clone, Copy)]
enum Amount {
    /// Chunk after chunk, until cancelled.
    All,
    /// A single chunk with at most that many bytes.
    Once(usize),
}

fn receive_entry(fd: &OwnedFd, key: usize, amount: Amount) -> squeue::Entry {
    let target = types::Fd(fd.as_raw_fd());
    let entry = match amount {
        Amount::All => opcode::RecvMulti::new(target, GROUP).build(),
        Amount::Once(bytes) => {
            let length = u32::try_from(bytes).unwrap_or(u32::MAX);
            let receive = opcode::Recv::new(target, std::ptr::null_mut(), length).buf_group(GROUP);
            receive.build().flags(squeue::Flags::BUFFER_SELECT)
        }
    };
    entry.user_data(as_data(key))
}

/// A send of the rest of the bytes. A quiet send is attempted once, at its submission, and is
/// reported only if the socket has not taken all.
fn send_entry(op: &Op, key: usize) -> Option<squeue::Entry> {
    let Op::Send { fd, bytes, sent_bytes, is_quiet, .. } = op else { return None };
    let rest = bytes.get(*sent_bytes..).unwrap_or_default();
    let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    let send = opcode::Send::new(types::Fd(fd.as_raw_fd()), rest.as_ptr(), length);
    let mut flags = SendFlags::NOSIGNAL | WAIT_ALL;
    flags.set(SendFlags::DONTWAIT, *is_quiet);
    let send = send.flags(i32::try_from(flags.bits()).unwrap_or(0)).build();
    let send = if *is_quiet { send.flags(squeue::Flags::SKIP_SUCCESS) } else { send };
    Some(send.user_data(as_data(key)))
}

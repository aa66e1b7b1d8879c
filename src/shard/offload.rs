//! Work that takes time in proportion to a request, done on a thread beside the shard: large bodies
//! are scanned, rendered and matched there, and chat templates run nowhere else on the data plane.
//! Requests wait for it as they wait for an engine; the shard goes on meanwhile.
//!
//! Each shard has one such thread, not pinned, with a lower priority. Small requests overtake large
//! ones. A panic there ends one job. Limits: `OFFLOADED_MAX` jobs, `OFFLOAD_WAIT_MAX` for each.

use crate::base::limits::{INLINE_BODY_BYTES_MAX, OFFLOAD_WAIT_MAX, OFFLOADED_MAX, RANKS_MAX};
use crate::base::{Clock, NanosSinceStart, ShardIndex};
use crate::config::Config;
use crate::index::IndexReader;
use crate::ingress::Conn;
use crate::mailbox::Ticket;
use crate::parse::{Reason, Refusal};
use crate::queue::{Desk, NoSeat};
use crate::request::{Stop, in_flight_full};
use crate::ring::{Bell, Consumer, Producer, spsc};
use crate::select::Matched;
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::thread::Thread;

/// Jobs of at most so many bytes overtake longer ones.
const QUICK_BYTES_MAX: usize = 4 * INLINE_BODY_BYTES_MAX;
/// So many of them in a row.
const QUICK_RUN_MAX: usize = 16;
/// Where the thread competes with a shard for a core, the shard gets three times as much.
const NICE: i32 = 5;

/// What jobs work with.
pub(super) struct Tools {
    pub(super) matched: Matched,
    pub(super) index: IndexReader,
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    /// When the job that runs was posted.
    pub(super) posted_at: NanosSinceStart,
}

type Outcome = Box<dyn Any + Send>;

struct Job {
    /// Who waits for the outcome.
    ticket: Option<Ticket>,
    bytes: usize,
    posted_at: NanosSinceStart,
    run: Box<dyn FnOnce(&mut Tools) -> Outcome + Send>,
}

/// What came of a job.
pub(super) enum Reply {
    Done(Outcome),
    /// It panicked.
    Failed,
}

impl From<NoSeat> for Reply {
    fn from(_: NoSeat) -> Self {
        Self::Failed
    }
}

/// The shard's side.
pub(super) struct Offload {
    /// `None` once the shard ends.
    jobs: RefCell<Option<Producer<Job>>>,
    seats: RefCell<Desk<Reply>>,
    thread: Thread,
    clock: Clock,
}

/// Outcomes on their way back to the inbox.
pub(super) type Replies = Consumer<(Ticket, Reply)>;

impl Offload {
    /// Starts the thread. Outcomes come with a ring of the bell.
    pub(super) fn start(
        shard: ShardIndex,
        bell: &Arc<Bell>,
        (config, index, clock): (&Arc<Config>, &IndexReader, Clock),
    ) -> io::Result<(Self, Replies)> {
        // Beside jobs that are waited for there are buffers to be freed.
        let (jobs, posted) = spsc(2 * OFFLOADED_MAX);
        let (replies, outcomes) = spsc(OFFLOADED_MAX);
        let (bell, config, index) = (Arc::clone(bell), Arc::clone(config), index.clone());
        let posted_at = NanosSinceStart::default();
        let tools =
            move || Tools { matched: Matched::new(RANKS_MAX), index, config, clock, posted_at };
        let named = std::thread::Builder::new().name(format!("offload-{}", shard.0));
        let thread = named.spawn(move || work(posted, replies, &bell, tools()))?;
        let thread = thread.thread().clone();
        let jobs = RefCell::new(Some(jobs));
        Ok((Self { jobs, seats: RefCell::new(Desk::new(shard)), thread, clock }, outcomes))
    }

    /// Hands an outcome to who waits for it.
    pub(super) fn deliver(&self, ticket: Ticket, reply: Reply) {
        let reply = self.seats.borrow_mut().take_or_return(ticket, reply);
        if let Some(Reply::Done(outcome)) = reply {
            // Its client has left; what it brings back may be large.
            self.free(usize::MAX, outcome);
        }
    }

    /// Drops a value of that size where dropping takes no time of the shard's: the kernel needs a
    /// millisecond to take 32 MiB back.
    pub(super) fn free(&self, bytes: usize, value: impl Send + 'static) {
        if bytes > INLINE_BODY_BYTES_MAX {
            self.post(None, bytes, move |_| drop(value));
        }
    }

    /// The shard ends, and the thread with it.
    pub(super) fn close(&self) {
        drop(self.jobs.borrow_mut().take());
        self.thread.unpark();
    }

    fn post<T: Send + 'static>(
        &self,
        ticket: Option<Ticket>,
        bytes: usize,
        work: impl FnOnce(&mut Tools) -> T + Send + 'static,
    ) -> bool {
        let run = Box::new(|tools: &mut Tools| -> Outcome { Box::new(work(tools)) });
        let job = Job { ticket, bytes, posted_at: self.clock.now(), run };
        let posted = self.jobs.borrow_mut().as_mut().is_some_and(|jobs| jobs.push(job).is_ok());
        self.thread.unpark();
        posted
    }
}

/// A seat of a request that waits.
struct Seat<'a> {
    offload: &'a Offload,
    ticket: Ticket,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.offload.seats.borrow_mut().close(self.ticket);
    }
}

/// Runs a job about a request of that size and waits for its outcome, or for the client to leave.
/// What the job was given is lost when this fails.
///
/// # Errors
/// How the request ends: its client left, the thread is too far behind, or the job panicked.
pub(super) async fn run<T: Send + 'static>(
    offload: &Offload,
    conn: &mut Conn,
    bytes: usize,
    work: impl FnOnce(&mut Tools) -> T + Send + 'static,
) -> Result<T, Stop> {
    let full = |()| Stop::Refused(in_flight_full());
    if offload.is_full() {
        return Err(full(()));
    }
    let ticket = offload.seats.borrow_mut().open();
    let seat = Seat { offload, ticket };
    if !offload.post(Some(ticket), bytes, work) {
        return Err(full(()));
    }
    conn.wait_at_most(OFFLOAD_WAIT_MAX);
    let waited = poll_fn(|cx| {
        if let Poll::Ready(reply) = offload.seats.borrow_mut().poll(seat.ticket, cx) {
            return Poll::Ready(Ok(reply));
        }
        if conn.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(Stop::ClientGone));
        }
        conn.poll_deadline(cx).map(|()| Err(full(())))
    });
    let outcome = match waited.await? {
        Reply::Done(outcome) => outcome.downcast::<T>().ok(),
        Reply::Failed => None,
    };
    let failed = || Stop::Refused(Refusal::new(Reason::Internal));
    outcome.map(|outcome| *outcome).ok_or_else(failed)
}

impl Offload {
    /// Are as many jobs waited for as may be?
    pub(super) fn is_full(&self) -> bool {
        self.seats.borrow().waiting() >= OFFLOADED_MAX
    }
}

/// Jobs that wait for their turn.
#[derive(Default)]
struct Lines {
    quick: VecDeque<Job>,
    large: VecDeque<Job>,
    quick_run: usize,
}

impl Lines {
    fn push(&mut self, job: Job) {
        let line = if job.bytes <= QUICK_BYTES_MAX { &mut self.quick } else { &mut self.large };
        line.push_back(job);
    }

    fn next(&mut self) -> Option<Job> {
        self.quick_run += 1;
        if self.quick_run <= QUICK_RUN_MAX
            && let Some(job) = self.quick.pop_front()
        {
            return Some(job);
        }
        self.quick_run = 0;
        self.large.pop_front().or_else(|| self.quick.pop_front())
    }
}

/// The thread.
fn work(
    mut posted: Consumer<Job>,
    mut replies: Producer<(Ticket, Reply)>,
    bell: &Bell,
    mut tools: Tools,
) {
    // Not allowed: then they share.
    let _ = rustix::process::nice(NICE);
    let mut lines = Lines::default();
    loop {
        while let Some(job) = posted.pop() {
            lines.push(job);
        }
        let Some(job) = lines.next() else {
            if posted.is_closed() {
                return;
            }
            // A job that was posted since has left a token, and this returns at once.
            std::thread::park();
            continue;
        };
        tools.posted_at = job.posted_at;
        let outcome = catch_unwind(AssertUnwindSafe(|| (job.run)(&mut tools)));
        if let Some(ticket) = job.ticket {
            // Has room: no more than that are waited for.
            let _ = replies.push((ticket, outcome.map_or(Reply::Failed, Reply::Done)));
            bell.ring();
        }
    }
}

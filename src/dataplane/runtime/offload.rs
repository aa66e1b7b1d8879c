//! Work proportional to a request's size, done on a thread beside the shard: large bodies are
//! scanned, rendered and matched there, and chat templates run nowhere else on the data plane.
//! Requests wait for it as they wait for an engine; the shard continues meanwhile.
//!
//! Each shard has such a thread, not pinned, with a lower priority. Small requests overtake large
//! requests. A panic there ends only its job. Limits: `OFFLOADED_MAX` jobs, `OFFLOAD_WAIT_MAX` for
//! each.
//!
//! A job may outlive its request: the client has disconnected, or has waited too long. It counts
//! among the jobs and its bytes among `limits.buffered_bytes_max` until the thread has finished
//! with it, and the thread drops it without running it.

use crate::ingress::Conn;
use ahash::AHashMap;
use forebay_base::limits::{
    FREED_HERE_BYTES_MAX, INLINE_BODY_BYTES_MAX, OFFLOAD_STUCK_AFTER, OFFLOAD_WAIT_MAX,
    OFFLOADED_MAX, RANKS_MAX,
};
use forebay_base::{Clock, NanosSinceStart, ShardIndex, ThreadName};
use forebay_board::admit::{HeldBytes, InFlight};
use forebay_index::IndexReader;
use forebay_mailbox::Ticket;
use forebay_prompt::parse::{Reason, Refusal};
use forebay_ring::{Bell, Consumer, Producer, spsc};
use forebay_router::queue::{NoWait, WaitTable};
use forebay_router::request::{Stop, in_flight_full};
use forebay_select::PromptOverlaps;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

/// Jobs of at most this size overtake longer jobs.
const QUICK_BYTES_MAX: usize = 4 * INLINE_BODY_BYTES_MAX;
/// Most quick jobs in a row.
const QUICK_RUN_MAX: usize = 16;
/// When the thread competes with a shard for a core, the shard gets three times as much.
const NICE: i32 = 5;

/// Resources of a job.
pub struct Tools {
    /// Working memory of an index walk.
    pub matched: PromptOverlaps,
    /// Reads the slices of all shards.
    pub index: IndexReader,
    /// The clock of the process.
    pub clock: Clock,
    /// When the running job was posted.
    pub posted_at: NanosSinceStart,
}

impl Tools {
    /// Tools with empty working memory.
    #[must_use]
    pub fn new(index: &IndexReader, clock: Clock) -> Self {
        Self {
            matched: PromptOverlaps::new(RANKS_MAX),
            index: index.clone(),
            clock,
            posted_at: NanosSinceStart::default(),
        }
    }
}

type Outcome = Box<dyn Any + Send>;

struct Job {
    /// Key of the waiting request; `None` for a value that is only dropped.
    ticket: Option<Ticket>,
    /// Dead once no request waits for the outcome.
    wanted: Weak<()>,
    bytes: usize,
    posted_at: NanosSinceStart,
    run: Box<dyn FnOnce(&mut Tools) -> Outcome + Send>,
}

/// Result of a job.
pub enum Reply {
    /// The job ran; contains its outcome.
    Done(Outcome),
    /// The job panicked, or no request waited for it.
    Failed,
}

impl From<NoWait> for Reply {
    fn from(_: NoWait) -> Self {
        Self::Failed
    }
}

/// The shard's handle of the thread.
pub struct Offload {
    /// `None` once the shard ends.
    jobs: RefCell<Option<Producer<Job>>>,
    seats: RefCell<WaitTable<Reply>>,
    /// Jobs that have not returned.
    out: RefCell<AHashMap<Ticket, Out>>,
    /// When a job last returned, or the first job was posted.
    moved_at: Cell<NanosSinceStart>,
    in_flight: Rc<InFlight>,
    thread: Thread,
    clock: Clock,
}

/// A job that has not returned.
struct Out {
    bytes: usize,
    /// Set once its request has ended.
    left: Option<HeldBytes>,
}

/// Outcomes for the inbox.
pub type Replies = Consumer<(Ticket, Reply)>;

impl Offload {
    /// Starts the thread. Outcomes come with a ring of the bell.
    pub fn start(
        shard: ShardIndex,
        bell: &Arc<Bell>,
        in_flight: &Rc<InFlight>,
        tools: Tools,
    ) -> io::Result<(Self, Replies)> {
        // Room for jobs with a waiting request, and as many buffers to free.
        let (jobs, posted) = spsc(2 * OFFLOADED_MAX);
        let (replies, outcomes) = spsc(OFFLOADED_MAX);
        let bell = Arc::clone(bell);
        let clock = tools.clock;
        let named = std::thread::Builder::new().name(ThreadName::Offload(shard).to_string());
        let thread = named.spawn(move || work(posted, replies, &bell, tools))?;
        let thread = thread.thread().clone();
        let offload = Self {
            jobs: RefCell::new(Some(jobs)),
            seats: RefCell::new(WaitTable::new(shard)),
            out: RefCell::default(),
            moved_at: Cell::new(clock.now()),
            in_flight: Rc::clone(in_flight),
            thread,
            clock,
        };
        Ok((offload, outcomes))
    }

    /// Delivers an outcome to the waiting request.
    pub fn deliver(&self, ticket: Ticket, reply: Reply) {
        self.moved_at.set(self.clock.now());
        let _left = self.out.borrow_mut().remove(&ticket);
        let reply = self.seats.borrow_mut().take_or_return(ticket, reply);
        if let Some(Reply::Done(outcome)) = reply {
            // The client has disconnected; the outcome may be large.
            self.free(usize::MAX, outcome);
        }
    }

    /// Drops a value of that size without blocking the shard: the kernel needs a millisecond to
    /// reclaim 32 MiB.
    pub fn free(&self, bytes: usize, value: impl Send + 'static) {
        if bytes > FREED_HERE_BYTES_MAX {
            self.post(None, bytes, move |_| drop(value));
        }
    }

    /// Number of jobs that have not returned.
    pub fn out_count(&self) -> usize {
        self.out.borrow().len()
    }

    /// True if there are jobs and none has returned for longer than any request waits.
    pub fn is_stuck(&self, now: NanosSinceStart) -> bool {
        self.out_count() > 0
            && Duration::from_nanos(now.since(self.moved_at.get())) > OFFLOAD_STUCK_AFTER
    }

    /// Ends the thread when the shard ends.
    pub fn close(&self) {
        drop(self.jobs.borrow_mut().take());
        self.thread.unpark();
    }

    fn post<T: Send + 'static>(
        &self,
        asked: Option<(Ticket, Weak<()>)>,
        bytes: usize,
        work: impl FnOnce(&mut Tools) -> T + Send + 'static,
    ) -> bool {
        let run = Box::new(|tools: &mut Tools| -> Outcome { Box::new(work(tools)) });
        let (ticket, wanted) = asked.unzip();
        let wanted = wanted.unwrap_or_default();
        let posted_at = self.clock.now();
        let job = Job { ticket, wanted, bytes, posted_at, run };
        let posted = self.jobs.borrow_mut().as_mut().is_some_and(|jobs| jobs.push(job).is_ok());
        self.thread.unpark();
        posted
    }
}

/// Seat of a waiting request, from the posted job to its outcome or to the end of the request.
struct OffloadSeat<'a> {
    offload: &'a Offload,
    ticket: Ticket,
    /// Dropped with the request, which the thread detects.
    _wanted: Arc<()>,
}

impl<'a> OffloadSeat<'a> {
    /// Posts a job. `None` at the limit.
    fn take<T: Send + 'static>(
        offload: &'a Offload,
        bytes: usize,
        work: impl FnOnce(&mut Tools) -> T + Send + 'static,
    ) -> Option<Self> {
        if offload.is_full() {
            return None;
        }
        let ticket = offload.seats.borrow_mut().open();
        let wanted = Arc::new(());
        let asked = (ticket, Arc::downgrade(&wanted));
        let seat = Self { offload, ticket, _wanted: wanted };
        if !offload.post(Some(asked), bytes, work) {
            return None;
        }
        if offload.out_count() == 0 {
            offload.moved_at.set(offload.clock.now());
        }
        offload.out.borrow_mut().insert(ticket, Out { bytes, left: None });
        Some(seat)
    }
}

impl Drop for OffloadSeat<'_> {
    fn drop(&mut self) {
        self.offload.seats.borrow_mut().close(self.ticket);
        if let Some(out) = self.offload.out.borrow_mut().get_mut(&self.ticket) {
            out.left = Some(self.offload.in_flight.hold(out.bytes));
        }
    }
}

/// Runs a job for a request of that size and waits for its outcome, or for the client to
/// disconnect. Values moved into the job are lost on failure.
///
/// # Errors
/// The end of the request: its client has disconnected, the thread is too far behind, or the job
/// panicked.
pub async fn offloaded<T: Send + 'static>(
    offload: &Offload,
    conn: &mut Conn,
    bytes: usize,
    work: impl FnOnce(&mut Tools) -> T + Send + 'static,
) -> Result<T, Stop> {
    let full = |()| Stop::Refused(in_flight_full());
    let seat = OffloadSeat::take(offload, bytes, work).ok_or_else(|| full(()))?;
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
    /// True if the limit of jobs is reached.
    pub fn is_full(&self) -> bool {
        self.out_count() >= OFFLOADED_MAX
    }
}

/// Jobs that wait for the thread.
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

/// The thread's loop, until the shard ends.
fn work(
    mut posted: Consumer<Job>,
    mut replies: Producer<(Ticket, Reply)>,
    bell: &Bell,
    mut tools: Tools,
) {
    // The system may forbid this (seccomp). Both threads then get equal shares of the core.
    let _ = rustix::process::nice(NICE);
    let mut lines = Lines::default();
    loop {
        while let Some(job) = posted.pop() {
            match job.ticket {
                Some(_) => lines.push(job),
                // Takes no time, and frees memory.
                None => drop(catch_unwind(AssertUnwindSafe(|| (job.run)(&mut tools)))),
            }
        }
        let Some(job) = lines.next() else {
            if posted.is_closed() {
                return;
            }
            // A job posted since then has left a token, so this returns at once.
            std::thread::park();
            continue;
        };
        let Job { ticket: Some(ticket), wanted, posted_at, run, .. } = job else { continue };
        let reply = if wanted.strong_count() == 0 {
            drop(run);
            Reply::Failed
        } else {
            tools.posted_at = posted_at;
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut tools)));
            outcome.map_or(Reply::Failed, Reply::Done)
        };
        // Has room: no more jobs than its capacity are in flight.
        let _ = replies.push((ticket, reply));
        bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wake_pair;
    use forebay_fleet::tenant::TenantPart;
    use forebay_index;
    use forebay_index::KeySeed;
    use std::sync::mpsc;

    /// Clients that leave cost no more memory than clients that stay: their jobs count until the
    /// thread has dropped them, and it drops them without running them.
    #[test]
    fn jobs_of_requests_that_have_ended_count_and_do_not_run() {
        let (wake, _source) = wake_pair().unwrap();
        let bell = Arc::new(Bell::new(wake));
        let (reader, _slices) = forebay_index::index(1, KeySeed(1), 1 << 20);
        let in_flight = Rc::new(InFlight::new(10, 100));
        let clock = Clock::start();
        let tools = Tools::new(&reader, clock);
        let (offload, mut replies) =
            Offload::start(ShardIndex(0), &bell, &in_flight, tools).unwrap();
        let (go_on, gate) = mpsc::channel::<()>();
        let (ran, runs) = mpsc::channel();
        let first = OffloadSeat::take(&offload, 60, move |_| gate.recv().is_ok()).unwrap();
        let left = |bytes| {
            let ran = ran.clone();
            drop(OffloadSeat::take(&offload, bytes, move |_| ran.send(bytes).is_ok()).unwrap());
        };
        left(30);
        left(20);
        assert_eq!(offload.out_count(), 3);
        let mut next = in_flight.admit(TenantPart::ONLY).unwrap();
        assert!(next.hold_body(51).is_err(), "50 bytes wait to be dropped");
        next.hold_body(50).unwrap();
        assert!(!offload.is_stuck(clock.now()));
        assert!(offload.is_stuck(clock.now().plus(2 * OFFLOAD_STUCK_AFTER)));
        go_on.send(()).unwrap();
        let mut back = 0;
        while back < 3 {
            let Some((ticket, reply)) = replies.pop() else {
                std::thread::yield_now();
                continue;
            };
            offload.deliver(ticket, reply);
            back += 1;
        }
        next.hold_body(100).unwrap();
        assert!(runs.try_recv().is_err(), "nobody waits for these");
        assert!(!offload.is_stuck(clock.now().plus(2 * OFFLOAD_STUCK_AFTER)));
        drop(first);
        next.hold_body(100).unwrap();
        let taken: Vec<_> =
            (0..OFFLOADED_MAX).map_while(|_| OffloadSeat::take(&offload, 0, |_| ())).collect();
        assert_eq!(taken.len(), OFFLOADED_MAX);
        assert!(OffloadSeat::take(&offload, 0, |_| ()).is_none(), "one more than may be");
        offload.close();
    }
}

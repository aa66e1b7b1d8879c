//! What the tasks of one thread share: the task table, the timers, the clock's last reading, the
//! buffers, and the driver.

use super::epoll::Epoll;
use super::tasks::{TaskId, Tasks};
use super::timers::Timers;
use super::uring::Uring;
use super::{BufferPool, IoCounts};
use forebay_base::{Clock, NanosSinceStart};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
}

/// The loop of one thread, as its tasks and sockets reach it.
pub(crate) struct Reactor {
    pub(crate) tasks: Tasks,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) buffers: Rc<BufferPool>,
    pub(crate) io: Backend,
    clock: Clock,
    /// Submissions aside: the ring counts its own.
    counts: Cell<IoCounts>,
    /// Read at most once a turn.
    now: Cell<Option<NanosSinceStart>>,
}

/// How this thread waits.
#[expect(clippy::large_enum_variant, reason = "one of a thread")]
pub(crate) enum Backend {
    /// For completions of io_uring.
    Uring(RefCell<Uring>),
    /// For readiness, by epoll.
    Epoll(RefCell<Epoll>),
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reactor").finish_non_exhaustive()
    }
}

impl Reactor {
    pub(crate) fn new(io: Backend, buffers: Rc<BufferPool>, clock: Clock) -> Self {
        let tasks = Tasks::default();
        let timers = RefCell::default();
        let counts = Cell::default();
        Self { tasks, timers, buffers, io, clock, counts, now: Cell::new(None) }
    }

    /// The time of this turn.
    pub(crate) fn now(&self) -> NanosSinceStart {
        if let Some(now) = self.now.get() {
            return now;
        }
        let now = self.clock.now();
        self.now.set(Some(now));
        now
    }

    /// Notes a system call.
    pub(crate) fn count(&self, count: impl FnOnce(&mut IoCounts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }

    /// What was asked of the kernel so far.
    pub(crate) fn counts(&self) -> IoCounts {
        let submissions = match &self.io {
            Backend::Uring(uring) => uring.borrow().submission_count(),
            Backend::Epoll(_) => 0,
        };
        IoCounts { submissions, ..self.counts.get() }
    }

    /// Hands the kernel what was asked for, waits if no task is due, and makes tasks due.
    pub(crate) fn turn(&self) -> io::Result<()> {
        let wait = if self.tasks.due_count() > 0 {
            Some(Duration::ZERO)
        } else {
            let next = self.timers.borrow().next();
            next.map(|at| Duration::from_nanos(at.since(self.clock.now())))
        };
        self.count(|counts| counts.waits += 1);
        match &self.io {
            Backend::Uring(uring) => uring.borrow_mut().turn(wait, &self.buffers)?,
            Backend::Epoll(epoll) => epoll.borrow_mut().turn(wait)?,
        }
        self.now.set(None);
        let mut timers = self.timers.borrow_mut();
        if timers.next().is_some() {
            timers.fire(self.now());
        }
        Ok(())
    }
}

/// That of this thread.
pub(crate) fn current() -> Option<Rc<Reactor>> {
    CURRENT.with(|current| current.borrow().clone())
}

pub(crate) fn with<T>(call: impl FnOnce(&Reactor) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(call)).ok().flatten()
}

/// Makes it that of this thread, or takes it away; returns the one before.
pub(crate) fn enter(reactor: Option<Rc<Reactor>>) -> Option<Rc<Reactor>> {
    CURRENT.with(|current| current.replace(reactor))
}

struct TaskWaker(TaskId);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        with(|reactor| reactor.tasks.wake(self.0));
    }
}

/// Wakes a task of this thread. Called on another thread it does nothing good.
pub(crate) fn waker(id: TaskId) -> Waker {
    Arc::new(TaskWaker(id)).into()
}

//! State shared by the tasks of a thread: the task table, the timers, the cached time, the buffers,
//! and the driver.

use super::BufferPool;
use super::IoCounts;
use super::drivers::epoll::Epoll;
use super::drivers::uring::Uring;
use super::tasks::{TaskId, Tasks};
use super::timers::Timers;
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

/// The loop's state, as tasks and sockets access it.
pub(crate) struct Reactor {
    pub(crate) tasks: Tasks,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) buffers: Rc<BufferPool>,
    pub(crate) io: Backend,
    clock: Clock,
    /// Counts without submissions: the ring counts its own.
    counts: Cell<IoCounts>,
    /// Time of this turn; read at most once a turn.
    now: Cell<Option<NanosSinceStart>>,
}

/// I/O backend of this thread.
#[expect(clippy::large_enum_variant, reason = "one of a thread")]
pub(crate) enum Backend {
    Uring(RefCell<Uring>),
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

    /// Counts a system call.
    pub(crate) fn count(&self, count: impl FnOnce(&mut IoCounts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }

    /// Counts so far, submissions included.
    pub(crate) fn counts(&self) -> IoCounts {
        let submissions = match &self.io {
            Backend::Uring(uring) => uring.borrow().submission_count(),
            Backend::Epoll(_) => 0,
        };
        IoCounts { submissions, ..self.counts.get() }
    }

    /// As `submit_alone` of the crate. An error that lasts ends the next turn.
    pub(crate) fn submit_alone(&self) {
        let has_posted = match &self.io {
            Backend::Uring(uring) => uring.borrow().has_posted(),
            Backend::Epoll(_) => false,
        };
        if has_posted && self.tasks.is_alone() {
            let _ = self.submit_now();
        }
    }

    /// Submits without a wait.
    pub(crate) fn submit_now(&self) -> io::Result<()> {
        let Backend::Uring(uring) = &self.io else { return Ok(()) };
        self.count(|counts| counts.sends += 1);
        uring.borrow_mut().submit_now(&self.buffers)
    }

    /// Submits operations, waits if no task is due, and makes tasks due.
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
        self.tasks.begin_turn();
        let mut timers = self.timers.borrow_mut();
        if timers.next().is_some() {
            timers.fire(self.now());
        }
        Ok(())
    }
}

/// The reactor of this thread.
pub(crate) fn current() -> Option<Rc<Reactor>> {
    CURRENT.with(|current| current.borrow().clone())
}

pub(crate) fn with<T>(call: impl FnOnce(&Reactor) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(call)).ok().flatten()
}

/// Sets or clears the reactor of this thread; returns the previous reactor.
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

/// Waker of a task. It works only on the task's thread.
pub(crate) fn waker(id: TaskId) -> Waker {
    Arc::new(TaskWaker(id)).into()
}

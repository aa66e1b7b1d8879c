//! The event loop of a thread.

use super::epoll::Epoll;
use super::uring::Uring;
use crate::BufferPool;
use crate::IoCounts;
use crate::reactor::{self, Backend, Reactor, waker};
use crate::tasks::{Task, TaskId, Tasks};
use crate::timer::Timer;
use forebay_base::{Clock, NanosSinceStart};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// I/O backend of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Waits for io_uring completions. Requires Linux 6.1.
    IoUring,
    /// Waits for epoll readiness, if io_uring is refused (e.g. by Docker's default seccomp profile
    /// or `kernel.io_uring_disabled`) or too old.
    Epoll,
}

impl Driver {
    /// Variable of the environment that chooses epoll (for tests).
    pub const VARIABLE: &str = "FOREBAY_DRIVER";
    /// The only value of [`Self::VARIABLE`] with an effect.
    pub const EPOLL: &str = "epoll";

    /// io_uring if this process may use it, unless epoll is chosen.
    #[must_use]
    pub fn detect() -> Self {
        if !Self::is_epoll_chosen() && Self::is_uring_allowed() {
            Self::IoUring
        } else {
            Self::Epoll
        }
    }

    /// May this process use io_uring, whatever is chosen?
    #[must_use]
    pub fn is_uring_allowed() -> bool {
        Uring::is_allowed()
    }

    /// `FOREBAY_DRIVER=epoll`: whether there is an io_uring is another question.
    #[must_use]
    pub fn is_epoll_chosen() -> bool {
        std::env::var_os(Self::VARIABLE).is_some_and(|driver| driver == Self::EPOLL)
    }

    /// Why the driver is epoll, and what to do; `None` for io_uring.
    #[must_use]
    pub fn epoll_reason(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::IoUring => None,
            Self::Epoll if Self::is_epoll_chosen() => Some((
                "FOREBAY_DRIVER=epoll asks for it",
                "unset FOREBAY_DRIVER, which is for tests",
            )),
            Self::Epoll => Some((
                "io_uring is not available",
                "use Linux 6.1 or later, and permit io_uring (seccomp profile, \
                 kernel.io_uring_disabled)",
            )),
        }
    }
}

/// Guard of a running loop: drop ends its tasks and restores the thread's previous reactor.
struct InLoop(Rc<Reactor>, Option<Rc<Reactor>>);

impl Drop for InLoop {
    fn drop(&mut self) {
        // Tasks own sockets, which own operations.
        loop {
            let tasks = self.0.tasks.take_all();
            if tasks.is_empty() {
                break;
            }
        }
        let _own = reactor::enter(self.1.take());
    }
}

/// Runs `main` to its end on this thread; its tasks end with it. The ring is created here: the best
/// flags tie it to the creating thread. If this thread gets no ring, `without_ring` receives the
/// error, and epoll is used.
///
/// # Errors
/// The driver cannot be created, or waiting fails.
pub fn block_on<F: Future>(
    driver: Driver,
    clock: Clock,
    without_ring: impl FnOnce(&io::Error),
    main: F,
) -> io::Result<F::Output> {
    let buffers = Rc::new(BufferPool::default());
    let ring = match driver {
        Driver::IoUring => Uring::new(&buffers).inspect_err(without_ring).ok(),
        Driver::Epoll => None,
    };
    let io = match ring {
        Some(ring) => Backend::Uring(RefCell::new(ring)),
        None => Backend::Epoll(RefCell::new(Epoll::new()?)),
    };
    let reactor = Rc::new(Reactor::new(io, buffers, clock));
    let before = reactor::enter(Some(Rc::clone(&reactor)));
    let _in_loop = InLoop(Rc::clone(&reactor), before);
    let mut main = pin!(main);
    let main_waker = waker(TaskId::MAIN);
    reactor.tasks.wake(TaskId::MAIN);
    loop {
        if reactor.tasks.take_main_due()
            && let Poll::Ready(output) = main.as_mut().poll(&mut Context::from_waker(&main_waker))
        {
            return Ok(output);
        }
        // Tasks that become due meanwhile wait until the sockets were served.
        for _ in 0..reactor.tasks.due_count() {
            let Some((id, task, waker)) = reactor.tasks.take_due() else { break };
            poll_task(&reactor.tasks, id, task, waker);
        }
        while let Some((id, task, waker)) = reactor.tasks.take_of_cohort() {
            poll_task(&reactor.tasks, id, task, waker);
        }
        reactor.turn()?;
    }
}

#[inline]
fn poll_task(tasks: &Tasks, id: TaskId, mut task: Task, waker: Waker) {
    match task.as_mut().poll(&mut Context::from_waker(&waker)) {
        Poll::Pending => tasks.put_back(id, task, waker),
        Poll::Ready(()) => {
            drop(task);
            tasks.end(id);
        }
    }
}

/// The end of a stage: the other due tasks of this turn come as far first. Each stage then runs for
/// all of them in sequence, with its code in the processor's cache (cohort scheduling). No system
/// call, and nothing at all for a task alone.
pub fn join_cohort() -> impl Future<Output = ()> {
    let mut has_joined = false;
    poll_fn(move |_| {
        let joins = !std::mem::replace(&mut has_joined, true)
            && reactor::with(|reactor| reactor.tasks.join_cohort()).unwrap_or(false);
        if joins { Poll::Pending } else { Poll::Ready(()) }
    })
}

/// Submits the sends of this turn now, if the calling task is its only task: what the task does
/// until the end of the turn then delays no peer. Costs a system call. In a turn of several tasks,
/// the end of the turn submits for all of them.
pub fn submit_alone() {
    reactor::with(Reactor::submit_alone);
}

/// Spawns a task on this thread. A panic of the task ends the thread.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    let spawned = reactor::with(|reactor| reactor.tasks.add(Box::pin(task), waker));
    debug_assert!(spawned.is_some(), "only within `block_on`");
}

/// The buffer pool of this thread.
#[must_use]
pub fn buffers() -> Rc<BufferPool> {
    reactor::current().map_or_else(Rc::default, |reactor| Rc::clone(&reactor.buffers))
}

/// I/O counts of this thread's loop; zero outside of [`block_on`].
#[must_use]
pub fn io_counts() -> IoCounts {
    reactor::with(Reactor::counts).unwrap_or_default()
}

/// The time of this turn of the thread's loop; `None` outside of [`block_on`].
#[must_use]
pub fn now() -> Option<NanosSinceStart> {
    reactor::with(Reactor::now)
}

/// Sleeps for a duration.
pub async fn sleep(time: Duration) {
    let Some(until) = now().map(|now| now.plus(time)) else { return };
    let mut timer = Timer::new();
    poll_fn(|cx| timer.poll_until(until, cx)).await;
}

/// Yields to other tasks and the sockets.
pub async fn end_turn() {
    let mut has_ended = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_ended, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

//! Load in both forms: at a fixed rate that waits for nothing, and so many at a time.

use crate::client::{Ask, Outcome, Pool};
use forebay::base::NanosSinceStart;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_local};

/// What is sent next: `number` counts from 0.
pub(crate) type Next = Rc<dyn Fn(u64) -> Planned>;

/// One request of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) ask: Ask,
    /// Who sends it; only a label.
    pub(crate) client: u8,
}

/// A request of a run and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) client: u8,
    pub(crate) outcome: Outcome,
}

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(1);

/// Sends `rate_per_s` for `time`, the pools in turn; returns when every request has its end.
pub(crate) async fn open_loop(
    pools: &[Rc<Pool>],
    next: &Next,
    rate_per_s: f64,
    time: Duration,
) -> Vec<Done> {
    let Some(first) = pools.first() else { return Vec::new() };
    let begun_ns = first.now_ns();
    let end_ns = begun_ns + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut random = fastrand::Rng::with_seed(7);
    let mut due = begun_ns as f64;
    let mut number = 0_u64;
    let mut tasks = JoinSet::new();
    loop {
        let now_ns = first.now_ns();
        while due <= now_ns.min(end_ns) as f64 {
            let turn = usize::try_from(number).unwrap_or(0) % pools.len();
            if let Some(pool) = pools.get(turn) {
                let pool = Rc::clone(pool);
                let planned = next(number);
                let due_ns = NanosSinceStart(begun_ns.max(whole(due)));
                tasks.spawn_local(async move {
                    let outcome = pool.ask(&planned.ask, due_ns).await;
                    Done { client: planned.client, outcome }
                });
            }
            number += 1;
            // Arrivals of many independent clients.
            due += -random.f64().max(1e-12).ln() * 1e9 / rate_per_s;
        }
        if now_ns >= end_ns {
            break;
        }
        tokio::time::sleep(TICK).await;
    }
    let mut done = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        done.extend(ended);
    }
    done
}

/// Keeps `at_once` requests going on each pool for `time`.
pub(crate) async fn closed_loop(
    pools: &[Rc<Pool>],
    next: &Next,
    at_once: usize,
    time: Duration,
) -> Vec<Done> {
    let number = Rc::new(Cell::new(0_u64));
    let done = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for pool in pools {
        let end_ns = pool.now_ns() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..at_once {
            let pool = Rc::clone(pool);
            let next = Rc::clone(next);
            let number = Rc::clone(&number);
            let done = Rc::clone(&done);
            tasks.push(spawn_local(async move {
                while pool.now_ns() < end_ns {
                    let planned = next(number.replace(number.get() + 1));
                    let now = NanosSinceStart(pool.now_ns());
                    let outcome = pool.ask(&planned.ask, now).await;
                    let failed = outcome.status != 200;
                    done.borrow_mut().push(Done { client: planned.client, outcome });
                    if failed {
                        tokio::time::sleep(TICK).await;
                    }
                }
            }));
        }
    }
    for task in tasks {
        let _panicked = task.await;
    }
    done.take()
}

/// The whole part of a number that is positive and far from the largest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds since the start of a run of minutes, or requests of seconds"
)]
pub(crate) fn whole(ns: f64) -> u64 {
    ns as u64
}

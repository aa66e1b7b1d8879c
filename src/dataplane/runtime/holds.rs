//! Measures how long tasks hold the shard, for `tools/holds`: CPU time of the thread in each turn
//! of a task, so that other programs on the machine do not count. Off unless `FOREBAY_HOLDS` is
//! set: it logs each turn of more microseconds.

use forebay_base::ShardIndex;
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Shortest turn that is logged, in microseconds; `None`: logging is off.
pub fn least_us() -> Option<u64> {
    std::env::var("FOREBAY_HOLDS").ok()?.parse().ok()
}

pin_project_lite::pin_project! {
    /// A task with logging of long turns. Stores the task once: an `async fn` would also store it
    /// as its argument.
    pub struct TimedTask<F> {
        shard: ShardIndex,
        least_us: Option<u64>,
        task: &'static str,
        #[pin]
        run: F,
    }
}

/// Wraps a task to log its long turns.
pub fn watched<F: Future>(
    shard: ShardIndex,
    least_us: Option<u64>,
    task: &'static str,
    run: F,
) -> TimedTask<F> {
    TimedTask { shard, least_us, task, run }
}

impl<F: Future> Future for TimedTask<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let watched = self.project();
        let Some(least_us) = *watched.least_us else { return watched.run.poll(cx) };
        let start = cpu_us();
        let polled = watched.run.poll(cx);
        let us = cpu_us().saturating_sub(start);
        if us >= least_us {
            tracing::warn!(shard = watched.shard.0, task = *watched.task, us, "held");
        }
        polled
    }
}

/// CPU time of this thread.
fn cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let micros = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000);
    u64::try_from(micros).unwrap_or(0)
}

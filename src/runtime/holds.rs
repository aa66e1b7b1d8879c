//! How long tasks hold the shard, for `tools/holds`: CPU time of the thread in each turn of a task,
//! so that other programs on the machine do not count. Off unless `FOREBAY_HOLDS` is set: a log
//! line for each turn of more microseconds.

use forebay_base::ShardIndex;
use rustix::time::{ClockId, clock_gettime};
use std::future::{Future, poll_fn};
use std::pin::pin;

/// Shortest turn that is told, in microseconds; `None`: none is.
pub fn least_us() -> Option<u64> {
    std::env::var("FOREBAY_HOLDS").ok()?.parse().ok()
}

/// Runs a task and tells of its long turns.
pub async fn watched<T>(
    shard: ShardIndex,
    least_us: Option<u64>,
    task: &str,
    run: impl Future<Output = T>,
) -> T {
    let Some(least_us) = least_us else { return run.await };
    let mut run = pin!(run);
    poll_fn(|cx| {
        let start = cpu_us();
        let polled = run.as_mut().poll(cx);
        let us = cpu_us().saturating_sub(start);
        if us >= least_us {
            tracing::warn!(shard = shard.0, task, us, "held");
        }
        polled
    })
    .await
}

/// CPU time of this thread.
fn cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let micros = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000);
    u64::try_from(micros).unwrap_or(0)
}

//! Times that a shorter time always ends first, so that nothing reads them. A pair of times stands
//! here only where no request and no worker can reach the longer time.
//!
//! No pair: `timeouts.first_byte` and `queue.wait_max` are waits after each other, as are
//! `timeouts.drain_delay` and `timeouts.drain`. The checks of a worker never overlap, so
//! `health.timeout` may be above `health.interval`. A check may use an open connection, so
//! `timeouts.connect` may be above `health.timeout`.

use super::unused_key::UnusedKeys;
use crate::sections::flow::{QueueConfig, QueueMode};
use crate::values::quantity::format_duration;
use std::time::Duration;

/// Keys of times, with the shorter time in the reason.
pub(crate) const CUT_SHORT: &[UnusedKeys] = &[
    UnusedKeys {
        keys: &["queue.promote_after"],
        why: |config, _| beyond_wait(&config.flow.queue, config.flow.queue.promote_after),
        help: "write less than `queue.wait_max`, or 0 to raise no request",
    },
    UnusedKeys {
        keys: &["queue.stale_after"],
        why: |config, _| {
            let queue = &config.flow.queue;
            let is_read = queue.mode == QueueMode::Endpoint;
            beyond_wait(queue, queue.stale_after).filter(|_| is_read)
        },
        help: "write less than `queue.wait_max`, or remove the key",
    },
];

/// The reason, if a request is refused before it has waited this long.
fn beyond_wait(queue: &QueueConfig, after: Duration) -> Option<String> {
    let wait_max = queue.wait_max;
    let why = || {
        format!("`queue.wait_max` is {}, and no request waits longer", format_duration(wait_max))
    };
    (after > wait_max && !wait_max.is_zero() && queue.mode != QueueMode::Off).then(why)
}

//! Limits of the shadow. Worst case: 128 MiB of bodies, 32 MiB of waiting prompts, 200 MiB of block
//! names, and the simulated caches.

use std::time::Duration;

/// Open connections of a listener; further connections are closed at once.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// Bodies that are read at the same time. For a further body, the oldest unfinished body is
/// answered and counted as lost.
pub(crate) const BODIES_MAX: usize = 64;
/// Longest body that is read; a longer body is answered and counted as lost.
pub(crate) const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Longest time of a connection from its last request to the end of the next request.
pub(crate) const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(75);
/// Longest wait for a client that does not read its answer.
pub(crate) const WRITE_MAX: Duration = Duration::from_secs(10);
/// Longest time for a body.
pub(crate) const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Prompts that wait for the simulation; a further prompt is counted as lost.
pub(crate) const PROMPTS_MAX: usize = 256;
/// Longest answer of an engine to `GET /metrics`.
pub(crate) const METRICS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Points of the picture; with more, every second point leaves.
pub(crate) const POINTS_MAX: usize = 720;
/// Blocks of all caches of a fleet; a larger fleet has larger blocks.
pub(crate) const FLEET_BLOCKS_MAX: u64 = 1 << 19;
/// Bytes of text of a unit, in which the simulation counts prompts.
pub(crate) const UNIT_BYTES: u64 = 4;
/// Least units of a block of the simulation.
pub(crate) const BLOCK_UNITS_MIN: u32 = 16;
/// Most units of a block of the simulation.
pub(crate) const BLOCK_UNITS_MAX: u32 = 512;

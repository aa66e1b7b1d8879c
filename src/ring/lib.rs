//! Transports between threads: a bounded queue between two threads ([`spsc()`]), a newest-wins cell
//! ([`latest()`]), the doorbell that wakes a parked shard ([`Bell`]) and the all-to-all queues of
//! the shards ([`mesh()`]). Wait-free on both sides, except for the system call that wakes a parked
//! shard.
//!
//! Knows no domain type. Only `ring`, `net`, `wide` and `heap` contain unsafe code. Every protocol
//! here has a model in `tests/loom` (`tools/ci/30-loom`). Must never block, spin or grow.

mod doorbell;
mod latest;
mod mesh;
mod spsc;
pub mod sync;

pub use doorbell::{Bell, Wake};
pub use latest::{LatestReader, LatestWriter, latest};
pub use mesh::{MeshPort, MeshReceiver, MeshSender, mesh};
pub use spsc::{Consumer, Producer, spsc};

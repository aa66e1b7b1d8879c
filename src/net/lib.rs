//! The I/O layer of a shard: tasks, timers and sockets of a thread, on io_uring or on epoll.
//!
//! The loop polls due tasks, submits their operations to the kernel, waits, and dispatches the
//! results. No task, waker or socket may leave its thread. A thread signals another thread's tasks
//! through an eventfd, which the other thread watches with [`Source`].
//!
//! io_uring: a multishot operation receives from a socket into buffers that the kernel picks from a
//! ring. A quiet socket holds no buffer, and a chunk costs a completion and no submission. epoll:
//! the same calls, on readiness.
//!
//! Limits: the rings' entries, the provided buffers, chunks that wait in a socket.

mod buffer;
mod counts;
mod drivers;
mod inflow;
mod listener;
mod outflow;
mod reactor;
mod receiver;
mod sender;
mod socket;
mod tasks;
mod timer;
mod timers;

#[cfg(test)]
mod driver_tests;

pub use buffer::BufferPool;
pub use counts::IoCounts;
pub use drivers::driver::{
    Driver, block_on, buffers, end_turn, io_counts, join_cohort, now, sleep, spawn, submit_alone,
};
pub use drivers::source::Source;
pub use listener::Listener;
pub use receiver::Receiver;
pub use sender::Sender;
pub use socket::{Socket, SocketCloser, connect};
pub use timer::Timer;

//! The I/O layer of one shard: tasks, timers and sockets of one thread, on io_uring or on epoll.
//!
//! One loop polls the tasks that are due, hands the kernel what they asked for, waits, and gives
//! out what came back. No task, waker or socket may leave its thread. A thread that has something
//! for another thread's tasks signals an eventfd, which the other thread watches with [`Source`].
//!
//! io_uring: a socket is read by one multishot operation into buffers that the kernel picks from a
//! ring. A quiet socket holds no buffer, and a chunk costs one completion and no submission.
//! epoll: the same calls, on readiness.
//!
//! Limits: the rings' entries, the provided buffers, chunks that wait in a socket.

mod buffer;
mod counts;
mod driven;
mod driver;
mod epoll;
mod inflow;
mod listener;
mod outflow;
mod provided;
mod reactor;
mod readiness;
mod receiver;
mod sender;
mod socket;
mod source;
mod tasks;
mod timer;
mod timers;
mod uring;

#[cfg(test)]
mod tests;

pub use buffer::BufferPool;
pub use counts::IoCounts;
pub use driver::{Driver, block_on, buffers, end_turn, io_counts, now, sleep, spawn};
pub use listener::Listener;
pub use receiver::Receiver;
pub use sender::Sender;
pub use socket::{Socket, connect};
pub use source::Source;
pub use timer::Timer;

//! Runtime of a shard: driver, wake-ups, flags that tasks wait for, and its offload thread for long
//! computations. Names no stage. While a request waits for that thread,
//! `offloaded` watches the connection of its client.
//!
//! Limits: `OFFLOADED_MAX` jobs, the entries of the io_uring.

mod holds;
mod offload;
mod signal;
mod wake;

pub use forebay_net::{Driver, block_on};
pub use holds::{least_us, watched};
pub use offload::{Offload, Replies, Reply, Tools, offloaded};
pub use signal::{Seat, Signal};
pub use wake::{Sleeper, WakeSource, wake_pair};

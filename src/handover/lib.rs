//! An upgrade without loss: a new process takes over the listening sockets and the index of the
//! running process, which then drains.
//!
//! The running process listens on a Unix socket named after its address ([`HandoverHost`]), and
//! only serves processes of its user or of root. A new process requests the models of the workers
//! ([`take_models`]) and then, over another connection, the sockets ([`take`]). The new process
//! reports when it serves ([`TakenProcess::serves`]). A command can request that the running
//! process starts the new process ([`upgrade`]). A failure before the new process serves changes
//! nothing: the running process continues.
//!
//! ```text
//! new                               running
//! "models\n"             ->
//!                        <-         "<0 or 1>\n", then that many: names of the workers' models
//!
//! "sockets\n"            ->
//!                        <-         "<count>\n", then descriptors; "drains\n" if it stops
//!                        <-         "<0 or 1>\n", then that many: the index
//! "serves\n"             ->
//!                        <-         "drains\n"
//!
//! "upgrade\n"            ->         from a command
//!                        <-         "serves <pid>\n"; or "failed <reason>\n" and a report
//!
//! "failed\n", a report   ->         from a started process that cannot start
//!                        <-         the end of the stream
//! ```
//!
//! A report has a line for each error, and ends with the stream.
//!
//! I/O blocks, always with a deadline, on a separate thread.

mod host;
mod address;
mod previous_process;
mod takeover;
#[cfg(test)]
mod tests;
mod wire;

pub use address::{HandoverAddress, HandoverListener, OF_UPGRADE};
pub use host::{HandoverHost, HostCall, HostSetup, Program};
pub use previous_process::PreviousProcess;
pub use takeover::{TakeError, TakenProcess, report_failed_start, take, take_models, upgrade};

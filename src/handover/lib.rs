//! An upgrade without loss: a new process takes over what the running one listens on, and its
//! index; then the running one drains.
//!
//! The running process waits at a socket that is named after its address ([`HandoverHost`]). Only
//! processes of its user, and of root, are heard. A new process asks for the models of the workers
//! ([`take_models`]) and then, over another connection, for the sockets ([`take`]). It says when it
//! serves ([`TakenProcess::serves`]). Another asks it to start a new process itself
//! ([`upgrade`]). Whatever fails before the new process serves changes nothing: the running one
//! goes on.
//!
//! ```text
//! new                               running
//! "models\n"             ->
//!                        <-         "<0 or 1>\n", then that many: names of the workers' models
//!
//! "sockets\n"            ->
//!                        <-         "<count>\n", then the descriptors; "drains\n" if it ends
//!                        <-         "<0 or 1>\n", then that many: its index
//! "serves\n"             ->
//!                        <-         "drains\n"
//! ```
//!
//! Input and output block, each with a deadline, on a thread of their own.

mod host;
mod place;
mod sharing;
mod taken;
#[cfg(test)]
mod tests;
mod wire;

pub use host::{HandoverHost, HostCall, HostSetup, Program};
pub use place::{BoundPlace, MeetingPlace};
pub use sharing::ProcessBefore;
pub use taken::{TakeError, TakenProcess, take, take_models, upgrade};

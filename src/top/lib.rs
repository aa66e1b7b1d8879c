//! The display of `forebay top`: the live stream of a router on a terminal.
//!
//! [`App`] takes snapshots and keys, and draws frames into a buffer; it uses no socket and no
//! clock. [`LineReader`] splits the stream into snapshots. Only [`TerminalGuard`] accesses the
//! terminal.

mod app;
mod clean;
mod column;
mod draw;
mod figures;
mod row;
mod snapshot;
mod stream;
mod terminal;
#[cfg(test)]
mod tests;

pub use app::{App, PressResult, StreamLink, TopKey};
pub use draw::text;
pub use snapshot::Snapshot;
pub use stream::{LineReader, TooLong};
pub use terminal::{TerminalGuard, keys};

//! Client connections of one shard: listener, input, deadlines. Runs on the shard's thread. Fills
//! buffers and never parses; `shard::request` calls it and the parser. Limits:
//! `limits.connections_max`, input read ahead, what is read of an unwanted body.

mod conn;
mod deadline;
mod descriptors;
mod discard;
mod listener;
mod turn;

pub use conn::{Conn, ReadEnd, WriteEnd};
pub use deadline::Deadline;
pub use descriptors::raise_limit;
pub use discard::{DiscardBounds, Discarding};
pub use listener::{bind_first, bind_next, listen};
pub use turn::{Turn, end_turn};

//! Client connections of one shard: listener, buffers, the one outstanding read of each socket,
//! deadlines. Runs on the shard's thread. Fills buffers and never parses; `shard::request` calls it
//! and the parser. Limits: `limits.connections_max`, pooled buffers, one read buffer per
//! connection, what is read of an unwanted body.

mod buffer;
mod conn;
mod deadline;
mod descriptors;
mod discard;
mod listener;
mod reader;
mod turn;

pub use buffer::BufferPool;
pub use conn::{Conn, ReadEnd, WriteEnd};
pub use deadline::Deadline;
pub use descriptors::raise_limit;
pub use discard::{DiscardBounds, Discarding};
pub use listener::{bind_first, bind_next, listen};
pub use reader::SocketReader;
pub use turn::{TURN_BYTES, end_turn};

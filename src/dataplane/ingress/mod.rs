//! Client connections of a shard: listener, input, deadlines. Runs on the shard's thread. Fills
//! buffers and never parses; `dataplane::request` calls it and the parser. Limits:
//! `limits.connections_max`, input read ahead, discarded bytes of an unwanted body.

mod client;
mod conn;
mod deadline;
mod descriptors;
mod discard;
mod inherited;
mod listener;
mod pace;
mod turn;

pub use client::{ClientSource, ConnectedClient};
pub use conn::{Conn, ReadEnd, WriteEnd};
pub use deadline::Deadline;
pub use descriptors::{DescriptorShortage, raise_limit};
pub use discard::{DiscardBounds, Discarding};
pub use inherited::InheritedListeners;
pub use listener::{BoundListener, Listeners, NewConnection, bind_first, bind_next, try_bind};
pub use pace::BodyPace;
pub use turn::Turn;

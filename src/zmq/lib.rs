//! ZeroMQ as far as engines use it towards a router: endpoints, and connections to their publishers
//! and replay sockets over our own ZMTP. Shared by the KV-event feeds and the load reports; knows
//! neither. Limits: a connection holds a message of at most [`zmtp::MESSAGE_BYTES_MAX`], and a
//! handshake takes at most `CONNECT_TIME_MAX`. Must never trust a claimed length, or wait on a dead
//! peer.

mod endpoint;
mod loss;
mod socket;
pub mod zmtp;

pub use endpoint::{EndpointError, Side, ZmqAddress, ZmqEndpoint};
pub use loss::LossReason;
pub use socket::{Connection, SocketError, ZmqPeer, ZmqSource, encode_message};
pub use zmtp::{SocketKind, ZmtpError};

//! Connections between replicas: NATS, and peers without a server.

pub(crate) mod inbound;
pub(crate) mod mesh;
pub(crate) mod message_lines;
pub(crate) mod message_readers;
pub(crate) mod nats;
pub(crate) mod peer_link;
pub(crate) mod transport;

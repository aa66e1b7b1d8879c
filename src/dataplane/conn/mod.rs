//! Client connections: handshake, head of each request, the admin API on the client port.

pub(crate) mod admin_call;
pub(crate) mod connection;
pub(crate) mod handshake;

//! Reads a request: client identity, head, body, scan.

pub(crate) mod admission;
pub(crate) mod body;
pub(crate) mod client_identity;
pub(crate) mod first_byte;
pub(crate) mod websocket;

//! The client of a connection.

use forebay_identity::AddressPlace;
use std::net::{IpAddr, SocketAddr};

/// The client of a connection.
#[derive(Debug)]
pub struct ConnectedClient {
    /// Peer address of the connection.
    pub peer: SocketAddr,
    /// Source address: the peer, or the source in its PROXY header.
    pub from: SocketAddr,
    /// `from` is a trusted proxy, which names the client of each request.
    pub is_proxy: bool,
    /// Client address of the current request.
    pub address: IpAddr,
    /// Counts the connection for its address.
    pub place: Option<AddressPlace>,
}

impl ConnectedClient {
    /// A client without a proxy.
    #[must_use]
    pub const fn new(peer: SocketAddr) -> Self {
        let address = peer.ip().to_canonical();
        Self { peer, from: peer, is_proxy: false, address, place: None }
    }

    /// Sets the source address of a PROXY header.
    pub const fn speaks_for(&mut self, source: SocketAddr) {
        self.from = source;
        self.address = source.ip().to_canonical();
    }
}

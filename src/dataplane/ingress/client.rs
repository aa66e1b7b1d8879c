//! Who is at the other end of a connection.

use forebay_identity::AddressPlace;
use std::net::{IpAddr, SocketAddr};

/// Whoever sends the requests of one connection.
#[derive(Debug)]
pub struct ConnectedClient {
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// Who has connected: the peer, or whom its PROXY header names.
    pub from: SocketAddr,
    /// `from` is trusted to say for whom it sends its requests.
    pub is_proxy: bool,
    /// The client of the request that is served.
    pub address: IpAddr,
    /// Counts it among the connections of its address.
    pub place: Option<AddressPlace>,
}

impl ConnectedClient {
    /// A client that speaks for itself.
    #[must_use]
    pub const fn new(peer: SocketAddr) -> Self {
        let address = peer.ip().to_canonical();
        Self { peer, from: peer, is_proxy: false, address, place: None }
    }

    /// A proxy has said for whom it has connected.
    pub const fn speaks_for(&mut self, source: SocketAddr) {
        self.from = source;
        self.address = source.ip().to_canonical();
    }
}

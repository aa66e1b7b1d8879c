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
    /// Origin of the address `from`.
    pub source: ClientSource,
    /// `from` is a trusted proxy, which names the client of the current request.
    pub is_proxy: bool,
    /// Client address of the current request.
    pub address: IpAddr,
    /// Counts the connection for its address.
    pub place: Option<AddressPlace>,
}

/// Origin of the source address of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSource {
    /// Peer address of the connection, which sent no PROXY header.
    Peer,
    /// Address in the PROXY header.
    ProxyHeader,
    /// The PROXY header names no address, so no forwarded field is trusted.
    Unknown,
}

impl ConnectedClient {
    /// A client without a proxy.
    #[must_use]
    pub const fn new(peer: SocketAddr) -> Self {
        let address = peer.ip().to_canonical();
        let source = ClientSource::Peer;
        Self { peer, from: peer, source, is_proxy: false, address, place: None }
    }

    /// Sets the source address of a PROXY header.
    pub const fn speaks_for(&mut self, source: SocketAddr) {
        self.from = source;
        self.source = ClientSource::ProxyHeader;
        self.address = source.ip().to_canonical();
    }

    /// Applies the present trust: a reload may have changed it since the last request. `trusts`
    /// is true for the address of a trusted proxy.
    pub fn trust_again(&mut self, trusts: impl Fn(IpAddr) -> bool, expects_header: bool) {
        let had_header = self.source == ClientSource::ProxyHeader;
        if had_header && !trusts(self.peer.ip()) {
            // The place counts for the address of the header.
            *self = Self::new(self.peer);
        }
        let is_proxy = trusts(self.from.ip())
            && match self.source {
                ClientSource::ProxyHeader => true,
                // A proxy that announces its clients by PROXY headers has announced none here, so
                // the bytes may come from any client.
                ClientSource::Peer => self.is_proxy || !expects_header,
                ClientSource::Unknown => false,
            };
        if is_proxy != self.is_proxy {
            self.place = None;
            self.is_proxy = is_proxy;
        }
        self.address = self.from.ip().to_canonical();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Trust in an address that a reload adds and removes counts for the next request, whatever
    /// the trust at the start of the connection.
    #[test]
    fn trust_follows_each_reload() {
        let proxy = at("192.0.2.9:1");
        let is_proxy = |ip: IpAddr| ip == proxy.ip();
        for starts_trusted in [false, true] {
            let mut client = ConnectedClient::new(proxy);
            client.is_proxy = starts_trusted;
            for is_trusted in [true, false, false, true, true, false] {
                client.address = at("203.0.113.5:1").ip();
                client.trust_again(|ip| is_trusted && is_proxy(ip), false);
                assert_eq!((client.is_proxy, client.address), (is_trusted, proxy.ip()));
            }
        }
    }

    /// A connection without the PROXY header that is expected by now gains no trust, and keeps the
    /// trust that it has.
    #[test]
    fn bytes_behind_a_missing_header_gain_no_trust() {
        for has_trust in [false, true] {
            let mut client = ConnectedClient::new(at("192.0.2.9:1"));
            client.is_proxy = has_trust;
            client.trust_again(|_| true, true);
            assert_eq!(client.is_proxy, has_trust);
        }
        let mut unnamed = ConnectedClient::new(at("192.0.2.9:1"));
        unnamed.source = ClientSource::Unknown;
        unnamed.trust_again(|_| true, false);
        assert!(!unnamed.is_proxy);
    }

    /// A PROXY header counts while its peer is trusted, and its address may be a proxy too.
    #[test]
    fn a_header_counts_while_its_peer_is_trusted() {
        let peer = at("192.0.2.9:1");
        let source = at("192.0.2.10:1");
        let mut client = ConnectedClient::new(peer);
        client.speaks_for(source);
        client.trust_again(|ip| ip == peer.ip(), true);
        assert_eq!((client.is_proxy, client.address), (false, source.ip()));
        client.trust_again(|_| true, true);
        assert_eq!((client.is_proxy, client.address), (true, source.ip()));
        client.trust_again(|ip| ip == source.ip(), true);
        assert_eq!((client.is_proxy, client.address), (false, peer.ip()));
    }
}

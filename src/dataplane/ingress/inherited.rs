//! Listening sockets inherited from another process.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

/// InheritedListeners TCP listeners; other sockets are dropped.
#[derive(Debug, Default)]
pub struct InheritedListeners(Vec<(SocketAddr, TcpListener)>);

impl InheritedListeners {
    /// Indexes the sockets by their addresses.
    #[must_use]
    pub fn new(sockets: Vec<OwnedFd>) -> Self {
        let listeners = sockets.into_iter().map(TcpListener::from);
        let with_address = |listener: TcpListener| Some((listener.local_addr().ok()?, listener));
        Self(listeners.filter_map(with_address).collect())
    }

    /// Takes all listeners of that address.
    pub fn take(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        let (wanted, others) =
            std::mem::take(&mut self.0).into_iter().partition(|(there, _)| *there == address);
        self.0 = others;
        let wanted: Vec<(SocketAddr, TcpListener)> = wanted;
        wanted.into_iter().map(|(_, listener)| listener).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_found_by_their_address() {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let one = bind();
        let other = bind();
        let [here, there] = [&one, &other].map(|listener| listener.local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = UnixListener::bind(folder.path().join("socket")).unwrap();
        let sockets = vec![one.try_clone().unwrap().into(), other.into(), file.into(), one.into()];
        let mut inherited = InheritedListeners::new(sockets);
        assert_eq!(inherited.take(here).len(), 2);
        assert_eq!((inherited.take(here).len(), inherited.take(there).len()), (0, 1));
    }
}

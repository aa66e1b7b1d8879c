//! Wakes the control plane when a shard opens or closes a rejection window. The protocol is that of
//! `ring::Bell`, over a pair of sockets: tokio cannot watch an eventfd without unsafe code.

use forebay_ring::Bell;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use tokio::net::UnixStream;

/// The control plane's end of the bell.
#[derive(Debug)]
pub(crate) struct EdgeBell {
    bell: Arc<Bell>,
    wakes: UnixStream,
    seen: u64,
}

impl EdgeBell {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let wakes = UnixStream::from_std(ours)?;
        Ok(Self { bell: Arc::new(Bell::new(theirs.into())), wakes, seen: 0 })
    }

    pub(crate) fn shared(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Resolves when `edges` has grown since the last call. Cancel-safe: if it stays parked, a wake
    /// waits in the socket.
    pub(crate) async fn rung(&mut self, edges: impl Fn() -> u64) {
        let mut wakes = [0; 64];
        loop {
            self.bell.park();
            let count = edges();
            if count != self.seen {
                self.seen = count;
                self.bell.unpark();
                return;
            }
            if self.wakes.readable().await.is_err() {
                // The reactor is gone, and so is this task in a moment.
                return std::future::pending().await;
            }
            while self.wakes.try_read(&mut wakes).is_ok_and(|read| read > 0) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_kv_events::test_support::block_on_local;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn every_edge_wakes_and_nothing_else() {
        block_on_local(async {
            let mut bell = EdgeBell::new().unwrap();
            let shared = bell.shared();
            let edges = Arc::new(AtomicU64::new(0));
            let count = || edges.load(Ordering::Acquire);
            assert!(timeout(Duration::from_millis(20), bell.rung(count)).await.is_err(), "quiet");
            let counter = Arc::clone(&edges);
            let (go, went) = std::sync::mpsc::channel::<()>();
            let ringing = std::thread::spawn(move || {
                while went.recv().is_ok() {
                    counter.fetch_add(1, Ordering::Release);
                    shared.ring();
                }
            });
            for _ in 0..2_000 {
                go.send(()).unwrap();
                timeout(PATIENCE, bell.rung(count)).await.expect("a wake");
            }
            drop(go);
            ringing.join().unwrap();
            assert!(timeout(Duration::from_millis(20), bell.rung(count)).await.is_err());
        });
    }
}

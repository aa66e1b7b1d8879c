//! A wire between an engine's socket and the router that knows ZMTP: it loses whole messages, stops
//! without closing, or is cut.

use super::frames::{Unit, encode, read_unit};
use super::until;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One wire; its threads end with the process.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    wire: Arc<Wire>,
}

#[derive(Default)]
struct Wire {
    to: Mutex<Option<SocketAddr>>,
    /// One message in so many is lost; 0: none.
    lose_one_in: AtomicUsize,
    lose_next: AtomicUsize,
    lost: AtomicUsize,
    /// Messages towards the router, lost or not.
    seen: AtomicUsize,
    /// Connections up to this number are frozen.
    frozen: AtomicUsize,
    /// Threads that carry, and are not frozen.
    carrying: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
}

impl Proxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wire = Arc::new(Wire::default());
        *wire.to.lock().unwrap() = Some(to);
        let accepting = Arc::clone(&wire);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                accepting.join(stream);
            }
        });
        Self { address, wire }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Where connections go from now on.
    pub(crate) fn lead_to(&self, to: SocketAddr) {
        *self.wire.to.lock().unwrap() = Some(to);
    }

    /// Loses each message whose number is divided by this; from here on.
    pub(crate) fn lose_one_in(&self, count: usize) {
        self.wire.lose_one_in.store(count, Ordering::SeqCst);
    }

    /// Loses the next messages.
    pub(crate) fn lose_next(&self, count: usize) {
        self.wire.lose_next.store(count, Ordering::SeqCst);
    }

    /// Waits until what was sent is through.
    pub(crate) fn settle(&self) {
        let seen = || self.wire.seen.load(Ordering::SeqCst);
        loop {
            let before = seen();
            std::thread::sleep(Duration::from_millis(200));
            if seen() == before {
                return;
            }
        }
    }

    pub(crate) fn lost(&self) -> usize {
        self.wire.lost.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.wire.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open stay open and carry nothing any more; new ones work.
    pub(crate) fn freeze(&self) {
        self.wire.frozen.store(self.connections(), Ordering::SeqCst);
        // A thread that reads already may forward one more unit.
        until("all stand still", || self.wire.carrying.load(Ordering::SeqCst) == 0);
        self.wire.open.lock().unwrap().clear();
    }

    /// Closes everything that is open.
    pub(crate) fn cut(&self) {
        for stream in self.wire.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Wire {
    fn join(self: &Arc<Self>, client: TcpStream) {
        let to = self.to.lock().unwrap().unwrap();
        let number = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let Ok(engine) = TcpStream::connect(to) else { return };
        for stream in [&client, &engine] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            self.open.lock().unwrap().push(stream.try_clone().unwrap());
        }
        let up = Arc::clone(self);
        let down = Arc::clone(self);
        let from = client.try_clone().unwrap();
        let to = engine.try_clone().unwrap();
        self.carrying.fetch_add(2, Ordering::SeqCst);
        std::thread::spawn(move || up.carry(number, from, to, false));
        std::thread::spawn(move || down.carry(number, engine, client, true));
    }

    fn carry(&self, number: usize, from: TcpStream, mut to: TcpStream, may_lose: bool) {
        let mut from = Patient { stream: from, wire: self, number, frozen: false };
        let mut first = [0; 64];
        if from.read_exact(&mut first).is_ok() && to.write_all(&first).is_ok() {
            while let Ok(unit) = read_unit(&mut from) {
                let message = matches!(unit, Unit::Message(_));
                if may_lose && message && self.loses() {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                if to.write_all(&encode(&unit)).is_err() {
                    break;
                }
            }
        }
        self.carrying.fetch_sub(1, Ordering::SeqCst);
        if from.frozen {
            // Kept open on both sides.
            loop {
                std::thread::park();
            }
        }
        let _ = (from.stream.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn loses(&self) -> bool {
        let seen = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        let take = |left: usize| left.checked_sub(1);
        if self.lose_next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return true;
        }
        let one_in = self.lose_one_in.load(Ordering::SeqCst);
        one_in > 0 && seen.is_multiple_of(one_in)
    }
}

/// Reads until the wire is frozen.
struct Patient<'a> {
    stream: TcpStream,
    wire: &'a Wire,
    number: usize,
    frozen: bool,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            self.frozen |= self.number <= self.wire.frozen.load(Ordering::SeqCst);
            if self.frozen {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            match self.stream.read(buffer) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                other => return other,
            }
        }
    }
}

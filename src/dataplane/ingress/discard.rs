//! Discards unwanted bytes of a client: the rest of a refused body, or bytes before a close.
//! Bounded: a client that sends forever, or stalls, is disconnected.

use super::{Conn, ReadEnd, Turn};
use forebay_base::NanosSinceStart;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct DiscardBounds {
    /// Most bytes read. A read that began below the bound may exceed it.
    pub bytes_max: usize,
    /// Longest wait for a client that reads the end of its answer.
    pub flush_max: Duration,
    /// Longest wait for the next byte.
    pub stall_max: Duration,
    pub time_max: Duration,
}

/// Discards the input of a connection.
#[derive(Debug)]
pub struct Discarding<'a> {
    /// The connection to read from.
    pub conn: &'a mut Conn,
    bounds: DiscardBounds,
    read_bytes: usize,
    turn: Turn,
    give_up_at: Option<NanosSinceStart>,
}

impl Conn {
    /// Begins to discard the client's further bytes.
    pub fn discarding(&mut self, bounds: DiscardBounds) -> Discarding<'_> {
        Discarding::new(self, bounds)
    }

    /// Ends the connection so that the client still receives the sent bytes: flushes, closes the
    /// sending side, then reads and discards the client's bytes, within bounds (RFC 9112 9.6).
    /// Closing with unread bytes would make the kernel send a reset, which can destroy the response
    /// in transit.
    pub async fn linger(mut self, bounds: DiscardBounds) {
        self.wait_at_most(bounds.flush_max);
        if self.flush().await.is_err() || !self.close_sending() {
            return;
        }
        let mut discarding = self.discarding(bounds);
        loop {
            discarding.consume(usize::MAX);
            if discarding.more().await.is_err() {
                return;
            }
        }
    }
}

impl<'a> Discarding<'a> {
    fn new(conn: &'a mut Conn, bounds: DiscardBounds) -> Self {
        Self { conn, bounds, read_bytes: 0, turn: Turn::default(), give_up_at: None }
    }

    /// Drops up to `bytes` of the input; returns the number of dropped bytes.
    pub fn consume(&mut self, bytes: usize) -> usize {
        let step = bytes.min(self.conn.input.len());
        self.conn.consume(step);
        step
    }

    /// Waits for more input.
    ///
    /// # Errors
    /// [`ReadEnd`] if the client has closed, or a bound is reached.
    pub async fn more(&mut self) -> Result<(), ReadEnd> {
        let now = self.conn.now();
        let give_up_at = *self.give_up_at.get_or_insert(now.plus(self.bounds.time_max));
        if self.read_bytes >= self.bounds.bytes_max || now >= give_up_at {
            return Err(ReadEnd::TimedOut);
        }
        // The deadline ends a wait; the check above ends a client that sends without pause.
        self.conn.wait_until(give_up_at.min(now.plus(self.bounds.stall_max)));
        let before = self.conn.input.len();
        self.conn.fill().await?;
        let read_bytes = self.conn.input.len().saturating_sub(before);
        self.read_bytes = self.read_bytes.saturating_add(read_bytes);
        self.turn.spend(read_bytes).await;
        Ok(())
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the clients of these tests are threads that sleep and look at the clock"
)]
mod tests {
    use super::*;
    use forebay_base::Clock;
    use forebay_net::{Driver, Socket, block_on};
    use std::io::Write;
    use std::time::Instant;

    /// Discards what `client` sends until a bound is reached; how long that took.
    fn discarded(bounds: DiscardBounds, client: fn(std::net::TcpStream)) -> (ReadEnd, Duration) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sending =
            std::thread::spawn(move || client(std::net::TcpStream::connect(address).unwrap()));
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let clock = Clock::start();
        let ended = block_on(Driver::Epoll, clock, |_| (), async {
            let socket = Socket::from_std(accepted).unwrap();
            let mut conn = Conn::new(socket, address, clock);
            let start = Instant::now();
            let mut discarding = conn.discarding(bounds);
            loop {
                discarding.consume(usize::MAX);
                if let Err(end) = discarding.more().await {
                    return (end, start.elapsed());
                }
            }
        });
        sending.join().unwrap();
        ended.unwrap()
    }

    const BOUNDS: DiscardBounds = DiscardBounds {
        flush_max: Duration::from_secs(5),
        bytes_max: usize::MAX,
        stall_max: Duration::from_secs(20),
        time_max: Duration::from_secs(20),
    };

    #[test]
    fn one_that_trickles_is_cut_after_the_time() {
        let bounds = DiscardBounds { time_max: Duration::from_millis(200), ..BOUNDS };
        let (end, took) = discarded(bounds, |mut stream| {
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(end, ReadEnd::TimedOut);
        assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn one_that_pauses_for_too_long_is_cut() {
        let bounds = DiscardBounds { stall_max: Duration::from_millis(200), ..BOUNDS };
        let (end, took) = discarded(bounds, |mut stream| {
            stream.write_all(b"x").unwrap();
            while !matches!(std::io::Read::read(&mut stream, &mut [0]), Ok(0) | Err(_)) {}
        });
        assert_eq!(end, ReadEnd::TimedOut);
        assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn one_that_sends_too_much_is_cut() {
        let bounds = DiscardBounds { bytes_max: 1 << 20, ..BOUNDS };
        let (end, took) =
            discarded(bounds, |mut stream| while stream.write_all(&[b'x'; 10_000]).is_ok() {});
        assert_eq!(end, ReadEnd::TimedOut);
        assert!(took < Duration::from_secs(10), "{took:?}");
    }

    /// The end of an answer is posted only. A reader that pauses for longer than the discard allows
    /// gets it all the same.
    #[test]
    fn a_slow_reader_gets_the_end_of_its_answer() {
        const ANSWER_BYTES: usize = 16 << 20;
        let bounds = DiscardBounds { stall_max: Duration::from_millis(100), ..BOUNDS };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reading = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            std::thread::sleep(Duration::from_millis(600));
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
        });
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let clock = Clock::start();
        let ended = block_on(Driver::detect(), clock, |_| (), async {
            let mut conn = Conn::new(Socket::from_std(accepted).unwrap(), address, clock);
            conn.wait_at_most(Duration::from_secs(5));
            conn.write(vec![b'x'; ANSWER_BYTES]).await.unwrap();
            conn.linger(bounds).await;
        });
        ended.unwrap();
        assert_eq!(reading.join().unwrap(), u64::try_from(ANSWER_BYTES).unwrap());
    }
}

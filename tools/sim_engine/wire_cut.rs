//! Connections that break at a byte of an answer on demand, and a listener that can close its port
//! for a while. Without a fault they are plain TCP.

use super::fault::{FaultAt, FaultPlan, Faults};
use super::listening::listen;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use forebay_base::Clock;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Breaks the connection of a request. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ConnectionCutter(Arc<watch::Sender<Option<FaultPlan>>>);

impl ConnectionCutter {
    /// Cuts the next answer as planned.
    pub(super) fn cut(&self, plan: FaultPlan) {
        self.0.send_replace(Some(plan));
    }
}

impl Connected<IncomingStream<'_, CutListener>> for ConnectionCutter {
    fn connect_info(stream: IncomingStream<'_, CutListener>) -> Self {
        stream.io().scissors.clone()
    }
}

/// A listener that can close its port.
#[derive(Debug)]
pub(super) struct CutListener {
    addr: SocketAddr,
    inner: Option<TcpListener>,
    clock: Clock,
    changes: watch::Receiver<FaultPlan>,
}

impl CutListener {
    pub(super) fn new(inner: TcpListener, clock: Clock, faults: &Faults) -> io::Result<Self> {
        let addr = inner.local_addr()?;
        Ok(Self { addr, inner: Some(inner), clock, changes: faults.watch() })
    }

    /// Time until the port opens again.
    fn deafness(&mut self) -> Duration {
        let until = self.changes.borrow_and_update().deaf_until;
        Duration::from_nanos(until.0.saturating_sub(self.clock.now().0))
    }
}

impl Listener for CutListener {
    type Io = CutStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (CutStream, SocketAddr) {
        loop {
            let deafness = self.deafness();
            if !deafness.is_zero() {
                self.inner = None;
                tokio::time::sleep(deafness).await;
                continue;
            }
            let Some(listener) = &mut self.inner else {
                match listen(self.addr).await {
                    Ok(listener) => self.inner = Some(listener),
                    // Another process has the port: it stays closed to clients.
                    Err(_taken) => tokio::time::sleep(RETRY_INTERVAL).await,
                }
                continue;
            };
            tokio::select! {
                accepted = Listener::accept(listener) => {
                    let (stream, addr) = accepted;
                    drop(stream.set_nodelay(true));
                    return (CutStream::new(stream), addr);
                }
                changed = self.changes.changed() => if changed.is_err() {
                    // The plan is gone, so there are no further faults.
                    let (stream, addr) = Listener::accept(listener).await;
                    return (CutStream::new(stream), addr);
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

/// A connection that breaks as planned.
#[derive(Debug)]
pub(super) struct CutStream {
    stream: TcpStream,
    scissors: ConnectionCutter,
    plan: watch::Receiver<Option<FaultPlan>>,
    progress: CutProgress,
}

/// Progress of the answer that will be cut.
#[derive(Clone, Copy, Debug, Default)]
struct CutProgress {
    head_bytes: usize,
    /// Number of last bytes that match the four bytes at the end of a head.
    end_bytes: usize,
    body_bytes: usize,
}

impl CutProgress {
    /// Bytes of `bytes` that may still be written.
    fn allowed(mut self, plan: &FaultPlan, bytes: &[u8]) -> usize {
        let mut allowed = 0;
        while let Some(byte) = bytes.get(allowed) {
            let may = match plan.at {
                FaultAt::InHead => self.head_bytes < HEAD_BYTES,
                FaultAt::AfterHead => !self.is_head_done(),
                FaultAt::MidBody => !self.is_head_done() || self.body_bytes < plan.body_bytes,
                _ => false,
            };
            if !may {
                break;
            }
            self.written(*byte);
            allowed += 1;
        }
        allowed
    }

    fn is_head_done(self) -> bool {
        self.end_bytes == HEAD_END.len()
    }

    fn written(&mut self, byte: u8) {
        if self.is_head_done() {
            self.body_bytes += 1;
            return;
        }
        self.head_bytes += 1;
        let fits = HEAD_END.get(self.end_bytes) == Some(&byte);
        self.end_bytes = if fits { self.end_bytes + 1 } else { usize::from(byte == b'\r') };
    }

    /// True if no further byte may be written.
    fn is_over(self, plan: &FaultPlan) -> bool {
        self.allowed(plan, b"x") == 0
    }
}

impl CutStream {
    fn new(stream: TcpStream) -> Self {
        let (sender, plan) = watch::channel(None);
        let scissors = ConnectionCutter(Arc::new(sender));
        Self { stream, scissors, plan, progress: CutProgress::default() }
    }

    fn planned(&self) -> Option<FaultPlan> {
        *self.plan.borrow()
    }
}

impl AsyncRead for CutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(plan) = self.planned() else {
            return Pin::new(&mut self.stream).poll_write(cx, bytes);
        };
        let allowed = bytes.get(..self.progress.allowed(&plan, bytes)).unwrap_or_default();
        if allowed.is_empty() && !bytes.is_empty() {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, allowed))?;
        for byte in allowed.iter().take(written) {
            self.progress.written(*byte);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.planned().is_none() {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty());
        self.poll_write(cx, first.map_or(&[], |slice| slice))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Between head and body there may be no write for a while, but a flush follows the head.
        let is_cut =
            |plan: FaultPlan| plan.at != FaultAt::BeforeHead && self.progress.is_over(&plan);
        if self.planned().is_some_and(is_cut) {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Bytes of a head that is cut: version and status.
const HEAD_BYTES: usize = 12;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::NanosSinceStart;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nabcdefgh";

    #[test]
    fn an_answer_breaks_where_it_was_planned_however_it_is_written() {
        let deaf_until = NanosSinceStart(0);
        let plan = |at| FaultPlan { at, count: 1, body_bytes: 3, met: 0, deaf_until };
        for (at, out) in [
            (FaultAt::BeforeHead, ""),
            (FaultAt::InHead, "HTTP/1.1 200"),
            (FaultAt::AfterHead, "HTTP/1.1 200 OK\r\nx: y\r\n\r\n"),
            (FaultAt::MidBody, "HTTP/1.1 200 OK\r\nx: y\r\n\r\nabc"),
        ] {
            for step in 1..=ANSWER.len() {
                let mut progress = CutProgress::default();
                let mut written = Vec::new();
                for part in ANSWER.chunks(step) {
                    let allowed = progress.allowed(&plan(at), part);
                    part[..allowed].iter().for_each(|byte| progress.written(*byte));
                    written.extend_from_slice(&part[..allowed]);
                    assert_eq!(
                        allowed < part.len(),
                        progress.is_over(&plan(at)) && allowed < part.len()
                    );
                }
                assert_eq!(written, out.as_bytes(), "{at:?} by {step}");
                assert!(progress.is_over(&plan(at)));
            }
        }
    }
}

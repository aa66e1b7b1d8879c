//! Both directions of a connection that has left HTTP. Bytes pass as they come. Each direction
//! holds a chunk, and the bytes that its socket has read ahead: a side that takes nothing stops the
//! other side from being read. The end of a side is passed on, and the other direction stays open.

use super::tunnel_clock::{TunnelClock, TunnelDirection, TunnelLimits, TunnelOver};
use super::upstream::Halves;
use crate::ingress::{Conn, Turn};
use forebay_base::NanosSinceStart;
use forebay_link::{LinkReader, LinkWriter};
use forebay_router::dispatch::RelayError;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::task::{Context, Poll};
use std::time::Duration;

/// How often a tunnel is looked at, whether or not bytes pass.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How a tunnel has ended, where no side is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have ended.
    Closed,
    /// The router ends it: idle for too long, or without its worker.
    Over,
}

/// Accounts for the bytes of a tunnel, and may end the tunnel.
pub trait TunnelWatch {
    /// Bytes have come, and pass.
    fn passes(&mut self, toward: TunnelDirection, bytes: usize);
    /// Looks whether the tunnel has lost its point.
    fn look(&mut self) -> Option<Result<TunnelEnd, RelayError>>;
}

/// Passes bytes on until both sides have ended, or a wait is over. `first` goes to the client
/// before the bytes of the worker. Bytes that the client has already sent go to the worker first.
///
/// # Errors
/// The side that broke off, or does not take its bytes.
pub async fn tunnel(
    conn: &mut Conn,
    worker: Halves<'_>,
    first: Vec<u8>,
    limits: TunnelLimits,
    watch: &mut impl TunnelWatch,
) -> Result<TunnelEnd, RelayError> {
    conn.expect_body(0);
    let early = std::mem::take(&mut conn.input);
    let (client_reader, client_writer, deadline) = conn.halves();
    let mut up = Pipe::new(TunnelDirection::Worker, client_reader, worker.writer);
    let mut down = Pipe::new(TunnelDirection::Client, worker.reader, client_writer);
    let mut now = deadline.now();
    let mut clock = TunnelClock::new(limits, now);
    let mut look_at = now.plus(LOOK_PERIOD);
    down.send(first, &mut clock, now);
    if !early.is_empty() {
        watch.passes(TunnelDirection::Worker, early.len());
        up.send(early, &mut clock, now);
    }
    let mut turn = Turn::default();
    let mut broken = None;
    loop {
        deadline.set_at(clock.due_at().min(look_at));
        let moves = poll_fn(|cx| {
            let moves = [up.poll(cx), down.poll(cx)];
            if moves.iter().all(Poll::is_pending) {
                return deadline.poll(cx).map(|()| moves);
            }
            Poll::Ready(moves)
        });
        let moves = moves.await;
        now = deadline.now();
        for (moved, pipe) in moves.into_iter().zip([&mut up, &mut down]) {
            match moved {
                Poll::Pending => {}
                Poll::Ready(Ok(PipeProgress::Read(chunk))) => {
                    let bytes = chunk.len();
                    watch.passes(pipe.toward, bytes);
                    pipe.send(chunk, &mut clock, now);
                    // Two sides that are both fast would never make this wait.
                    turn.spend(bytes).await;
                }
                Poll::Ready(Ok(PipeProgress::Sent)) => clock.sent(pipe.toward, now),
                Poll::Ready(Ok(PipeProgress::Ended)) => clock.half_closed(now),
                Poll::Ready(Err(side)) => broken = broken.or(Some(side)),
            }
        }
        if let Some(side) = broken {
            return broken_by(side, up.is_ended(), down.is_ended());
        }
        if up.is_ended() && down.is_ended() {
            return Ok(TunnelEnd::Closed);
        }
        if now >= look_at {
            look_at = now.plus(LOOK_PERIOD);
            if let Some(end) = watch.look() {
                return end;
            }
        }
        match clock.over(now) {
            None => {}
            Some(TunnelOver::Idle) => return Ok(TunnelEnd::Over),
            Some(TunnelOver::Stalled(TunnelDirection::Client)) => {
                return Err(RelayError::ClientStalled);
            }
            Some(TunnelOver::Stalled(TunnelDirection::Worker)) => {
                return Err(RelayError::StreamIdle);
            }
        }
    }
}

/// Ends by the side that broke off. What breaks behind its own end is no fault: a side that has
/// closed for good answers what still comes with a reset.
const fn broken_by(
    side: TunnelDirection,
    client_has_ended: bool,
    worker_has_ended: bool,
) -> Result<TunnelEnd, RelayError> {
    match side {
        TunnelDirection::Client if client_has_ended => Ok(TunnelEnd::Closed),
        TunnelDirection::Worker if worker_has_ended => Ok(TunnelEnd::Closed),
        TunnelDirection::Client => Err(RelayError::ClientGone),
        TunnelDirection::Worker => Err(RelayError::ClosedMidStream),
    }
}

/// A direction of a tunnel.
struct Pipe<'a> {
    toward: TunnelDirection,
    reader: &'a mut LinkReader,
    writer: &'a mut LinkWriter,
    state: PipeState,
}

#[derive(Clone, Copy)]
enum PipeState {
    Reads,
    Sends,
    Ended,
}

/// Progress of a direction.
enum PipeProgress {
    Read(Vec<u8>),
    Sent,
    Ended,
}

impl<'a> Pipe<'a> {
    const fn new(
        toward: TunnelDirection,
        reader: &'a mut LinkReader,
        writer: &'a mut LinkWriter,
    ) -> Self {
        Self { toward, reader, writer, state: PipeState::Reads }
    }

    const fn is_ended(&self) -> bool {
        matches!(self.state, PipeState::Ended)
    }

    fn send(&mut self, chunk: Vec<u8>, clock: &mut TunnelClock, now: NanosSinceStart) {
        self.writer.start(chunk);
        self.state = PipeState::Sends;
        clock.sends(self.toward, now);
    }

    /// Ready after progress, or with the side that broke off.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PipeProgress, TunnelDirection>> {
        match self.state {
            PipeState::Ended => Poll::Pending,
            PipeState::Reads => self.reader.poll_chunk(cx).map(|read| match read {
                Ok(chunk) if !chunk.is_empty() => Ok(PipeProgress::Read(chunk)),
                // Over TLS many peers close without a notice. Frames show whether all has come.
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(self.toward.other()),
                _ => {
                    self.state = PipeState::Ended;
                    // A peer that has left does not get the end.
                    let _ = self.writer.close();
                    Ok(PipeProgress::Ended)
                }
            }),
            PipeState::Sends => match self.writer.poll_flushed(cx) {
                Poll::Pending => {
                    self.reader.poll_ahead(cx);
                    Poll::Pending
                }
                Poll::Ready(Ok(())) => {
                    self.state = PipeState::Reads;
                    Poll::Ready(Ok(PipeProgress::Sent))
                }
                Poll::Ready(Err(_)) => Poll::Ready(Err(self.toward)),
            },
        }
    }
}

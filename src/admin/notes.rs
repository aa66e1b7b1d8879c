//! The stream of request notes that `forebay record` reads: each note after its length in four
//! bytes, little-endian. Limits: one reader at a time, and [`UNREAD_MAX`] unread pieces; further
//! pieces are dropped and counted in the stream.

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Unread pieces of the stream.
const UNREAD_MAX: usize = 32;

/// Reading end: the body of the stream.
#[derive(Debug)]
pub struct NotesReader(Receiver<Bytes>);

/// Writing end of the stream.
#[derive(Debug)]
pub struct NotePieces(Sender<Bytes>);

impl NotesReader {
    /// Creates both ends of a stream.
    #[must_use]
    pub fn new() -> (NotePieces, Self) {
        let (filled, unread) = channel(UNREAD_MAX);
        (NotePieces(filled), Self(unread))
    }
}

impl NotePieces {
    /// False if the reader is `UNREAD_MAX` pieces behind.
    #[must_use]
    pub fn put(&self, piece: Vec<u8>) -> bool {
        self.0.try_send(piece.into()).is_ok()
    }

    /// True if the reader has disconnected.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Body for NotesReader {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

//! The sending half of a connection.

use super::shared::{SharedSession, broken};
use forebay_base::limits::TLS_PIECE_BYTES;
use forebay_net::{BufferPool, Sender};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Size overhead of encryption for a short plaintext, with room to spare.
const OVERHEAD_BYTES: usize = 128;

/// Sends the plaintext of a connection.
#[derive(Debug)]
pub struct LinkWriter {
    pub(crate) sender: Sender,
    sealing: Option<Box<Sealing>>,
}

/// Encrypts plaintext before it is sent.
#[derive(Debug)]
struct Sealing {
    session: SharedSession,
    pool: Rc<BufferPool>,
    /// Plaintext that is sent piece by piece, and its encrypted part.
    plain: Vec<u8>,
    sealed_bytes: usize,
    /// Ciphertext that the socket had no room for, and its sent part.
    unsent: Vec<u8>,
    gone_bytes: usize,
    is_under_way: bool,
    fault: Option<io::Error>,
}

impl LinkWriter {
    pub(crate) const fn new(sender: Sender) -> Self {
        Self { sender, sealing: None }
    }

    pub(crate) fn secure(&mut self, session: SharedSession) {
        self.sealing = Some(Box::new(Sealing::new(session)));
    }

    /// Begins to send all of `bytes`. Only after [`Self::poll_sent`] of the previous bytes.
    #[inline]
    pub fn start(&mut self, bytes: Vec<u8>) {
        let Self { sender, sealing } = self;
        match sealing {
            None => sender.start(bytes),
            Some(sealing) => sealing.start(sender, bytes),
        }
    }

    /// Ready when no step of the caller is needed for the bytes to reach the kernel; returns a
    /// consumed buffer. See [`Sender::poll_sent`].
    ///
    /// # Errors
    /// The socket's or the session's error.
    #[inline]
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let Self { sender, sealing } = self;
        match sealing {
            None => sender.poll_sent(cx),
            Some(sealing) => sealing.poll_sent(sender, cx),
        }
    }

    /// Ready when the kernel has all bytes.
    ///
    /// # Errors
    /// As [`Self::poll_sent`].
    pub fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let accepted = ready!(self.poll_sent(cx))?;
        self.sender.recycle(accepted);
        let finished = ready!(self.sender.poll_flushed(cx))?;
        self.sender.recycle(finished);
        Poll::Ready(Ok(()))
    }

    /// True if the kernel has all bytes.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.sender.is_flushed()
    }

    /// Bytes wait for room in the socket, or will have to; see [`Sender::is_behind`].
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.sender.is_behind()
    }

    /// Takes as much as there is room for; see [`Sender::try_send`]. [`Self::flush`] sends the rest
    /// of the taken bytes.
    ///
    /// # Errors
    /// As [`Self::poll_sent`].
    pub fn try_send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { sender, sealing } = self;
        match sealing {
            None => sender.try_send(pieces),
            Some(sealing) => sealing.try_send(sender, pieces),
        }
    }

    /// Waits until all bytes taken by [`Self::try_send`] are sent.
    ///
    /// # Errors
    /// As [`Self::poll_sent`].
    pub async fn flush(&mut self) -> io::Result<()> {
        let Self { sender, sealing: Some(sealing) } = self else { return Ok(()) };
        while !sealing.push(sender)? {
            sender.room().await?;
        }
        Ok(())
    }

    /// Waits until the socket has room, or is broken.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub async fn room(&mut self) -> io::Result<()> {
        self.sender.room().await
    }

    /// Returns a consumed buffer to the pool.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.sender.recycle(buffer);
    }

    /// Sends all of `bytes`; returns a consumed buffer.
    ///
    /// # Errors
    /// As [`Self::poll_sent`].
    pub async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        self.start(bytes);
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Sends close_notify over TLS, so that the end is not taken for truncation. Does nothing in
    /// plain text.
    pub fn send_close_notify(&mut self) {
        let Self { sender, sealing } = self;
        if let Some(sealing) = sealing {
            sealing.send_close_notify(sender);
        }
    }

    /// Closes the sending side.
    ///
    /// # Errors
    /// The shutdown failed.
    pub fn close(&mut self) -> io::Result<()> {
        self.send_close_notify();
        self.sender.close()
    }

    /// Continues in plain text, after a first message that is no TLS.
    pub fn into_plain(&mut self) {
        self.sealing = None;
    }
}

impl Drop for LinkWriter {
    /// Sends a pending alert about the peer's fault, if the socket has room at once.
    fn drop(&mut self) {
        let Self { sender, sealing: Some(sealing) } = self else { return };
        let out = std::mem::take(sealing.session.borrow_mut().outgoing());
        if !out.is_empty() && !sealing.is_under_way && sealing.unsent.is_empty() {
            let _ = sender.try_send(&[IoSlice::new(&out)]);
        }
    }
}

impl Sealing {
    fn new(session: SharedSession) -> Self {
        Self {
            session,
            pool: forebay_net::buffers(),
            plain: Vec::new(),
            sealed_bytes: 0,
            unsent: Vec::new(),
            gone_bytes: 0,
            is_under_way: false,
            fault: None,
        }
    }

    fn start(&mut self, sender: &mut Sender, bytes: Vec<u8>) {
        self.plain = bytes;
        self.sealed_bytes = 0;
        self.start_piece(sender);
    }

    fn start_piece(&mut self, sender: &mut Sender) {
        let rest = self.plain.get(self.sealed_bytes..).unwrap_or_default();
        let piece = rest.get(..TLS_PIECE_BYTES).unwrap_or(rest);
        match self.seal(&[IoSlice::new(piece)]) {
            Ok(sealed) => {
                self.sealed_bytes += piece.len();
                self.is_under_way = true;
                sender.start(sealed);
            }
            Err(error) => self.fault = Some(error),
        }
    }

    /// Encrypts the pieces, after bytes that the session already had to send.
    fn seal(&self, pieces: &[IoSlice<'_>]) -> io::Result<Vec<u8>> {
        let mut session = self.session.borrow_mut();
        let out = session.outgoing();
        if out.capacity() == 0 {
            let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
            *out = self.pool.take_for(bytes + OVERHEAD_BYTES);
        }
        for piece in pieces {
            session.encrypt(piece).map_err(broken)?;
        }
        Ok(std::mem::take(session.outgoing()))
    }

    fn poll_sent(
        &mut self,
        sender: &mut Sender,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Vec<u8>>> {
        if let Some(error) = self.fault.take() {
            return Poll::Ready(Err(error));
        }
        if !self.is_under_way {
            return Poll::Ready(Ok(Vec::new()));
        }
        let sent = ready!(sender.poll_sent(cx));
        self.is_under_way = false;
        self.pool.give(sent?);
        if self.sealed_bytes >= self.plain.len() {
            return Poll::Ready(Ok(std::mem::take(&mut self.plain)));
        }
        // Sends the next piece; the piece after it waits, so that other tasks run.
        self.start_piece(sender);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn try_send(&mut self, sender: &mut Sender, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.push(sender)? {
            return Ok(0);
        }
        let mut left = TLS_PIECE_BYTES;
        let mut taken = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let part = piece.get(..left).unwrap_or(piece);
            left -= part.len();
            taken.push(IoSlice::new(part));
        }
        self.unsent = self.seal(&taken)?;
        self.gone_bytes = 0;
        self.push(sender)?;
        Ok(TLS_PIECE_BYTES - left)
    }

    /// Sends the rest of the ciphertext, as far as there is room; true if all is sent.
    fn push(&mut self, sender: &mut Sender) -> io::Result<bool> {
        let rest = self.unsent.get(self.gone_bytes..).unwrap_or_default();
        if !rest.is_empty() {
            self.gone_bytes += sender.try_send(&[IoSlice::new(rest)])?;
        }
        let is_done = self.gone_bytes >= self.unsent.len();
        if is_done {
            self.gone_bytes = 0;
            self.pool.give(std::mem::take(&mut self.unsent));
        }
        Ok(is_done)
    }

    fn send_close_notify(&mut self, sender: &mut Sender) {
        if self.is_under_way || !self.push(sender).unwrap_or(false) {
            return;
        }
        let mut session = self.session.borrow_mut();
        if session.close().is_ok() {
            let out = std::mem::take(session.outgoing());
            let _ = sender.try_send(&[IoSlice::new(&out)]);
        }
    }
}

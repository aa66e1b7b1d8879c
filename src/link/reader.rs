//! The receiving half of a connection.

use super::shared::{SharedSession, broken};
use forebay_base::limits::{READ_BYTES, TLS_READ_BYTES};
use forebay_net::{BufferPool, Receiver};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// Decryption attempts without plaintext per turn, so that other tasks run in between.
const LOOKS_A_TURN_MAX: usize = 4;

/// Receives the plaintext of a connection.
#[derive(Debug)]
pub struct LinkReader {
    pub(crate) receiver: Receiver,
    pub(crate) opening: Option<Opening>,
}

/// Decrypts received bytes for their consumer.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) session: SharedSession,
    pool: Rc<BufferPool>,
    is_in_place: bool,
}

impl LinkReader {
    pub(crate) const fn new(receiver: Receiver) -> Self {
        Self { receiver, opening: None }
    }

    /// True if the connection speaks TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        self.opening.is_some()
    }

    pub(crate) fn secure(&mut self, session: SharedSession) {
        let pool = forebay_net::buffers();
        self.opening = Some(Opening { session, pool, is_in_place: false });
    }

    /// The next chunk; empty at the end of the stream, and from then on.
    ///
    /// # Errors
    /// The kernel's error; over TLS also invalid records, and an end without close_notify.
    #[inline]
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let Self { receiver, opening } = self;
        let Some(opening) = opening else { return receiver.poll_chunk(cx) };
        let mut plain = Vec::new();
        ready!(opening.poll_plain(receiver, cx, &mut plain, READ_BYTES))?;
        Poll::Ready(Ok(plain))
    }

    /// Appends received bytes to `into`. 0: the end of the stream.
    ///
    /// # Errors
    /// As [`Self::poll_chunk`].
    #[inline]
    pub fn poll_in_place(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Self { receiver, opening } = self;
        let Some(opening) = opening else { return receiver.poll_in_place(cx, into) };
        opening.poll_plain(receiver, cx, into, usize::MAX)
    }

    /// Begins or ends a long message; see [`Receiver::set_in_place`].
    pub fn set_in_place(&mut self, is_in_place: bool) {
        self.receiver.set_in_place(is_in_place);
        if let Some(opening) = &mut self.opening {
            opening.is_in_place = is_in_place;
            opening.give_back();
        }
    }

    /// Receives before the consumer needs the bytes; see [`Receiver::poll_ahead`].
    #[inline]
    pub fn poll_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let has_more =
            self.opening.as_ref().is_some_and(|opening| opening.session.borrow().has_more());
        has_more || self.receiver.poll_ahead(cx)
    }

    /// True if neither plaintext nor the end has arrived. Reads TLS's own messages here, since a
    /// server may send tickets at any time.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        let Self { receiver, opening } = self;
        match opening {
            None => receiver.is_quiet(),
            Some(opening) => opening.is_quiet(receiver),
        }
    }

    /// Returns a consumed chunk to the pool.
    pub fn recycle(&self, chunk: Vec<u8>) {
        self.receiver.recycle(chunk);
    }

    /// Continues in plain text, after a first message that is no TLS. Returns the received bytes.
    pub fn into_plain(&mut self) -> Vec<u8> {
        let opening = self.opening.take();
        opening.map_or_else(Vec::new, |opening| {
            std::mem::take(opening.session.borrow_mut().incoming())
        })
    }
}

impl Opening {
    /// Appends plaintext to `plain`, up to a length of `bytes_max` except for a first record. 0:
    /// the peer has sent close_notify.
    fn poll_plain(
        &mut self,
        receiver: &mut Receiver,
        cx: &mut Context<'_>,
        plain: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let before = plain.len();
        let session = Rc::clone(&self.session);
        let mut session = session.borrow_mut();
        let mut is_due = session.has_more();
        for _ in 0..LOOKS_A_TURN_MAX {
            if is_due {
                let is_lent = plain.capacity() == 0;
                if is_lent {
                    *plain = self.pool.take_for(session.incoming().len().min(READ_BYTES));
                }
                let advanced = session.advance(plain, bytes_max);
                if plain.len() > before {
                    drop(session);
                    self.give_back();
                    return Poll::Ready(Ok(plain.len() - before));
                }
                if is_lent {
                    self.pool.give(std::mem::take(plain));
                }
                advanced.map_err(broken)?;
            }
            if session.peer_has_closed() {
                return Poll::Ready(Ok(0));
            }
            if self.is_in_place {
                let incoming = session.incoming();
                incoming.reserve(TLS_READ_BYTES.saturating_sub(incoming.len()));
            }
            match receiver.poll_in_place(cx, session.incoming())? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(_) => is_due = true,
                Poll::Pending => {
                    drop(session);
                    self.give_back();
                    return Poll::Pending;
                }
            }
        }
        // The last received bytes are decrypted in the next turn.
        session.look_later();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_quiet(&mut self, receiver: &mut Receiver) -> bool {
        let mut session = self.session.borrow_mut();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..LOOKS_A_TURN_MAX {
            if session.has_more() || session.has_part() || session.peer_has_closed() {
                return false;
            }
            if receiver.is_quiet() {
                return true;
            }
            let Poll::Ready(Ok(1..)) = receiver.poll_in_place(&mut cx, session.incoming()) else {
                return false;
            };
            if session.shake().is_err() {
                return false;
            }
        }
        false
    }

    /// Returns the buffer: a connection that waits for bytes holds none.
    fn give_back(&self) {
        let mut session = self.session.borrow_mut();
        if !self.is_in_place && session.incoming().is_empty() {
            self.pool.give(std::mem::take(session.incoming()));
        }
    }
}

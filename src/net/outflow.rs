//! Pending bytes of a socket's sender: a single buffer at a time.

use std::io;
use std::task::Waker;

/// Pending bytes of a socket's sender. Plain data.
#[derive(Debug, Default)]
pub(crate) struct Outflow {
    pub(crate) state: SendState,
    pub(crate) waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(crate) enum SendState {
    #[default]
    Idle,
    /// The bytes leave with the next submission, or the operation is then under way.
    Posted,
    /// Key of the send operation, which waits for room in the socket.
    UnderWay(usize),
    /// The socket's send buffer is full.
    Blocked {
        bytes: Vec<u8>,
        sent_bytes: usize,
    },
    Done(io::Result<Vec<u8>>),
}

impl Outflow {
    /// Stores the result of a completion of operation `key`. False if there are more bytes to send.
    pub(crate) fn sent(
        &mut self,
        key: usize,
        sent: io::Result<usize>,
        bytes: &mut Vec<u8>,
        sent_bytes: &mut usize,
    ) -> bool {
        let done = match sent {
            Ok(count) => {
                *sent_bytes += count;
                let is_wanted = !matches!(self.state, SendState::Idle);
                if *sent_bytes < bytes.len() && is_wanted {
                    self.state = SendState::UnderWay(key);
                    return false;
                }
                Ok(std::mem::take(bytes))
            }
            Err(error) => Err(error),
        };
        self.state = SendState::Done(done);
        self.wake();
        true
    }

    /// The posted bytes are in the kernel.
    pub(crate) fn settled(&mut self) {
        if matches!(self.state, SendState::Posted) {
            self.state = SendState::Idle;
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

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
    /// Key of the send operation.
    UnderWay(usize),
    /// The socket's send buffer is full.
    Blocked {
        bytes: Vec<u8>,
        sent_bytes: usize,
    },
    Done(io::Result<Vec<u8>>),
}

impl Outflow {
    /// Stores the result of a completion. False if there are more bytes to send.
    pub(crate) fn sent(
        &mut self,
        sent: io::Result<usize>,
        bytes: &mut Vec<u8>,
        sent_bytes: &mut usize,
    ) -> bool {
        let done = match sent {
            Ok(count) => {
                *sent_bytes += count;
                if *sent_bytes < bytes.len() && matches!(self.state, SendState::UnderWay(_)) {
                    return false;
                }
                Ok(std::mem::take(bytes))
            }
            Err(error) => Err(error),
        };
        self.state = SendState::Done(done);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
        true
    }
}

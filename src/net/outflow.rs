//! What one socket is sending: one buffer at a time.

use std::io;
use std::task::Waker;

/// What one socket is sending. Plain data.
#[derive(Debug, Default)]
pub(crate) struct Outflow {
    pub(crate) state: SendState,
    pub(crate) waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(crate) enum SendState {
    #[default]
    Idle,
    /// The operation that sends.
    UnderWay(usize),
    /// Waits for room in the socket.
    Blocked {
        bytes: Vec<u8>,
        sent_bytes: usize,
    },
    Done(io::Result<Vec<u8>>),
}

impl Outflow {
    /// Takes what a completion says. False if there is more to send.
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

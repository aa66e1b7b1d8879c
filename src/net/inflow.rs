//! Received bytes of a socket: a short queue of chunks.

use super::BufferPool;
use std::collections::VecDeque;
use std::io;
use std::task::Waker;

/// Received chunks of a socket that its owner has not taken. Plain data.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    pub(crate) waiting: VecDeque<Vec<u8>>,
    end: Option<StreamEnd>,
    /// Key of the receive operation.
    pub(crate) key: Option<usize>,
    is_pausing: bool,
    /// No operation may bring more than a single chunk: the next bytes are received in place.
    is_in_place: bool,
    /// The receiver was dropped: further chunks are discarded.
    pub(crate) is_dropped: bool,
    pub(crate) waker: Option<Waker>,
}

#[derive(Debug)]
enum StreamEnd {
    Closed,
    Broken(io::Error),
}

impl Inflow {
    /// Stores the result of a completion. True: the operation must be cancelled for now.
    pub(crate) fn receive(
        &mut self,
        chunk: io::Result<Option<Vec<u8>>>,
        pool: &BufferPool,
    ) -> bool {
        match chunk {
            Ok(Some(chunk)) if self.is_dropped => pool.give(chunk),
            Ok(Some(chunk)) if chunk.is_empty() => {
                pool.give(chunk);
                self.end.get_or_insert(StreamEnd::Closed);
            }
            Ok(Some(chunk)) => self.push(chunk, pool),
            Ok(None) => {}
            Err(error) => self.end = Some(StreamEnd::Broken(error)),
        }
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
        let is_full = self.key.is_some() && self.waiting.len() >= pool.chunks_ahead_max();
        is_full && !std::mem::replace(&mut self.is_pausing, true)
    }

    /// The receive operation has ended. True: it must be submitted again.
    pub(crate) fn ended(&mut self, pool: &BufferPool) -> bool {
        self.is_pausing = false;
        let has_room = !pool.is_tight() && self.waiting.len() < pool.chunks_ahead_max();
        let is_wanted = self.key.is_some() && !self.is_in_place && !self.is_dropped;
        let goes_on = has_room && is_wanted && self.end.is_none();
        if !goes_on {
            self.key = None;
        }
        goes_on
    }

    /// Sets whether the next bytes are received in place. Returns the operation to cancel for that.
    pub(crate) fn set_in_place(&mut self, is_in_place: bool) -> Option<usize> {
        let was_in_place = std::mem::replace(&mut self.is_in_place, is_in_place);
        let begins = is_in_place && !was_in_place;
        self.key.filter(|_| begins && !std::mem::replace(&mut self.is_pausing, true))
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// True if a receive operation runs and is not being cancelled.
    pub(crate) fn is_received(&self) -> bool {
        self.key.is_some() && !self.is_pausing
    }

    /// Queues a chunk; a chunk that fits into the last chunk's spare room is appended there.
    fn push(&mut self, chunk: Vec<u8>, pool: &BufferPool) {
        match self.waiting.back_mut() {
            Some(last) if last.capacity() - last.len() >= chunk.len() => {
                last.extend_from_slice(&chunk);
                pool.give(chunk);
            }
            _ => {
                pool.waits(&chunk);
                self.waiting.push_back(chunk);
            }
        }
    }

    pub(crate) fn take(&mut self, pool: &BufferPool) -> Option<io::Result<Vec<u8>>> {
        if let Some(chunk) = self.waiting.pop_front() {
            pool.is_taken(&chunk);
            return Some(Ok(chunk));
        }
        match std::mem::replace(self.end.as_mut()?, StreamEnd::Closed) {
            StreamEnd::Closed => Some(Ok(Vec::new())),
            StreamEnd::Broken(error) => Some(Err(error)),
        }
    }

    pub(crate) fn has_some(&self) -> bool {
        !self.waiting.is_empty() || self.end.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Inflow;

    #[test]
    fn receiving_in_place_ends_the_operation_once_and_ends_itself() {
        let mut flow = Inflow { key: Some(3), ..Inflow::default() };
        assert_eq!(flow.set_in_place(true), Some(3));
        assert_eq!(flow.set_in_place(true), None, "it is being ended");
        assert_eq!(flow.set_in_place(false), None);
        assert!(!flow.is_in_place());
    }
}

//! The peers that read this router's messages at `GET /replicas/messages`. A slow reader loses
//! messages and holds nobody up. Limits: [`PEER_READERS_MAX`] readers, for each
//! [`REPLICA_MESSAGES_MAX`] messages and [`PEER_UNREAD_BYTES_MAX`] bytes that it has not read.

use super::wire::ReplicaId;
use bytes::Bytes;
use forebay_base::limits::{PEER_READERS_MAX, PEER_UNREAD_BYTES_MAX, REPLICA_MESSAGES_MAX};
use futures_util::Stream;
use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, TryAcquireError};

/// Why a reader gets no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeRefused {
    /// `replicas.peers` is empty here.
    NoPeers,
    /// The reader is this router.
    Own,
    /// [`PEER_READERS_MAX`] others read already.
    TooMany,
}

/// All readers of this router's messages.
#[derive(Debug, Default)]
pub(crate) struct MessageReaders(RefCell<Vec<MessageReader>>);

#[derive(Debug)]
struct MessageReader {
    /// `None`: a person looks on.
    replica: Option<ReplicaId>,
    lines: Sender<Bytes>,
    /// A permit for each byte that may be put in.
    room: Arc<Semaphore>,
}

/// Messages for one reader, as lines.
#[derive(Debug)]
pub struct MessageStream {
    lines: Receiver<Bytes>,
    room: Arc<Semaphore>,
}

impl MessageReaders {
    /// A further reader. A replica that connects again takes its own place.
    pub(crate) fn add(
        &self,
        replica: Option<ReplicaId>,
    ) -> Result<MessageStream, SubscribeRefused> {
        let mut all = self.0.borrow_mut();
        let is_same = |other: &MessageReader| replica.is_some() && other.replica == replica;
        all.retain(|other| !other.lines.is_closed() && !is_same(other));
        if all.len() >= PEER_READERS_MAX {
            return Err(SubscribeRefused::TooMany);
        }
        let (sender, lines) = channel(REPLICA_MESSAGES_MAX);
        let bytes_max = usize::try_from(PEER_UNREAD_BYTES_MAX).unwrap_or(usize::MAX);
        let room = Arc::new(Semaphore::new(bytes_max));
        all.push(MessageReader { replica, lines: sender, room: Arc::clone(&room) });
        Ok(MessageStream { lines, room })
    }

    /// Puts a line before all readers. True if there is one, and each had room.
    pub(crate) fn send(&self, line: &Bytes) -> bool {
        let mut all = self.0.borrow_mut();
        all.retain(|reader| !reader.lines.is_closed());
        let sent = all.iter().filter(|reader| reader.put(line)).count();
        sent > 0 && sent == all.len()
    }

    /// The replicas that read here; `None` for a person.
    pub(crate) fn replicas(&self) -> Vec<Option<ReplicaId>> {
        let all = self.0.borrow();
        all.iter().filter(|reader| !reader.lines.is_closed()).map(|reader| reader.replica).collect()
    }

    /// True while a reader has something left to read.
    pub(crate) fn have_unread(&self) -> bool {
        let has_unread =
            |reader: &MessageReader| reader.lines.capacity() < reader.lines.max_capacity();
        self.0.borrow().iter().any(|reader| !reader.lines.is_closed() && has_unread(reader))
    }

    /// Ends all streams, behind what was put into them.
    pub(crate) fn end(&self) {
        self.0.borrow_mut().clear();
    }
}

impl MessageReader {
    fn put(&self, line: &Bytes) -> bool {
        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX);
        match self.room.try_acquire_many(bytes) {
            Ok(room) => {
                let is_put = self.lines.try_send(line.clone()).is_ok();
                if is_put {
                    // The reader gives it back.
                    room.forget();
                }
                is_put
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => false,
        }
    }
}

impl Stream for MessageStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.lines.poll_recv(context).map(|line| {
            let line = line?;
            self.room.add_permits(line.len());
            Some(Ok(line))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};

    fn next(stream: &mut MessageStream) -> Option<Bytes> {
        stream.next().now_or_never().flatten().map(|line| line.unwrap_or_default())
    }

    #[test]
    fn a_slow_reader_loses_messages_and_no_other_does() {
        let readers = MessageReaders::default();
        let line = Bytes::from(vec![b'x'; 1 << 20]);
        assert!(!readers.send(&line), "nobody reads");
        let mut slow = readers.add(Some(ReplicaId(1))).unwrap();
        let mut fast = readers.add(Some(ReplicaId(2))).unwrap();
        for number in 0..6 {
            assert_eq!(readers.send(&line), number < 4, "4 MiB");
            assert!(next(&mut fast).is_some());
        }
        assert!((0..4).all(|_| next(&mut slow).is_some()) && next(&mut slow).is_none());
        assert!(!readers.have_unread());
        let short = Bytes::from_static(b"v1.bye {}\n");
        let sent = (0..REPLICA_MESSAGES_MAX + 1).filter(|_| readers.send(&short)).count();
        assert_eq!(sent, REPLICA_MESSAGES_MAX);
        assert!(readers.have_unread());
        drop(slow);
        readers.end();
        let rest = std::iter::from_fn(|| next(&mut fast)).count();
        assert_eq!(rest, REPLICA_MESSAGES_MAX, "what was put in is read");
    }

    #[test]
    fn a_replica_that_comes_again_takes_its_own_place() {
        let readers = MessageReaders::default();
        let add = |number: usize| readers.add(Some(ReplicaId(number as u64)));
        let mut streams: Vec<_> = (0..PEER_READERS_MAX).map(|id| add(id).unwrap()).collect();
        assert!(matches!(add(99), Err(SubscribeRefused::TooMany)));
        assert!(matches!(readers.add(None), Err(SubscribeRefused::TooMany)));
        let _again = add(3).unwrap();
        assert_eq!(streams[3].next().now_or_never(), Some(None), "the stream of before ends");
        assert_eq!(readers.replicas().len(), PEER_READERS_MAX);
        drop(streams);
        assert_eq!(readers.replicas(), [Some(ReplicaId(3))]);
    }
}

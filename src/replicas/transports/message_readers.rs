//! The peers that read this router's messages at `GET /replicas/messages`. A slow reader loses
//! messages and delays no other reader. Limits: [`PEER_READERS_MAX`] readers, each with
//! [`REPLICA_MESSAGES_MAX`] unread messages and [`PEER_UNREAD_BYTES_MAX`] unread bytes.

use crate::wire::ReplicaId;
use bytes::Bytes;
use forebay_base::NanosSinceStart;
use forebay_base::limits::{
    PEER_READERS_MAX, PEER_UNREAD_BYTES_MAX, PEER_WATCHERS_MAX, REPLICA_MESSAGES_MAX,
};
use futures_util::Stream;
use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, TryAcquireError};

/// Without messages of a reader for this long, this router does not list the reader as a peer, or
/// cannot reach it.
const UNHEARD_AFTER: Duration = Duration::from_secs(5);

/// Reason to refuse a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeError {
    /// This router has no `replicas.peers`.
    NoPeers,
    /// The reader is this router.
    Own,
    /// [`PEER_READERS_MAX`] routers, or [`PEER_WATCHERS_MAX`] other clients, read already.
    TooMany,
}

/// All readers of this router's messages.
#[derive(Debug, Default)]
pub(crate) struct MessageReaders(RefCell<Vec<MessageReader>>);

#[derive(Debug)]
struct MessageReader {
    /// `None` for an operator.
    replica: Option<ReplicaId>,
    lines: Sender<Bytes>,
    /// A permit per byte that may be queued.
    room: Arc<Semaphore>,
    since: NanosSinceStart,
    /// The missing messages of this router were logged.
    is_logged: bool,
}

/// Messages for a reader, as lines.
#[derive(Debug)]
pub struct MessageStream {
    lines: Receiver<Bytes>,
    room: Arc<Semaphore>,
}

impl MessageReaders {
    /// Adds a reader. No reader can end the stream of a replica that `is_heard`: an id is no proof.
    /// If all places are taken, a router replaces the first reader without messages.
    pub(crate) fn add(
        &self,
        replica: Option<ReplicaId>,
        is_heard: impl Fn(ReplicaId) -> bool,
        now: NanosSinceStart,
    ) -> Result<MessageStream, SubscribeError> {
        let mut all = self.0.borrow_mut();
        all.retain(|other| !other.lines.is_closed());
        let watchers = all.iter().filter(|other| other.replica.is_none()).count();
        if replica.is_none() && watchers >= PEER_WATCHERS_MAX {
            return Err(SubscribeError::TooMany);
        }
        if all.len() >= PEER_READERS_MAX {
            let unheard = all.iter().position(|other| !other.replica.is_some_and(&is_heard));
            all.remove(unheard.filter(|_| replica.is_some()).ok_or(SubscribeError::TooMany)?);
        }
        let (sender, lines) = channel(REPLICA_MESSAGES_MAX);
        let bytes_max = usize::try_from(PEER_UNREAD_BYTES_MAX).unwrap_or(usize::MAX);
        let room = Arc::new(Semaphore::new(bytes_max));
        let reader = MessageReader {
            replica,
            lines: sender,
            room: Arc::clone(&room),
            since: now,
            is_logged: false,
        };
        all.push(reader);
        Ok(MessageStream { lines, room })
    }

    /// Queues a line for all readers. True if there is a reader, and each had room.
    pub(crate) fn send(&self, line: &Bytes) -> bool {
        let mut all = self.0.borrow_mut();
        all.retain(|reader| !reader.lines.is_closed());
        let sent = all.iter().filter(|reader| reader.put(line)).count();
        sent > 0 && sent == all.len()
    }

    /// The replicas that read here; `None` for an operator.
    pub(crate) fn replicas(&self) -> Vec<Option<ReplicaId>> {
        let all = self.0.borrow();
        all.iter().filter(|reader| !reader.lines.is_closed()).map(|reader| reader.replica).collect()
    }

    /// Routers that have read here for [`UNHEARD_AFTER`] without sending messages; each stream is
    /// returned once.
    pub(crate) fn unheard(
        &self,
        is_heard: impl Fn(ReplicaId) -> bool,
        now: NanosSinceStart,
    ) -> Vec<ReplicaId> {
        let mut all = self.0.borrow_mut();
        let late = all.iter_mut().filter(|reader| {
            !reader.is_logged && !reader.lines.is_closed() && now > reader.since.plus(UNHEARD_AFTER)
        });
        let mut unheard = Vec::new();
        for reader in late {
            if let Some(id) = reader.replica.filter(|id| !is_heard(*id)) {
                reader.is_logged = true;
                unheard.push(id);
            }
        }
        unheard
    }

    /// True while a reader has unread messages.
    pub(crate) fn have_unread(&self) -> bool {
        let has_unread =
            |reader: &MessageReader| reader.lines.capacity() < reader.lines.max_capacity();
        self.0.borrow().iter().any(|reader| !reader.lines.is_closed() && has_unread(reader))
    }

    /// Ends all streams after their queued messages.
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
                    // The reader releases it.
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
        let mut slow = readers.add(Some(ReplicaId(1)), |_| true, NOW).unwrap();
        let mut fast = readers.add(Some(ReplicaId(2)), |_| true, NOW).unwrap();
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

    const NOW: NanosSinceStart = NanosSinceStart(1);

    #[test]
    fn no_call_ends_the_stream_of_a_replica_that_is_heard() {
        let readers = MessageReaders::default();
        let is_heard = |id: ReplicaId| id.0 < 2;
        let add = |number: usize| readers.add(Some(ReplicaId(number as u64)), is_heard, NOW);
        let mut heard = [0, 1].map(|id| add(id).unwrap());
        let mut again = add(1).unwrap();
        assert_eq!(heard[1].next().now_or_never(), None, "its stream goes on beside the other");
        let others: Vec<_> = (3..PEER_READERS_MAX).map(|id| add(id).unwrap()).collect();
        let _watcher = readers.add(None, is_heard, NOW);
        assert_eq!(readers.replicas().len(), PEER_READERS_MAX);
        let strangers: Vec<_> = (100..200).map(|id| add(id).unwrap()).collect();
        assert_eq!(readers.replicas().len(), PEER_READERS_MAX);
        for stream in heard.iter_mut().chain([&mut again]) {
            assert_eq!(stream.next().now_or_never(), None);
        }
        drop((others, strangers));
        assert_eq!(readers.replicas(), [0, 1, 1].map(|id| Some(ReplicaId(id))));
    }

    #[test]
    fn places_that_replicas_hold_are_theirs_and_watchers_have_few() {
        let readers = MessageReaders::default();
        let add = |replica| readers.add(replica, |_| true, NOW);
        let watchers: Vec<_> = (0..PEER_WATCHERS_MAX).map(|_| add(None).unwrap()).collect();
        assert!(matches!(add(None), Err(SubscribeError::TooMany)));
        let replicas: Vec<_> =
            (0..PEER_READERS_MAX as u64).map(|id| add(Some(ReplicaId(id))).unwrap()).collect();
        assert!(watchers.iter().all(|watcher| watcher.lines.is_closed()), "routers come first");
        assert!(matches!(add(Some(ReplicaId(99))), Err(SubscribeError::TooMany)));
        drop(replicas);
        assert!(add(None).is_ok());
    }

    #[test]
    fn a_router_that_is_not_heard_is_named_once() {
        let readers = MessageReaders::default();
        let is_heard = |id: ReplicaId| id.0 == 1;
        let ids = [Some(ReplicaId(1)), Some(ReplicaId(2)), None];
        let streams = ids.map(|id| readers.add(id, is_heard, NOW).unwrap());
        let late = NOW.plus(UNHEARD_AFTER);
        assert_eq!(readers.unheard(is_heard, late), []);
        let later = late.plus(Duration::from_millis(1));
        assert_eq!(readers.unheard(is_heard, later), [ReplicaId(2)]);
        assert_eq!(readers.unheard(is_heard, later), []);
        drop(streams);
    }
}

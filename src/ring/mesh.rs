//! A queue for every ordered pair of shards: shard A posts to shard B without sharing a queue with
//! C. Full: the message comes back and the sender counts it. The caller rings the receiver's bell,
//! so that several messages cost a single ring.

use super::spsc::{Consumer, Producer, spsc};
use forebay_base::ShardIndex;

/// Both ends of a shard. The halves are separate so that a task can receive while other tasks send.
#[derive(Debug)]
pub struct MeshPort<T> {
    /// To every other shard.
    pub sender: MeshSender<T>,
    /// From every other shard.
    pub receiver: MeshReceiver<T>,
}

/// Sends to the other shards.
#[derive(Debug)]
pub struct MeshSender<T> {
    /// Indexed by the receiving shard; `None` at the shard's own place.
    to: Vec<Option<Producer<T>>>,
}

/// Receives from the other shards.
#[derive(Debug)]
pub struct MeshReceiver<T> {
    from: Vec<(ShardIndex, Consumer<T>)>,
    /// Start of the next search, so that a busy sender does not hide the senders after it.
    next: usize,
}

/// Makes the ports of `shard_count` shards, in shard order, with room for `capacity` messages in
/// each queue.
#[must_use]
pub fn mesh<T: Send>(shard_count: usize, capacity: usize) -> Vec<MeshPort<T>> {
    let mut ports: Vec<MeshPort<T>> = (0..shard_count)
        .map(|_| MeshPort {
            sender: MeshSender { to: Vec::with_capacity(shard_count) },
            receiver: MeshReceiver { from: Vec::with_capacity(shard_count), next: 0 },
        })
        .collect();
    for from in (0..shard_count).filter_map(ShardIndex::try_from_index) {
        let mut to = Vec::with_capacity(shard_count);
        for (index, port) in ports.iter_mut().enumerate() {
            if index == from.index() {
                to.push(None);
                continue;
            }
            let (producer, consumer) = spsc(capacity);
            to.push(Some(producer));
            port.receiver.from.push((from, consumer));
        }
        if let Some(port) = ports.get_mut(from.index()) {
            port.sender.to = to;
        }
    }
    ports
}

impl<T> MeshSender<T> {
    /// Posts to another shard; gives the message back when its queue is full or `to` is no other
    /// shard.
    pub fn send(&mut self, to: ShardIndex, message: T) -> Result<(), T> {
        match self.to.get_mut(to.index()) {
            Some(Some(producer)) => producer.push(message),
            _ => Err(message),
        }
    }

    /// The other shards, in order.
    pub fn peers(&self) -> impl Iterator<Item = ShardIndex> + '_ {
        let peer = |(index, producer): (usize, &Option<Producer<T>>)| {
            producer.as_ref().and_then(|_| ShardIndex::try_from_index(index))
        };
        self.to.iter().enumerate().filter_map(peer)
    }
}

impl<T> MeshReceiver<T> {
    /// The next message and its sender. Takes turns between senders with waiting messages.
    pub fn receive(&mut self) -> Option<(ShardIndex, T)> {
        for _ in 0..self.from.len() {
            if self.next >= self.from.len() {
                self.next = 0;
            }
            let (from, consumer) = self.from.get_mut(self.next)?;
            self.next += 1;
            if let Some(message) = consumer.pop() {
                return Some((*from, message));
            }
        }
        None
    }

    /// True when no sender has a waiting message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.iter().all(|(_, consumer)| consumer.is_empty())
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    #[test]
    fn every_ordered_pair_has_its_own_queue() {
        let mut ports = mesh::<(u16, u16)>(3, 2);
        for from in 0..3_u16 {
            for to in 0..3_u16 {
                let sent = ports[usize::from(from)].sender.send(ShardIndex(to), (from, to));
                assert_eq!(sent.is_ok(), from != to);
            }
        }
        for to in 0..3_u16 {
            let port = &mut ports[usize::from(to)];
            let peers: Vec<_> = port.sender.peers().collect();
            let expected: Vec<_> = (0..3).filter(|from| *from != to).map(ShardIndex).collect();
            assert_eq!(peers, expected);
            assert!(!port.receiver.is_empty());
            for from in expected {
                assert_eq!(port.receiver.receive(), Some((from, (from.0, to))));
            }
            assert!(port.receiver.is_empty());
            assert_eq!(port.receiver.receive(), None);
        }
    }

    #[test]
    fn a_full_queue_gives_the_message_back_and_others_still_get_theirs() {
        let mut ports = mesh::<u8>(3, 1);
        let sender = &mut ports[0].sender;
        assert_eq!(sender.send(ShardIndex(1), 1), Ok(()));
        assert_eq!(sender.send(ShardIndex(1), 2), Err(2));
        assert_eq!(sender.send(ShardIndex(2), 3), Ok(()));
        assert_eq!(sender.send(ShardIndex(9), 4), Err(4));
    }

    #[test]
    fn senders_take_turns() {
        let mut ports = mesh::<u8>(3, 4);
        for _ in 0..2 {
            assert_eq!(ports[0].sender.send(ShardIndex(2), 0), Ok(()));
            assert_eq!(ports[1].sender.send(ShardIndex(2), 1), Ok(()));
        }
        let mut order = Vec::new();
        while let Some((from, _)) = ports[2].receiver.receive() {
            order.push(from.0);
        }
        assert_eq!(order, [0, 1, 0, 1]);
    }

    #[test]
    fn one_shard_has_no_peers() {
        let mut ports = mesh::<u8>(1, 4);
        assert_eq!(ports[0].sender.peers().count(), 0);
        assert!(ports[0].receiver.is_empty());
        assert_eq!(ports[0].receiver.receive(), None);
    }
}

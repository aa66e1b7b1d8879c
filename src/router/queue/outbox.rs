//! Messages of a shard that must not be lost while their ring is full. Each receiver gets its
//! messages in the order of posting: a `Leave` never passes its `Join`.

use forebay_base::ShardIndex;
use std::collections::VecDeque;

/// Unsent messages, by receiving shard. Bounded by the requests in flight: each request has at most
/// 1 wait, and per attempt 1 prefill leg with its cancellation and its end. A leg holds its whole
/// body, which `limits.buffered_bytes_max` counts; its end holds at most
/// `PREFILL_ANSWER_BYTES_MAX` or an engine's error.
#[derive(Debug)]
pub struct Outbox<M> {
    unsent: Vec<VecDeque<M>>,
}

impl<M> Outbox<M> {
    #[must_use]
    pub fn new(shard_count: usize) -> Self {
        Self { unsent: (0..shard_count).map(|_| VecDeque::new()).collect() }
    }

    /// Sends a message, or stores it behind earlier unsent messages. True if it was sent. A message
    /// to a shard that does not exist is dropped.
    pub fn post(
        &mut self,
        to: ShardIndex,
        message: M,
        send: impl FnOnce(M) -> Result<(), M>,
    ) -> bool {
        let Some(unsent) = self.unsent.get_mut(to.index()) else { return false };
        // Behind stored messages even if the ring has room again: a `Leave` that passes its `Join`
        // finds no request, and the `Join` then waits until its deadline.
        let back = if unsent.is_empty() { send(message) } else { Err(message) };
        match back {
            Ok(()) => true,
            Err(message) => {
                unsent.push_back(message);
                false
            }
        }
    }

    /// Sends stored messages while the rings have room. Calls `sent` for each shard that received
    /// any.
    pub fn flush(
        &mut self,
        mut send: impl FnMut(ShardIndex, M) -> Result<(), M>,
        mut sent: impl FnMut(ShardIndex),
    ) {
        for (index, unsent) in self.unsent.iter_mut().enumerate() {
            let Some(to) = ShardIndex::try_from_index(index) else { continue };
            let before = unsent.len();
            while let Some(message) = unsent.pop_front() {
                if let Err(back) = send(to, message) {
                    unsent.push_front(back);
                    break;
                }
            }
            debug_assert!(unsent.len() <= before, "a flush that adds");
            if unsent.len() < before {
                sent(to);
            }
        }
    }

    /// True if no message is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unsent.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_while_a_ring_is_full_and_after() {
        let mut outbox = Outbox::new(2);
        let mut ring = Vec::new();
        let to = ShardIndex(1);
        assert!(outbox.post(to, 1, |message| {
            ring.push(message);
            Ok(())
        }));
        assert!(!outbox.post(to, 2, Err));
        assert!(!outbox.post(to, 3, |_| Ok(())), "2 goes first");
        let mut receivers = Vec::new();
        outbox.flush(|_, message| Err(message), |to| receivers.push(to));
        assert!(receivers.is_empty() && !outbox.is_empty());
        let mut room = 1;
        let mut send = |_, message| {
            if room == 0 {
                return Err(message);
            }
            room -= 1;
            ring.push(message);
            Ok(())
        };
        outbox.flush(&mut send, |to| receivers.push(to));
        assert!(!outbox.is_empty());
        let send = |_, message| {
            ring.push(message);
            Ok(())
        };
        outbox.flush(send, |to| receivers.push(to));
        assert_eq!((ring, receivers), (vec![1, 2, 3], vec![to, to]));
        assert!(outbox.is_empty());
        assert!(!outbox.post(ShardIndex(2), 4, |_| Ok(())), "no such shard");
    }
}

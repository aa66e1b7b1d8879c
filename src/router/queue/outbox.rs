//! Messages of one shard that must not be lost, while their ring is full. Each receiver gets its
//! messages in the order in which they were posted: a `Leave` never passes its `Join`.

use forebay_base::ShardIndex;
use std::collections::VecDeque;

/// What found no room yet, by receiving shard. Bounded by the requests in flight: each has at most
/// one wait to tell of, and for each attempt one prefill leg, its cancellation and its end. A leg
/// holds its whole body, which `limits.buffered_bytes_max` counts; its end holds at most
/// `PREFILL_ANSWER_BYTES_MAX` or an engine's error.
#[derive(Debug)]
pub struct Outbox<M> {
    unsent: Vec<VecDeque<M>>,
}

impl<M> Outbox<M> {
    /// Nothing is kept for any of so many shards.
    #[must_use]
    pub fn new(shard_count: usize) -> Self {
        Self { unsent: (0..shard_count).map(|_| VecDeque::new()).collect() }
    }

    /// Sends a message, or keeps it behind those that are kept already. True if it was sent; a
    /// message to a shard that there is not is dropped.
    pub fn post(
        &mut self,
        to: ShardIndex,
        message: M,
        send: impl FnOnce(M) -> Result<(), M>,
    ) -> bool {
        let Some(unsent) = self.unsent.get_mut(to.index()) else { return false };
        // Behind what is kept, also when the ring has room again: a `Leave` that passes its `Join`
        // finds nobody, and the `Join` then waits until its deadline.
        let back = if unsent.is_empty() { send(message) } else { Err(message) };
        match back {
            Ok(()) => true,
            Err(message) => {
                unsent.push_back(message);
                false
            }
        }
    }

    /// Sends what was kept, as far as there is room now. `sent` hears of each shard that got
    /// something.
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

    /// True when nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unsent.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_while_a_ring_is_full_and_after() {
        let mut outbox = Outbox::new(2);
        let mut ring = Vec::new();
        let to = ShardIndex(1);
        assert!(outbox.post(to, 1, |message| {
            ring.push(message);
            Ok(())
        }));
        assert!(!outbox.post(to, 2, Err));
        assert!(!outbox.post(to, 3, |_| Ok(())), "2 goes first");
        let mut told = Vec::new();
        outbox.flush(|_, message| Err(message), |to| told.push(to));
        assert!(told.is_empty() && !outbox.is_empty());
        let mut room = 1;
        let mut send = |_, message| {
            if room == 0 {
                return Err(message);
            }
            room -= 1;
            ring.push(message);
            Ok(())
        };
        outbox.flush(&mut send, |to| told.push(to));
        assert!(!outbox.is_empty());
        let send = |_, message| {
            ring.push(message);
            Ok(())
        };
        outbox.flush(send, |to| told.push(to));
        assert_eq!((ring, told), (vec![1, 2, 3], vec![to, to]));
        assert!(outbox.is_empty());
        assert!(!outbox.post(ShardIndex(2), 4, |_| Ok(())), "no such shard");
    }
}

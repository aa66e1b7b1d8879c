//! The slots of the requests of one shard that wait for another one: in a queue that is at home
//! there, or for a leg that is sent there. A verdict finds its request by the ticket; one that
//! comes too late finds nobody, and its lease is given back by being dropped.

use forebay_base::ShardIndex;
use forebay_fleet::mailbox::{PrefillEnded, PrefillFault, Ticket, Verdict};
use std::task::{Context, Poll, Waker};

/// All slots of one shard, for those who wait for a `V`. At most as many as the shard has requests
/// in flight.
#[derive(Debug)]
pub struct WaitTable<V = Verdict> {
    shard: ShardIndex,
    slots: Vec<WaitSlot<V>>,
    free: Vec<u32>,
}

/// What a wait without a slot ends with.
#[derive(Clone, Copy, Debug)]
pub struct NoWait;

impl From<NoWait> for PrefillEnded {
    fn from(_: NoWait) -> Self {
        Self::Failed(PrefillFault::Cancelled)
    }
}

impl From<NoWait> for Verdict {
    fn from(_: NoWait) -> Self {
        Self::Reroute
    }
}

#[derive(Debug)]
struct WaitSlot<V> {
    life: u32,
    taken: bool,
    verdict: Option<V>,
    waker: Option<Waker>,
}

impl<V: From<NoWait>> WaitTable<V> {
    /// Nobody waits.
    #[must_use]
    pub const fn new(shard: ShardIndex) -> Self {
        Self { shard, slots: Vec::new(), free: Vec::new() }
    }

    /// A slot for one wait; [`Self::close`] it at the end.
    pub fn open(&mut self) -> Ticket {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(WaitSlot { life: 0, taken: false, verdict: None, waker: None });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut life = 0;
        if let Some(slot) = self.slot(number) {
            debug_assert!(!slot.taken && slot.verdict.is_none(), "a slot for two");
            slot.taken = true;
            // Another life each time: a verdict for the last wait must not end this one.
            slot.life = slot.life.wrapping_add(1);
            life = slot.life;
        }
        Ticket { shard: self.shard, slot: number, life }
    }

    /// Hands a verdict to who waits for it; false if nobody does: the verdict is dropped then, and
    /// its lease given back.
    pub fn deliver(&mut self, ticket: Ticket, verdict: V) -> bool {
        self.take_or_return(ticket, verdict).is_none()
    }

    /// The same, and gives back a verdict for which nobody waits.
    pub fn take_or_return(&mut self, ticket: Ticket, verdict: V) -> Option<V> {
        let Some(slot) = self.of(ticket).filter(|slot| slot.verdict.is_none()) else {
            return Some(verdict);
        };
        slot.verdict = Some(verdict);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
        None
    }

    /// Ready with the verdict once it is here.
    pub fn poll(&mut self, ticket: Ticket, cx: &Context<'_>) -> Poll<V> {
        // A ticket that is not open would wait for ever; there is none.
        let Some(slot) = self.of(ticket) else { return Poll::Ready(NoWait.into()) };
        if let Some(verdict) = slot.verdict.take() {
            return Poll::Ready(verdict);
        }
        match &slot.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => slot.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Ends a wait, whatever came of it; a verdict that nobody took is dropped.
    pub fn close(&mut self, ticket: Ticket) {
        if let Some(slot) = self.of(ticket) {
            slot.taken = false;
            slot.verdict = None;
            slot.waker = None;
            self.free.push(ticket.slot);
            debug_assert!(self.free.len() <= self.slots.len(), "more slots free than there are");
        }
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        debug_assert!(self.free.len() <= self.slots.len(), "more slots free than there are");
        self.slots.len().saturating_sub(self.free.len())
    }

    fn of(&mut self, ticket: Ticket) -> Option<&mut WaitSlot<V>> {
        self.slot(ticket.slot).filter(|slot| slot.taken && slot.life == ticket.life)
    }

    fn slot(&mut self, number: u32) -> Option<&mut WaitSlot<V>> {
        self.slots.get_mut(usize::try_from(number).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_reaches_its_wait_and_no_other() {
        let mut waits = WaitTable::new(ShardIndex(0));
        let cx = Context::from_waker(Waker::noop());
        let first = waits.open();
        assert!(waits.poll(first, &cx).is_pending());
        assert!(waits.deliver(first, Verdict::Reroute));
        assert!(!waits.deliver(first, Verdict::Reroute), "one verdict a wait");
        assert!(matches!(waits.poll(first, &cx), Poll::Ready(Verdict::Reroute)));
        waits.close(first);
        let second = waits.open();
        assert_eq!(second.slot, first.slot);
        assert!(!waits.deliver(first, Verdict::Reroute), "the slot has another life");
        assert_eq!(waits.waiting(), 1);
        waits.close(first);
        assert_eq!(waits.waiting(), 1, "closing twice takes nobody's slot");
        waits.close(second);
        assert_eq!(waits.waiting(), 0);
    }
}

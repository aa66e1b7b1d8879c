//! Slots of a shard's requests that wait for another shard: in a queue that it owns, or for a
//! prefill leg that it sends. The ticket leads a verdict to its request. A verdict that comes too
//! late finds no request, and dropping it returns its lease.

use forebay_base::ShardIndex;
use forebay_mailbox::{PrefillFault, PrefillOutcome, Ticket, Verdict};
use std::task::{Context, Poll, Waker};

/// All slots of a shard for waits that end with a `V`. At most as many as the shard has requests
/// in flight.
#[derive(Debug)]
pub struct WaitTable<V = Verdict> {
    shard: ShardIndex,
    slots: Vec<WaitSlot<V>>,
    free: Vec<u32>,
}

/// Converts into the result of a wait without a slot.
#[derive(Clone, Copy, Debug)]
pub struct NoWait;

impl From<NoWait> for PrefillOutcome {
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
    #[must_use]
    pub const fn new(shard: ShardIndex) -> Self {
        Self { shard, slots: Vec::new(), free: Vec::new() }
    }

    /// Opens a slot for a wait; [`Self::close`] it at the end.
    pub fn open(&mut self) -> Ticket {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(WaitSlot { life: 0, taken: false, verdict: None, waker: None });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut life = 0;
        if let Some(slot) = self.slot(number) {
            debug_assert!(!slot.taken && slot.verdict.is_none(), "a slot for two");
            slot.taken = true;
            // A new life each time: a verdict for the previous wait must not end this wait.
            slot.life = slot.life.wrapping_add(1);
            life = slot.life;
        }
        Ticket { shard: self.shard, slot: number, life }
    }

    /// Delivers a verdict to its waiting request. False: no request waits, and the verdict is
    /// dropped, which returns its lease.
    pub fn deliver(&mut self, ticket: Ticket, verdict: V) -> bool {
        self.take_or_return(ticket, verdict).is_none()
    }

    /// Delivers a verdict, or returns it if no request waits for it.
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

    /// Ready with the verdict once it has been delivered.
    pub fn poll(&mut self, ticket: Ticket, cx: &Context<'_>) -> Poll<V> {
        // A closed ticket would wait for ever. Callers never poll a closed ticket.
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

    /// Ends a wait, with or without a verdict. A verdict that was not polled is dropped.
    pub fn close(&mut self, ticket: Ticket) {
        if let Some(slot) = self.of(ticket) {
            slot.taken = false;
            slot.verdict = None;
            slot.waker = None;
            self.free.push(ticket.slot);
            debug_assert!(self.free.len() <= self.slots.len(), "more slots free than there are");
        }
    }

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

//! The seats of the requests of one shard that wait for another one: in a queue that is at home
//! there, or for a leg that is sent there. A verdict finds its request by the ticket; one that
//! comes too late finds nobody, and its lease is given back by being dropped.

use forebay_base::ShardIndex;
use forebay_fleet::mailbox::{PrefillEnded, PrefillFault, Ticket, Verdict};
use std::task::{Context, Poll, Waker};

/// All seats of one shard, for those who wait for a `V`. At most as many as the shard has requests
/// in flight.
#[derive(Debug)]
pub struct Desk<V = Verdict> {
    shard: ShardIndex,
    seats: Vec<Seat<V>>,
    free: Vec<u32>,
}

/// What a wait without a seat ends with.
#[derive(Clone, Copy, Debug)]
pub struct NoSeat;

impl From<NoSeat> for PrefillEnded {
    fn from(_: NoSeat) -> Self {
        Self::Failed(PrefillFault::Cancelled)
    }
}

impl From<NoSeat> for Verdict {
    fn from(_: NoSeat) -> Self {
        Self::Reroute
    }
}

#[derive(Debug)]
struct Seat<V> {
    life: u32,
    taken: bool,
    verdict: Option<V>,
    waker: Option<Waker>,
}

impl<V: From<NoSeat>> Desk<V> {
    /// Nobody waits.
    #[must_use]
    pub const fn new(shard: ShardIndex) -> Self {
        Self { shard, seats: Vec::new(), free: Vec::new() }
    }

    /// A seat for one wait; [`Self::close`] it at the end.
    pub fn open(&mut self) -> Ticket {
        let number = self.free.pop().unwrap_or_else(|| {
            self.seats.push(Seat { life: 0, taken: false, verdict: None, waker: None });
            u32::try_from(self.seats.len() - 1).unwrap_or(u32::MAX)
        });
        let mut life = 0;
        if let Some(seat) = self.seat(number) {
            seat.taken = true;
            seat.life = seat.life.wrapping_add(1);
            life = seat.life;
        }
        Ticket { shard: self.shard, seat: number, life }
    }

    /// Hands a verdict to who waits for it; false if nobody does: the verdict is dropped then, and
    /// its lease given back.
    pub fn deliver(&mut self, ticket: Ticket, verdict: V) -> bool {
        self.take_or_return(ticket, verdict).is_none()
    }

    /// The same, and gives back a verdict for which nobody waits.
    pub fn take_or_return(&mut self, ticket: Ticket, verdict: V) -> Option<V> {
        let Some(seat) = self.of(ticket).filter(|seat| seat.verdict.is_none()) else {
            return Some(verdict);
        };
        seat.verdict = Some(verdict);
        if let Some(waker) = seat.waker.take() {
            waker.wake();
        }
        None
    }

    /// Ready with the verdict once it is here.
    pub fn poll(&mut self, ticket: Ticket, cx: &Context<'_>) -> Poll<V> {
        // A ticket that is not open would wait for ever; there is none.
        let Some(seat) = self.of(ticket) else { return Poll::Ready(NoSeat.into()) };
        if let Some(verdict) = seat.verdict.take() {
            return Poll::Ready(verdict);
        }
        match &seat.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => seat.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Ends a wait, whatever came of it; a verdict that nobody took is dropped.
    pub fn close(&mut self, ticket: Ticket) {
        if let Some(seat) = self.of(ticket) {
            seat.taken = false;
            seat.verdict = None;
            seat.waker = None;
            self.free.push(ticket.seat);
        }
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    fn of(&mut self, ticket: Ticket) -> Option<&mut Seat<V>> {
        self.seat(ticket.seat).filter(|seat| seat.taken && seat.life == ticket.life)
    }

    fn seat(&mut self, number: u32) -> Option<&mut Seat<V>> {
        self.seats.get_mut(usize::try_from(number).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_reaches_its_wait_and_no_other() {
        let mut desk = Desk::new(ShardIndex(0));
        let cx = Context::from_waker(Waker::noop());
        let first = desk.open();
        assert!(desk.poll(first, &cx).is_pending());
        assert!(desk.deliver(first, Verdict::Reroute));
        assert!(!desk.deliver(first, Verdict::Reroute), "one verdict a wait");
        assert!(matches!(desk.poll(first, &cx), Poll::Ready(Verdict::Reroute)));
        desk.close(first);
        let second = desk.open();
        assert_eq!(second.seat, first.seat);
        assert!(!desk.deliver(first, Verdict::Reroute), "the seat has another life");
        assert_eq!(desk.waiting(), 1);
        desk.close(first);
        assert_eq!(desk.waiting(), 1, "closing twice takes nobody's seat");
        desk.close(second);
        assert_eq!(desk.waiting(), 0);
    }
}

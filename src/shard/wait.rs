//! queue for one request: it waits for a verdict of its queue's home, for the end of its time, or
//! for its client to leave, whichever comes first. However it ends, it is counted out of the queue
//! and its seat is given back.

use super::env::Env;
use super::pressure;
use super::routing::RoutingState;
use super::slot::Slot;
use super::standing;
use super::state::Shard;
use crate::ingress::Conn;
use forebay_base::{NanosSinceStart, QueueIndex, ShardIndex};
use forebay_fleet::account::{Count, Stage};
use forebay_fleet::mailbox::{MeshMessage, Ticket, Verdict, Waiter};
use forebay_fleet::worker::{Leg, QueueWanted};
use forebay_router::request::{RequestEvent, WaitEnd};
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// A shard that drains answers those who still wait so long before it cuts all connections.
const BEFORE_THE_CUT: Duration = Duration::from_millis(250);

/// A place in a queue. Gives everything back, whatever happens to the request.
pub(super) struct Seat<'a> {
    shard: &'a Shard,
    ticket: Ticket,
    queue: QueueIndex,
    wanted: QueueWanted,
    /// The home has let go of it.
    settled: Cell<bool>,
}

impl Seat<'_> {
    fn home(&self) -> ShardIndex {
        ShardIndex::try_from_index(self.shard.workers.board.home(self.queue))
            .unwrap_or(ShardIndex(0))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let Shard { env, workers, routing, .. } = self.shard;
        routing.stages.borrow_mut().waits.close(self.ticket);
        if let Some(cell) = workers.board.queue(self.queue) {
            cell.leave(self.wanted);
            pressure::relieve_queue(env, workers, routing, self.queue);
        }
        // The home forgets whom it gave a verdict. Told again, it would look at its queue for
        // nothing.
        if !self.settled.get() {
            let (queue, ticket) = (self.queue, self.ticket);
            self.shard.post(self.home(), MeshMessage::Leave { queue, ticket });
        }
    }
}

/// Waits in the queue that the request has been counted into: what has happened, and the place,
/// which is counted until it is dropped.
pub(super) async fn for_verdict<'a>(
    shard: &'a Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    waiter: Box<Waiter>,
    wanted: QueueWanted,
) -> (RequestEvent, Option<Seat<'a>>) {
    let (start, deadline, leg) = (waiter.joined_at, waiter.facts.deadline, waiter.leg);
    let seat = Seat {
        shard,
        ticket: waiter.ticket,
        queue: waiter.queue,
        wanted,
        settled: Cell::new(false),
    };
    // The guard is there before the message: whatever ends this task, the home hears of it.
    shard.post(seat.home(), MeshMessage::Join(waiter));
    let ended = told(shard, conn, slot, &seat, deadline).await;
    shard.env.time(Stage::Queue, start);
    seat.settled.set(ended.is_ok());
    match ended {
        // It looks for its prefill rank in another queue.
        Ok(Verdict::Granted(lease)) if leg == Leg::Decode => (RequestEvent::Granted(lease), None),
        Ok(Verdict::Granted(lease)) => (RequestEvent::Granted(lease), Some(seat)),
        Ok(Verdict::Reroute) => (RequestEvent::Reroute, Some(seat)),
        Err(end) => {
            match end {
                WaitEnd::Gone => shard.env.count(Count::QueueLeft),
                WaitEnd::Late => shard.env.count(Count::QueueExpired),
                WaitEnd::Draining => {}
            }
            (RequestEvent::WaitOver(end), None)
        }
    }
}

/// Waits until the deadline at the latest; a client that wants to know hears meanwhile where it
/// stands.
async fn told(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    seat: &Seat<'_>,
    deadline: NanosSinceStart,
) -> Result<Verdict, WaitEnd> {
    let env = &shard.env;
    let waiting = shard.workers.board.queue(seat.queue).map_or(1, |cell| cell.waiting());
    standing::queued(env, conn, slot, waiting).await.map_err(|_| WaitEnd::Gone)?;
    loop {
        let comment = slot.answer.early.begun().map(|begun| begun.next_at);
        let until = comment.map_or(deadline, |at| at.min(deadline));
        if let Some(ended) = verdict(env, &shard.routing, conn, seat.ticket, until).await {
            return ended;
        }
        if env.now() >= deadline {
            return Err(WaitEnd::Late);
        }
        if env.draining.is_set() && before_the_cut(env).is_zero() {
            return Err(WaitEnd::Draining);
        }
        standing::still_queued(env, conn, slot).await.map_err(|_| WaitEnd::Gone)?;
    }
}

/// `None`: it is time to look what to do next.
async fn verdict(
    env: &Env,
    routing: &RoutingState,
    conn: &mut Conn,
    ticket: Ticket,
    until: NanosSinceStart,
) -> Option<Result<Verdict, WaitEnd>> {
    let draining = env.draining.seat();
    let mut drains = false;
    conn.wait_at_most(Duration::from_nanos(until.since(env.now())));
    poll_fn(|cx| {
        if let Poll::Ready(verdict) = routing.stages.borrow_mut().waits.poll(ticket, cx) {
            return Poll::Ready(Some(Ok(verdict)));
        }
        if conn.poll_gone(cx).is_ready() {
            return Poll::Ready(Some(Err(WaitEnd::Gone)));
        }
        if !drains && draining.poll(cx).is_ready() {
            drains = true;
            let left = Duration::from_nanos(until.since(env.now()));
            conn.wait_at_most(left.min(before_the_cut(env)));
        }
        conn.poll_deadline(cx).map(|()| None)
    })
    .await
}

/// Until those who still wait are answered because the shard drains.
fn before_the_cut(env: &Env) -> Duration {
    let cut = env.drain_until.get().map_or(0, |until| until.since(env.now()));
    Duration::from_nanos(cut).saturating_sub(BEFORE_THE_CUT)
}

//! queue: a request waits for a verdict of its queue's home shard, for its deadline, or for its
//! client to leave. In each case the request is counted out of the queue and its seat is returned.

use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::relay::EarlyPart;
use crate::reply::early_head;
use crate::state::env::Env;
use crate::state::routing::RoutingState;
use crate::state::shard::Shard;
use forebay_base::NanosSinceStart;
use forebay_board::QueueDemand;
use forebay_board::account::{Count, Stage};
use forebay_mailbox::{MeshMessage, Ticket, Verdict, Waiter};
use forebay_router::request::{RequestEvent, Wait, WaitEnd};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// A draining shard answers waiting requests this long before it cuts all connections.
const BEFORE_THE_CUT: Duration = Duration::from_millis(250);

/// Place in a queue. Its drop leaves the queue, however the wait ends.
pub(crate) struct QueueSeat<'a> {
    shard: &'a Shard,
    wait: Wait,
}

impl Drop for QueueSeat<'_> {
    fn drop(&mut self) {
        let Shard { env, workers, routing, .. } = self.shard;
        let fleet = workers.fleet();
        let leave = routing.informed().end_wait(&self.wait, &fleet, env.now());
        if let Some(leave) = leave {
            self.shard.post(self.wait.home(&workers.board), leave);
        }
    }
}

/// Waits in the queue that the request was counted into. Returns the event, and the place, which
/// counts until it is dropped.
pub(crate) async fn for_verdict<'a>(
    shard: &'a Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    waiter: Box<Waiter>,
    wanted: QueueDemand,
) -> (RequestEvent, Option<QueueSeat<'a>>) {
    let start = waiter.joined_at;
    let mut seat = QueueSeat { shard, wait: Wait::new(&waiter, wanted) };
    // Create the guard before sending the message: however this task ends, the home shard receives
    // the leave.
    shard.post(seat.wait.home(&shard.workers.board), MeshMessage::Join(waiter));
    let ended = await_verdict(shard, conn, request, &seat.wait).await;
    shard.env.time(Stage::Queue, start);
    match ended {
        Err(WaitEnd::Gone) => shard.env.count(Count::QueueLeft),
        Err(WaitEnd::Late) => shard.env.count(Count::QueueExpired),
        Err(WaitEnd::Draining) | Ok(_) => {}
    }
    let (event, keeps_seat) = seat.wait.event(ended);
    (event, keeps_seat.then_some(seat))
}

/// Drops the prompt text of a waiting request: `limits.buffered_bytes_max` counts only bodies. A
/// recorder needs the text for its keys when the request is sent, so the text then stays.
pub(crate) fn drop_text(shard: &Shard, request: &mut Request<'_>) {
    if shard.workers.fleet().serving.notes.is_none() {
        shard.routing.text.give(&shard.io, request.prompt.drop_text());
    }
}

/// Waits until the deadline at most. Meanwhile sends queue comments to a client that asked for
/// them.
async fn await_verdict(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    &Wait { ticket, queue, deadline, .. }: &Wait,
) -> Result<Verdict, WaitEnd> {
    let env = &shard.env;
    let waiting = shard.workers.board.queue(queue).map_or(1, |cell| cell.waiting());
    early_head::queued(env, conn, request, waiting).await.map_err(|_| WaitEnd::Gone)?;
    loop {
        let comment = match &request.early {
            EarlyPart::Begun(begun) => Some(begun.comment_due_at),
            _ => None,
        };
        let until = comment.map_or(deadline, |at| at.min(deadline));
        if let Some(ended) = verdict(env, &shard.routing, conn, ticket, until).await {
            return ended;
        }
        if env.now() >= deadline {
            return Err(WaitEnd::Late);
        }
        if env.draining.is_set() && before_the_cut(env).is_zero() {
            return Err(WaitEnd::Draining);
        }
        early_head::still_queued(env, conn, request).await.map_err(|_| WaitEnd::Gone)?;
    }
}

/// `None` at `until`: time for a comment, or the deadline.
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

/// Time until the drain answers waiting requests.
fn before_the_cut(env: &Env) -> Duration {
    let cut = env.drain_until().map_or(0, |until| until.since(env.now()));
    Duration::from_nanos(cut).saturating_sub(BEFORE_THE_CUT)
}

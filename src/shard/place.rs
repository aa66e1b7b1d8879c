//! select and queue for one request: from what it asks for to a rank with room, now or after a
//! wait.

use super::choose::{self, Found, Queued};
use super::pressure;
use super::slot::Slot;
use super::state::Shard;
use super::target::{Chosen, Target};
use super::wait::{self, Seat};
use crate::account::Lease;
use crate::ingress::Conn;
use crate::mailbox::Verdict;
use crate::request::Stop;
use crate::worker::Leg;

/// What a request has already when it looks for what it lacks.
#[derive(Default)]
pub(super) struct Held<'a> {
    /// Its decode rank.
    decode: Option<Lease>,
    /// The last rank that it has waited for: nothing is left to choose.
    granted: Option<Lease>,
    /// Its place in the queue that it comes from.
    seat: Option<Seat<'a>>,
}

/// How far a request has come on its way to a rank.
pub(super) enum Placed<'a> {
    /// There.
    Chosen(Box<Chosen>),
    /// It has what it waited for.
    Waited(Held<'a>),
    /// A queue sent it on, or what it was granted has gone: it chooses again.
    Moved(Held<'a>),
}

/// A rank with room and its lease, or two of them, now or after a wait. At most one wait: who comes
/// out of it goes on with the fleet of that moment, which may have ranks and addresses that were
/// not there before.
pub(super) async fn place<'a>(
    shard: &'a Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    target: &Target<'_>,
    held: Held<'a>,
) -> Result<Placed<'a>, Stop> {
    let Held { decode, granted, seat } = held;
    let seated = seat.as_ref().map(Seat::seated);
    let found = match (granted, decode) {
        (Some(lease), decode) => Ok(choose::granted(shard, slot, target, lease, decode)),
        (None, Some(decode)) => choose::with_decode(shard, slot, target, seated, decode),
        (None, None) => choose::rank(shard, slot, target, seated),
    };
    let queued = match found.map_err(Stop::Refused)? {
        Found::Rank(chosen) => return Ok(Placed::Chosen(chosen)),
        Found::Again(decode) => return Ok(Placed::Moved(Held { decode, granted: None, seat })),
        Found::Queue(queued) => *queued,
    };
    // It has another one.
    drop(seat);
    let Queued { waiter, wanted, decode } = queued;
    let leg = waiter.leg;
    let gives_up_first = target.journey.client_deadline == Some(waiter.deadline);
    let waited = wait::for_verdict(shard, conn, slot, waiter, wanted, gives_up_first).await;
    let (verdict, seat) =
        waited.map_err(|stop| pressure::ended(shard, target.fleet, target.pool(leg), stop))?;
    Ok(match verdict {
        Verdict::Granted(lease) if leg == Leg::Decode => {
            Placed::Waited(Held { decode: Some(lease), ..Held::default() })
        }
        Verdict::Granted(lease) => {
            Placed::Waited(Held { decode, granted: Some(lease), seat: Some(seat) })
        }
        Verdict::Reroute => Placed::Moved(Held { decode, granted: None, seat: Some(seat) }),
    })
}

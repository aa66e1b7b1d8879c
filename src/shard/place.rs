//! select and queue for one request: from what it asks for to a rank with room, now or after a wait.

use super::choose::{self, Chosen, Found, Queued, Target};
use super::connection::Slot;
use super::request::Stop;
use super::state::Shard;
use super::{pressure, wait};
use crate::account::Lease;
use crate::ingress::Conn;
use crate::mailbox::Verdict;
use crate::worker::Leg;

/// How far a request has come on its way to a rank.
pub(super) enum Placed {
    /// There.
    Chosen(Box<Chosen>),
    /// Its decode rank has been waited for; the other half comes next.
    Decode(Lease),
    /// A queue sent it on: it chooses again, but for the decode rank that it has waited for already.
    Moved(Option<Lease>),
}

/// A rank with room and its lease, or two of them, now or after a wait. At most one wait: who comes out of it goes on with
/// the fleet of that moment. `decode`: it has this half of its pair.
pub(super) async fn place(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    target: &Target<'_>,
    decode: Option<Lease>,
) -> Result<Placed, Stop> {
    let found = match decode {
        None => choose::rank(shard, slot, target),
        Some(decode) => choose::with_decode(shard, slot, target, decode),
    };
    let queued = match found.map_err(Stop::Refused)? {
        Found::Rank(chosen) => return Ok(Placed::Chosen(chosen)),
        Found::Again => return Ok(Placed::Moved(None)),
        Found::Queue(queued) => *queued,
    };
    let Queued { waiter, wanted, decode } = queued;
    let leg = waiter.leg;
    let gives_up_first = target.journey.client_deadline == Some(waiter.deadline);
    let waited = wait::for_verdict(shard, conn, slot, waiter, wanted, gives_up_first).await;
    let verdict =
        waited.map_err(|stop| pressure::ended(shard, target.fleet, target.pool(leg), stop))?;
    match verdict {
        Verdict::Granted(lease) if leg == Leg::Decode => Ok(Placed::Decode(lease)),
        Verdict::Granted(lease) => {
            let chosen = choose::granted(shard, slot, target, lease, decode);
            chosen.map(Placed::Chosen).map_err(Stop::Refused)
        }
        Verdict::Reroute => Ok(Placed::Moved(decode)),
    }
}

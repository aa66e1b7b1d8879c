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

/// What a request has already when it looks for what it lacks.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Its decode rank.
    decode: Option<Lease>,
    /// The last rank that it has waited for: nothing is left to choose.
    granted: Option<Lease>,
}

/// How far a request has come on its way to a rank.
pub(super) enum Placed {
    /// There.
    Chosen(Box<Chosen>),
    /// It has what it waited for.
    Waited(Held),
    /// A queue sent it on, or what it was granted has gone: it chooses again.
    Moved(Held),
}

/// A rank with room and its lease, or two of them, now or after a wait. At most one wait: who comes out of it goes on with
/// the fleet of that moment, which may have ranks and addresses that were not there before.
pub(super) async fn place(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    target: &Target<'_>,
    held: Held,
) -> Result<Placed, Stop> {
    let found = match held {
        Held { granted: Some(lease), decode } => {
            Ok(choose::granted(shard, slot, target, lease, decode))
        }
        Held { granted: None, decode: Some(decode) } => {
            choose::with_decode(shard, slot, target, decode)
        }
        Held { granted: None, decode: None } => choose::rank(shard, slot, target),
    };
    let queued = match found.map_err(Stop::Refused)? {
        Found::Rank(chosen) => return Ok(Placed::Chosen(chosen)),
        Found::Again(decode) => return Ok(Placed::Moved(Held { decode, granted: None })),
        Found::Queue(queued) => *queued,
    };
    let Queued { waiter, wanted, decode } = queued;
    let leg = waiter.leg;
    let gives_up_first = target.journey.client_deadline == Some(waiter.deadline);
    let waited = wait::for_verdict(shard, conn, slot, waiter, wanted, gives_up_first).await;
    let verdict =
        waited.map_err(|stop| pressure::ended(shard, target.fleet, target.pool(leg), stop))?;
    Ok(match verdict {
        Verdict::Granted(lease) if leg == Leg::Decode => {
            Placed::Waited(Held { decode: Some(lease), granted: None })
        }
        Verdict::Granted(lease) => Placed::Waited(Held { decode, granted: Some(lease) }),
        Verdict::Reroute => Placed::Moved(Held { decode, granted: None }),
    })
}

//! parse: a request for a name of `[[model]]` becomes one for the model that the name stands for.

use crate::exchange::slot::Slot;
use crate::ingress::Conn;
use crate::runtime::offloaded;
use crate::state::shard::Shard;
use forebay_base::limits::INLINE_SCAN_BYTES_MAX;
use forebay_fleet::worker::{FleetSnapshot, SESSION_DRAW_END};
use forebay_router::request::Stop;
use forebay_select::served_as;
use std::mem::take;

/// Renames the request and its body, where its name stands for another model.
///
/// # Errors
/// How the request ends while it waits for the offload thread.
pub(crate) async fn resolve(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    fleet: &FleetSnapshot,
) -> Result<(), Stop> {
    let asked = &slot.request.model;
    let any = || shard.routing.stages.borrow_mut().random.u64(..SESSION_DRAW_END);
    let draw = || slot.told.session.map_or_else(any, |session| session.draw(asked));
    let served = served_as(fleet, asked, draw).filter(|served| *served != asked.as_str());
    let Some(served) = served.filter(|_| slot.request.has_model) else { return Ok(()) };
    slot.request.rename(served);
    // A query says what its client wrote: the engine's own is in the frames.
    if slot.body().is_empty() {
        return Ok(());
    }
    let start = slot.head.head_bytes;
    let body_bytes = slot.body().len();
    // Moving much more takes a shard too long.
    if slot.request.behind_model(body_bytes) <= INLINE_SCAN_BYTES_MAX {
        slot.request.write_model(&mut slot.message, start);
        return Ok(());
    }
    let mut message = take(&mut slot.message);
    let mut request = take(&mut slot.request);
    let written = offloaded(&shard.io.offload, conn, body_bytes, move |_| {
        request.write_model(&mut message, start);
        (message, request)
    });
    (slot.message, slot.request) = written.await?;
    Ok(())
}

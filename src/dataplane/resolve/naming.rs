//! parse: rewrites a request for a name of `[[model]]` to the model behind the name.

use crate::exchange::buffers::Buffers;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::runtime::offloaded;
use crate::state::shard::Shard;
use forebay_base::limits::INLINE_SCAN_BYTES_MAX;
use forebay_fleet::worker::{FleetSnapshot, SESSION_DRAW_END};
use forebay_router::request::Stop;
use forebay_select::served_as;
use std::mem::take;

/// Replaces the model name in the request and its body, if the name stands for another model.
///
/// # Errors
/// The request stops while it waits for the offload thread.
pub(crate) async fn resolve(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    fleet: &FleetSnapshot,
) -> Result<(), Stop> {
    let asked = &request.api.model;
    let any = || shard.routing.stages.borrow_mut().random.u64(..SESSION_DRAW_END);
    let draw = || request.caller.session.map_or_else(any, |session| session.draw(asked));
    let served = served_as(fleet, asked, draw).filter(|served| *served != asked.as_str());
    let Some(served) = served.filter(|_| request.api.has_model) else { return Ok(()) };
    request.api.rename(served);
    // A WebSocket's query stays as sent: the model for the engine is in the frames.
    if request.body().is_empty() {
        return Ok(());
    }
    let start = request.head.head_bytes;
    let body_bytes = request.body().len();
    // Moving more bytes would block the shard for too long.
    if request.api.behind_model(body_bytes) <= INLINE_SCAN_BYTES_MAX {
        let Buffers { api, message, .. } = &mut *request.buffers;
        api.write_model(message, start);
        return Ok(());
    }
    let mut message = take(&mut request.message);
    let mut api = take(&mut request.api);
    let written = offloaded(&shard.io.offload, conn, body_bytes, move |_| {
        api.write_model(&mut message, start);
        (message, api)
    });
    let (message, api) = written.await?;
    request.message = message;
    request.api = api;
    Ok(())
}

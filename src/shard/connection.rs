//! The life of one client connection: request after request until either side has had enough.

use super::discard;
use super::labels::Labels;
use super::read::{self, NoRequest};
use super::refuse;
use super::request;
use super::slot::{After, Slot};
use super::state::Shard;
use crate::ingress::Conn;
use crate::runtime;
use forebay_fleet::account::Count;
use futures_util::FutureExt;
use monoio::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// Serves a connection, which has been counted, to its end. A panic ends this connection only.
pub(super) async fn serve(shard: Rc<Shard>, stream: TcpStream) {
    let served = AssertUnwindSafe(requests(&shard, stream)).catch_unwind();
    let (number, least_us) = (shard.env.number, shard.intake.holds_least_us);
    let served = runtime::watched(number, least_us, "connection", served).await;
    if served.is_err() {
        shard.env.panicked("a connection's task panicked; its connection was closed");
    }
    shard.intake.connections.set(shard.intake.connections.get().saturating_sub(1));
    shard.env.count(Count::ConnectionsClosed);
}

async fn requests(shard: &Rc<Shard>, stream: TcpStream) {
    let mut conn = Conn::new(stream, Rc::clone(&shard.io.buffers), shard.env.clock);
    let mut slot = Slot::default();
    let mut reused = false;
    loop {
        let after = match read::head(&shard.env, &mut conn, &mut slot, reused).await {
            Ok(()) => request::serve(shard, &mut conn, &mut slot).await,
            Err(NoRequest::Silent) => After::Drop,
            Err(NoRequest::Refused(refusal)) => {
                slot.begin_unread(shard.routing.stages.borrow_mut().random.u64(..));
                refuse::and_close(&shard.env, &mut conn, &slot, &refusal, &Labels::default()).await
            }
        };
        // Before the wait for the next request: an idle connection must not hold megabytes.
        shard.io.recycle_large(&mut slot.message);
        match after {
            After::KeepAlive => reused = true,
            end => {
                for buffer in [&mut slot.pair.leg_body, &mut conn.input] {
                    shard.io.recycle_large(buffer);
                }
                shard.io.recycle(slot.prompt.end());
                if end == After::Linger {
                    conn.linger(discard::bounds(&shard.env.config)).await;
                }
                return;
            }
        }
    }
}

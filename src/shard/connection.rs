//! The life of one client connection: request after request until either side has had enough.

use super::discard;
use super::holds;
use super::labels::Labels;
use super::read::{self, NoRequest};
use super::refuse;
use super::request;
use super::slot::{After, Slot};
use super::state::Shard;
use crate::ingress::Conn;
use forebay_fleet::account::Count;
use futures_util::FutureExt;
use monoio::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// Serves a connection, which has been counted, to its end. A panic ends this connection only.
pub(super) async fn serve(shard: Rc<Shard>, stream: TcpStream) {
    let counters = Rc::clone(&shard);
    let served = AssertUnwindSafe(requests(&shard, stream)).catch_unwind();
    let served = holds::watched(&shard, "connection", served).await;
    if served.is_err() {
        counters.counters.add(Count::TasksPanicked, 1);
        tracing::error!("a connection's task panicked; its connection was closed (this is a bug)");
    }
    shard.connections.set(shard.connections.get().saturating_sub(1));
    counters.counters.add(Count::ConnectionsClosed, 1);
}

async fn requests(shard: &Rc<Shard>, stream: TcpStream) {
    let mut conn = Conn::new(stream, Rc::clone(&shard.buffers), shard.clock);
    let mut slot = Slot::default();
    let mut reused = false;
    loop {
        let after = match read::head(shard, &mut conn, &mut slot, reused).await {
            Ok(()) => request::serve(shard, &mut conn, &mut slot).await,
            Err(NoRequest::Silent) => After::Drop,
            Err(NoRequest::Refused(refusal)) => {
                slot.begin_unread(shard.stages.borrow_mut().random.u64(..));
                refuse::and_close(shard, &mut conn, &slot, &refusal, &Labels::default()).await
            }
        };
        shard.recycle_large(&mut slot.message);
        match after {
            After::KeepAlive => reused = true,
            end => {
                for buffer in [&mut slot.leg_body, &mut conn.input] {
                    shard.recycle_large(buffer);
                }
                shard.recycle(slot.prompt.end());
                if end == After::Linger {
                    conn.linger(discard::bounds(shard)).await;
                }
                return;
            }
        }
    }
}

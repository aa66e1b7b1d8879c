//! The life of one client connection: request after request until either side has had enough.

use super::read::{self, NoRequest};
use super::state::Shard;
use super::{refuse, request};
use crate::account::Count;
use crate::http1::{RequestHead, ResponseHead};
use crate::ingress::Conn;
use crate::parse::ApiRequest;
use futures_util::FutureExt;
use monoio::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// What one connection reuses from request to request.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Parsed head; its spans point into `message`, or into the connection's input while that is read.
    pub(super) head: RequestHead,
    /// What the scan of the body found.
    pub(super) request: ApiRequest,
    /// Head of the worker's answer.
    pub(super) response: ResponseHead,
    /// Head and body of the request being served.
    pub(super) message: Vec<u8>,
    /// Where the body ends in `message`.
    pub(super) message_bytes: usize,
}

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may come.
    KeepAlive,
    /// The answer is sent; end the connection so that it arrives.
    Linger,
    /// Nothing more to send: the client left, or the answer was cut off on purpose.
    Drop,
}

/// Serves a connection to its end. A panic ends this connection only.
pub(super) async fn serve(shard: Rc<Shard>, stream: TcpStream) {
    let counters = Rc::clone(&shard);
    shard.connections.set(shard.connections.get() + 1);
    let served = AssertUnwindSafe(requests(&shard, stream)).catch_unwind().await;
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
            Err(NoRequest::Refused(refusal)) => refuse::head(shard, &mut conn, &refusal).await,
        };
        match after {
            After::KeepAlive => reused = true,
            After::Linger => return conn.linger(refuse::DRAIN_BYTES_MAX, refuse::DRAIN_TIME_MAX).await,
            After::Drop => return,
        }
    }
}

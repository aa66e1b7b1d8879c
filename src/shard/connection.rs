//! The life of one client connection: request after request until either side has had enough.

use super::discard;
use super::early::Early;
use super::holds;
use super::read::{self, NoRequest};
use super::refuse::{self, Labels};
use super::request;
use super::state::Shard;
use crate::account::Count;
use crate::dispatch::request_id;
use crate::handoff::{Wanted, inspect};
use crate::http1::{FieldKind, RequestHead, ResponseHead};
use crate::ingress::Conn;
use crate::parse::{ApiRequest, Endpoint};
use crate::select::Prompt;
use futures_util::FutureExt;
use monoio::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// What one connection reuses from request to request.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Parsed head; its spans point into `message`, or into the connection's input while that is
    /// read.
    pub(super) head: RequestHead,
    /// What the scan of the body found.
    pub(super) request: ApiRequest,
    /// Head of the worker's answer.
    pub(super) response: ResponseHead,
    /// Head and body of the request being served, without the body's framing.
    pub(super) message: Vec<u8>,
    /// Its prompt, rendered and matched.
    pub(super) prompt: Prompt,
    /// What a handoff has to know of the body, once that was looked for.
    pub(super) handoff: Option<Wanted>,
    /// It was looked for; what was not found cannot be handed off.
    pub(super) is_inspected: bool,
    /// Body of the decode leg, while a pair serves the request.
    pub(super) leg_body: Vec<u8>,
    /// The priority that vLLM is told in place of the one in the body.
    pub(super) told_priority: Option<i64>,
    /// What an engine that had no room asked for.
    pub(super) retry_after_s: Option<u64>,
    /// What its client has before there is an answer.
    pub(super) early: Early,
    /// Status of the answer that was counted: of the worker's, once its head is passed on.
    pub(super) answered: Option<u16>,
    /// Its id: the client's own, or a fresh one.
    pub(super) request_id: Vec<u8>,
}

impl Slot {
    /// Looks once at what a handoff would have to change in the body.
    pub(super) fn look_for_handoff(&mut self, endpoint: Endpoint) {
        if !std::mem::replace(&mut self.is_inspected, true) {
            let body = self.message.get(self.head.head_bytes..).unwrap_or_default();
            // The body has been scanned; what this pass does not like besides cannot be handed off.
            self.handoff = inspect(body, endpoint).ok();
        }
    }

    /// Another request has begun: nothing of the one before speaks for it. `input` holds its head,
    /// which stands parsed in the slot.
    pub(super) fn begin(&mut self, input: &[u8], fresh_id: u64) {
        let sent = self.head.value_of(FieldKind::RequestId, input);
        self.name(sent, fresh_id);
        self.request.clear();
        self.answered = None;
    }

    /// The same where its head cannot be read.
    pub(super) fn begin_unread(&mut self, fresh_id: u64) {
        self.name(None, fresh_id);
        self.request.clear();
        self.answered = None;
    }

    fn name(&mut self, sent: Option<&[u8]>, fresh_id: u64) {
        let mut buffer = [0; 16];
        let id = request_id(sent, fresh_id, &mut buffer);
        self.request_id.clear();
        self.request_id.extend_from_slice(id);
    }

    /// Moves a request that has been read completely out of the connection's input, so that what
    /// the client sends meanwhile has its own place.
    pub(super) fn take_message(&mut self, conn: &mut Conn, body_bytes: usize) {
        let end = (self.head.head_bytes + body_bytes).min(conn.input.len());
        let next = conn.input.split_off(end);
        self.message = std::mem::replace(&mut conn.input, next);
        self.early = Early::default();
        self.handoff = None;
        self.is_inspected = false;
    }
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
                slot.begin_unread(shard.random.borrow_mut().u64(..));
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

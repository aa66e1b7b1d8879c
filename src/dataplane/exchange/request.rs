//! Parts of a request shared by all phases: buffers, caller, story, and the fields of its answers.

use super::buffers::Buffers;
use super::rate_fields::RATE_FIELDS;
use crate::ingress::{Conn, ConnectedClient};
use crate::relay::EarlyPart;
use crate::state::shard::Shard;
use crate::story::Story;
use crate::story::event::{ExchangeEnd, MessageParts, RoutedHead};
use crate::story::facts::RequestedApi;
use forebay_base::NanosSinceStart;
use forebay_base::limits::{
    COHORT_MESSAGE_BYTES_MAX, INLINE_BODY_BYTES_MAX, MESSAGE_SPARE_BYTES_MAX,
};
use forebay_config::SessionConfig;
use forebay_fleet::worker::{Dialect, SessionKey};
use forebay_http1::{bytes_of, header};
use forebay_identity::{AnswerField, CorsFields, ForwardedFields};
use forebay_net::join_cohort;
use forebay_prompt::parse::{Principal, Refusal, query_model, session_key};
use forebay_router::dispatch::SendPlan;
use forebay_router::request::Stop;
use std::iter;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Fields of the own answers: the request id, CORS, rate limits.
pub(crate) const OWN_FIELDS: usize = 1 + 4 + RATE_FIELDS;

/// Field that takes precedence over the body's `priority` in vLLM 0.28 and newer.
pub(crate) const PRIORITY: &str = "x-vllm-priority";

/// Parts of a request shared by all phases. Made per request, dropped with it.
#[derive(Debug)]
pub(crate) struct Request<'c> {
    pub(crate) buffers: &'c mut Buffers,
    pub(crate) caller: RequestCaller,
    /// Part of the answer sent before a worker answers.
    pub(crate) early: EarlyPart,
    /// CORS fields for the page that sends the request.
    pub(crate) cors: Option<Rc<CorsFields>>,
    pub(crate) story: Story,
}

/// Caller of a request, with the caller's session and priorities.
#[derive(Debug, Default)]
pub(crate) struct RequestCaller {
    /// Tenant and key, by the head.
    pub(crate) principal: Principal,
    /// Session named by the client.
    pub(crate) session: Option<SessionKey>,
    pub(crate) priority: EnginePriority,
}

/// Priorities for vLLM's own queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EnginePriority {
    /// Granted priority, if it differs from the body's.
    pub(crate) granted: Option<i64>,
    /// Replaces `granted` where the router orders vLLM's queue, see `EngineOrder`.
    pub(crate) number: Option<i64>,
}

impl<'c> Request<'c> {
    /// A request, after [`Buffers::begin`].
    pub(crate) fn new(buffers: &'c mut Buffers, started: NanosSinceStart) -> Self {
        let caller = RequestCaller::default();
        let story = Story::new(started);
        Self { buffers, caller, early: EarlyPart::default(), cors: None, story }
    }

    /// A request with an invalid head.
    pub(crate) fn unread(buffers: &'c mut Buffers, fresh_id: u64) -> Self {
        buffers.begin(None, fresh_id);
        Self::new(buffers, NanosSinceStart::default())
    }

    /// The end of a stage, as [`join_cohort`]. A long request goes on alone: its bytes would leave
    /// the processor's cache meanwhile.
    pub(crate) async fn end_stage(&self) {
        if self.message.len() <= COHORT_MESSAGE_BYTES_MAX {
            join_cohort().await;
        }
    }

    /// Begins the story of the request; `input` holds its head. `None` for `asked`: no endpoint has
    /// the path. `is_page`: the router answers by itself.
    pub(crate) fn begin(
        &mut self,
        shard: &Shard,
        conn: &Conn,
        asked: Option<RequestedApi>,
        is_page: bool,
    ) {
        let Self { buffers, story, .. } = self;
        let head = RoutedHead {
            shard,
            head: &buffers.head,
            input: &conn.input,
            request_id: buffers.request_id(),
            client: conn.client.address,
            scheme: conn.scheme(),
            endpoint: asked.filter(|_| !is_page).map(|asked| asked.endpoint),
            at: story.facts.times.started,
        };
        story.began(asked, &head);
    }

    /// Ends the story of the request. The router closes connections at the end of a drain: a client
    /// that is gone from then on has not left by itself.
    pub(crate) fn end(&mut self, shard: &Shard, client: &ConnectedClient, stop: Option<&Stop>) {
        let tenant = self.caller.principal.tenant;
        let now = shard.env.now();
        let is_cut = stop.is_some_and(Stop::is_by_client) && shard.env.is_cut(now);
        let stop = if is_cut { Some(&Stop::Drained) } else { stop };
        let Self { buffers, story, .. } = self;
        let message = MessageParts {
            head: &buffers.head,
            api: &buffers.api,
            request_id: buffers.request_id(),
        };
        story.ended(&ExchangeEnd { shard, client, message, tenant, stop, now });
    }

    /// Moves a completely received request out of the connection's input. Later bytes of the client
    /// belong to the next request.
    pub(crate) fn take_message(&mut self, conn: &mut Conn, body_bytes: usize) {
        let end = (self.head.head_bytes + body_bytes).min(conn.input.len());
        let next = conn.input.split_off(end);
        let received = std::mem::replace(&mut conn.input, next);
        self.message = fitted(received, |buffer| conn.recycle(buffer));
    }

    /// Reads the session from head and body.
    pub(crate) fn read_session(&mut self, names: &SessionConfig) {
        let scanned = (&*self.api, self.body());
        self.caller.session = session_key(names, &self.head, &self.message, scanned);
    }

    /// Reads the model from the query of a request without a body.
    ///
    /// # Errors
    /// A refusal if servers could parse the query differently.
    pub(crate) fn read_query_model(&mut self) -> Result<(), Refusal> {
        let named = query_model(bytes_of(&self.message, &self.head.query))?;
        self.api.has_model = named.is_some();
        self.api.model.push_str(&named.unwrap_or_default());
        Ok(())
    }

    /// Value of [`PRIORITY`]; `None` for engines that do not read the field. SGLang is left out,
    /// because it may treat higher numbers as better.
    pub(crate) fn priority_for(&self, plan: &SendPlan) -> Option<String> {
        let EnginePriority { granted, number } = self.caller.priority;
        let priority = match plan.engine.dialect {
            Dialect::Vllm => number.or(granted),
            Dialect::Openai => granted,
            Dialect::Sglang => None,
        };
        priority.map(|priority| priority.to_string())
    }

    /// Priority granted to the request.
    pub(crate) fn granted_priority(&self) -> i64 {
        self.caller.priority.granted.or(self.api.priority).unwrap_or(0)
    }

    /// `X-Forwarded-For` and `Forwarded` for workers, if configured.
    pub(crate) fn forwarded(&self) -> [Option<(&'static str, &[u8])>; 2] {
        let ForwardedFields { x_forwarded_for, forwarded, .. } = &self.fields.forwarded;
        [("x-forwarded-for", &x_forwarded_for[..]), ("forwarded", &forwarded[..])]
            .map(|field| Some(field).filter(|(_, value)| !value.is_empty()))
    }

    /// Removes `x-real-ip`, where only the router's forwarded fields count.
    pub(crate) fn claim(&self) -> Option<(&'static str, &'static [u8])> {
        self.fields.forwarded.is_only.then_some(("x-real-ip", &[][..]))
    }

    /// Removes a key of this router, which is not for workers. A field with an empty value removes
    /// the client's field and is not sent.
    pub(crate) fn withheld(&self) -> [Option<(&'static str, &'static [u8])>; 2] {
        let has_key = self.caller.principal.has_key();
        [header::AUTHORIZATION, header::API_KEY].map(|name| has_key.then_some((name, &[][..])))
    }

    /// Fields of the router's own answers: the request id first, then CORS and rate limits. Fields
    /// without a value are not sent.
    pub(crate) fn own_fields(&self) -> [AnswerField<'_>; OWN_FIELDS] {
        let id = (header::REQUEST_ID, self.request_id());
        let cors = self.cors_fields().unwrap_or_default();
        let all = iter::once(id).chain(cors).chain(self.fields.limits.fields());
        let mut fields = [("", &b""[..]); OWN_FIELDS];
        fields.iter_mut().zip(all).for_each(|(place, field)| *place = field);
        fields
    }

    /// CORS fields for the page that sends the request.
    pub(crate) fn cors_fields(&self) -> Option<[AnswerField<'_>; 4]> {
        self.cors.as_ref().map(|cors| cors.fields())
    }
}

/// A message in a buffer of about its size. Buffers of reads are larger than most messages, and a
/// request may wait minutes for its worker. `recycle` gets a buffer that the message has left.
fn fitted(received: Vec<u8>, recycle: impl FnOnce(Vec<u8>)) -> Vec<u8> {
    let spare_bytes = received.capacity().saturating_sub(received.len());
    if spare_bytes <= MESSAGE_SPARE_BYTES_MAX || received.len() > INLINE_BODY_BYTES_MAX {
        return received;
    }
    // Not `shrink_to_fit`: an allocator may shrink in place, and the pool would lose the buffer.
    let mut message = Vec::with_capacity(received.len());
    message.extend_from_slice(&received);
    recycle(received);
    message
}

impl Deref for Request<'_> {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        self.buffers
    }
}

impl DerefMut for Request<'_> {
    fn deref_mut(&mut self) -> &mut Buffers {
        self.buffers
    }
}

#[cfg(test)]
mod tests {
    use super::{INLINE_BODY_BYTES_MAX, MESSAGE_SPARE_BYTES_MAX, fitted};
    use forebay_base::limits::{READ_BYTES, STREAM_READ_BYTES};
    use proptest::prelude::*;

    proptest! {
        /// Whatever buffer received a message, the request holds little more than the message.
        #[test]
        fn a_message_that_waits_holds_little_beside_its_bytes(
            len in 0..=INLINE_BODY_BYTES_MAX,
            room in prop_oneof![Just(STREAM_READ_BYTES), Just(READ_BYTES), 0..200_000_usize],
        ) {
            let mut received = Vec::with_capacity(room.max(len));
            received.extend((0..251_u8).cycle().take(len));
            let expected = received.clone();
            let room = received.capacity();
            let mut left = None;
            let message = fitted(received, |buffer| left = Some(buffer));
            prop_assert!(message == expected);
            prop_assert!(message.capacity() - message.len() <= MESSAGE_SPARE_BYTES_MAX);
            let is_whole = left.is_none_or(|buffer| buffer.capacity() == room);
            prop_assert!(is_whole, "the pool gets the buffer as it was");
        }
    }
}

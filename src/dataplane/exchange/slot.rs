//! What one connection keeps from request to request, and what becomes of it after an answer.

use super::noted_request::NotedSlot;
use super::open_trace::OpenTrace;
use super::quota_use::QuotaUse;
use super::rate_fields::RateFields;
use super::resumable::Keeping;
use crate::ingress::Conn;
use crate::relay::Early;
use crate::state::env::Env;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_config::SessionConfig;
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{Dialect, SessionKey};
use forebay_http1::{FieldKind, RequestHead, ResponseHead, bytes_of, header};
use forebay_identity::{AnswerField, CorsFields, ForwardedFields};
use forebay_prompt::parse::{ApiRequest, Refusal, Whom, query_model, session_key};
use forebay_router::dispatch::SendPlan;
use forebay_router::request::{Split, WorkerReply};
use forebay_select::Prompt;
use std::cell::Cell;
use std::rc::Rc;

/// The field that counts before the body's `priority` in vLLM 0.28 and newer.
pub(crate) const PRIORITY: &str = "x-vllm-priority";

/// Longest `x-request-id` that is kept from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What one connection reuses from request to request.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Parsed head; its spans point into `message`, or into the connection's input while that is
    /// read.
    pub(crate) head: RequestHead,
    /// What the scan of the body found. Boxed: it goes to the offload thread and back.
    pub(crate) request: Box<ApiRequest>,
    /// Head and body of the request being served, without the body's framing.
    pub(crate) message: Vec<u8>,
    /// Its prompt, rendered and matched.
    pub(crate) prompt: Prompt,
    /// Who makes the request, and what a worker is told of it.
    pub(crate) told: ToldSlot,
    /// Its id: the client's own, or a fresh one.
    pub(crate) request_id: Vec<u8>,
    /// Used while two ranks serve the request.
    pub(crate) pair: PairSlot,
    /// What comes back.
    pub(crate) answer: AnswerSlot,
}

/// Who makes a request, and what a worker and a recorder are told of it, beside what the client has
/// sent.
#[derive(Debug, Default)]
pub(crate) struct ToldSlot {
    /// The caller, as the head says.
    pub(crate) whom: Whom,
    /// What vLLM is told in place of the priority in the body.
    pub(crate) priority: ToldPriority,
    /// The session that the client names.
    pub(crate) session: Option<SessionKey>,
    /// What it takes of its tenant's limits.
    pub(crate) quota: QuotaUse,
    /// Whose request it is.
    pub(crate) forwarded: ForwardedFields,
    /// The trace that it belongs to, if it has one.
    pub(crate) trace: Option<Box<OpenTrace>>,
    /// Its path, where a record has it.
    pub(crate) path: String,
    /// What a recorder is told of it.
    pub(crate) noted: NotedSlot,
}

/// Priorities that vLLM is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToldPriority {
    /// The granted priority, where the body does not say the same.
    pub(crate) granted: Option<i64>,
    /// In its place, where the router gives vLLM's queue an order: see `EngineOrder`.
    pub(crate) number: Option<i64>,
}

/// What a request needs that two ranks serve, together or one after the other.
#[derive(Debug, Default)]
pub(crate) struct PairSlot {
    /// What a KV transfer has to know of the body, once that was looked for.
    pub(crate) split: Split,
    /// Body of the decode leg.
    pub(crate) leg_body: Vec<u8>,
    /// What another rank needs to go on with the stream.
    pub(crate) keeping: Keeping,
}

/// What comes back from workers, and what the client has of it.
#[derive(Debug, Default)]
pub(crate) struct AnswerSlot {
    /// Head of the worker's answer.
    pub(crate) head: ResponseHead,
    /// What a worker has answered to an attempt that failed.
    pub(crate) reply: WorkerReply,
    /// What the client has before there is an answer.
    pub(crate) early: Early,
    /// What the page is told that sends the request, if anything.
    pub(crate) cors: Option<Rc<CorsFields>>,
    /// What the client is told of its limits per minute.
    pub(crate) limits: RateFields,
    /// What the request has cost, once an engine has worked for it.
    pub(crate) usage: Cell<Option<TokenUsage>>,
    /// When the head of the answer for the client had come from a worker.
    pub(crate) head_at: Option<NanosSinceStart>,
    /// Status of the answer that was counted: of the worker's, once its head is passed on.
    pub(crate) status: Option<u16>,
}

impl ToldSlot {
    fn forget(&mut self) {
        self.whom = Whom::default();
        self.session = None;
        self.quota = QuotaUse::default();
        self.trace = None;
        self.path.clear();
        self.noted.forget();
    }
}

impl AnswerSlot {
    fn forget(&mut self) {
        self.limits.clear();
        self.reply = WorkerReply::default();
        self.usage.set(None);
        self.head_at = None;
        self.status = None;
        self.cors = None;
    }

    /// The fields for the page that sends the request; `None` where the router says nothing.
    pub(crate) fn cors_fields(&self) -> Option<[AnswerField<'_>; 4]> {
        self.cors.as_ref().map(|cors| cors.fields())
    }
}

impl Slot {
    /// The body of the request, once it has been read.
    pub(crate) fn body(&self) -> &[u8] {
        self.message.get(self.head.head_bytes..).unwrap_or_default()
    }

    /// Another request has begun: nothing of the one before speaks for it. `input` holds its head,
    /// which stands parsed in the slot.
    pub(crate) fn begin(&mut self, input: &[u8], fresh_id: u64) {
        let sent = self.head.value_of(FieldKind::RequestId, input);
        self.name(sent, fresh_id);
        self.forget();
    }

    /// The same where its head cannot be read.
    pub(crate) fn begin_unread(&mut self, fresh_id: u64) {
        self.name(None, fresh_id);
        self.forget();
    }

    /// Reads the session off head and body, both read by now.
    pub(crate) fn note_session(&mut self, names: &SessionConfig) {
        let scanned = (&*self.request, self.body());
        self.told.session = session_key(names, &self.head, &self.message, scanned);
    }

    /// Reads the model off the query of a request that has no body.
    ///
    /// # Errors
    /// A refusal where servers may read different names.
    pub(crate) fn note_model(&mut self) -> Result<(), Refusal> {
        let named = query_model(bytes_of(&self.message, &self.head.query))?;
        self.request.has_model = named.is_some();
        self.request.model.push_str(&named.unwrap_or_default());
        Ok(())
    }

    fn forget(&mut self) {
        self.told.forget();
        self.answer.forget();
        self.request.clear();
    }

    fn name(&mut self, sent: Option<&[u8]>, fresh_id: u64) {
        let mut buffer = [0; 16];
        let id = request_id(sent, fresh_id, &mut buffer);
        self.request_id.clear();
        self.request_id.extend_from_slice(id);
    }

    /// The value of [`PRIORITY`], where the engine has to be told. Other engines do not read it,
    /// and SGLang may take higher ones for better.
    pub(crate) fn priority_for(&self, plan: &SendPlan) -> Option<String> {
        let ToldPriority { granted, number } = self.told.priority;
        let told = match plan.engine.dialect {
            Dialect::Vllm => number.or(granted),
            Dialect::Openai => granted,
            Dialect::Sglang => None,
        };
        told.map(|priority| priority.to_string())
    }

    /// The priority that the request has, as far as its caller may have it.
    pub(crate) fn granted_priority(&self) -> i64 {
        self.told.priority.granted.or(self.request.priority).unwrap_or(0)
    }

    /// `X-Forwarded-For` and `Forwarded`, where workers are told of the client.
    pub(crate) fn forwarded(&self) -> [Option<(&'static str, &[u8])>; 2] {
        let ForwardedFields { x_forwarded_for, forwarded, .. } = &self.told.forwarded;
        [("x-forwarded-for", &x_forwarded_for[..]), ("forwarded", &forwarded[..])]
            .map(|field| Some(field).filter(|(_, value)| !value.is_empty()))
    }

    /// What a client says of its address by another name, where only the router's word counts.
    pub(crate) fn claim(&self) -> Option<(&'static str, &'static [u8])> {
        self.told.forwarded.is_only.then_some(("x-real-ip", &[][..]))
    }

    /// What workers are told of the trace, where there is one.
    pub(crate) fn traced(&self) -> [Option<(&'static str, &[u8])>; 2] {
        self.told.trace.as_ref().map_or([None; 2], |trace| trace.fields())
    }

    /// Notes the attempt that begins, of which its worker is told. `is_prefilled`: another rank has
    /// computed the prompt.
    pub(crate) fn leaves(&mut self, env: &Env, rank: RankIndex, is_prefilled: bool) {
        if let Some(meter) = self.told.quota.meter() {
            meter.decodes(rank, env.now(), is_prefilled);
        }
        if let Some(trace) = &mut self.told.trace {
            trace.leaves(rank, env.now());
        }
    }

    /// A key of this router is not for workers. Fields without a value replace the client's, and
    /// are not sent themselves.
    pub(crate) fn withheld(&self) -> [Option<(&'static str, &'static [u8])>; 2] {
        let has_key = self.told.whom.has_key();
        [header::AUTHORIZATION, header::API_KEY].map(|name| has_key.then_some((name, &[][..])))
    }

    /// Fields of each answer that the router gives itself; those without a value are not sent.
    pub(crate) fn own_fields(&self) -> [AnswerField<'_>; 5] {
        let [origin, credentials, expose, vary] = self.answer.cors_fields().unwrap_or_default();
        [(header::REQUEST_ID, &self.request_id), origin, credentials, expose, vary]
    }

    /// Moves a request that has been read completely out of the connection's input, so that what
    /// the client sends meanwhile has its own place.
    pub(crate) fn take_message(&mut self, conn: &mut Conn, body_bytes: usize) {
        let end = (self.head.head_bytes + body_bytes).min(conn.input.len());
        let next = conn.input.split_off(end);
        self.message = std::mem::replace(&mut conn.input, next);
        self.answer.early = Early::default();
        self.pair.split = Split::default();
        self.pair.keeping = Keeping::Off;
    }
}

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The next request may come.
    KeepAlive,
    /// The answer is sent; end the connection so that it arrives.
    Linger,
    /// Nothing more to send: the client left, or the answer was cut off on purpose.
    Drop,
}

/// The id of a request: the client's own if it is short and printable, else 16 hex digits.
fn request_id<'a>(sent: Option<&'a [u8]>, fresh: u64, buffer: &'a mut [u8; 16]) -> &'a [u8] {
    if let Some(id) = sent
        && !id.is_empty()
        && id.len() <= REQUEST_ID_BYTES_MAX
        && id.iter().all(u8::is_ascii_graphic)
    {
        return id;
    }
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (position, byte) in buffer.iter_mut().enumerate() {
        let nibble = (fresh >> (60 - 4 * position)) & 15;
        *byte = usize::try_from(nibble).ok().and_then(|n| DIGITS.get(n)).copied().unwrap_or(b'0');
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::request_id;

    #[test]
    fn ids_are_kept_when_sane_and_made_otherwise() {
        let mut buffer = [0; 16];
        assert_eq!(request_id(Some(b"abc-1"), 0, &mut buffer), b"abc-1");
        let fresh = 0x0123_4567_89ab_cdef;
        for bad in [Some(&b""[..]), Some(b"a b"), Some(&[b'x'; 129]), None] {
            assert_eq!(request_id(bad, fresh, &mut buffer), b"0123456789abcdef");
        }
    }
}

//! relay, account: the answer of a rank, from its head to its end.

use super::added_fields::AddedFields;
use super::answer_meaning::{BodyKind, is_foreign};
use super::blame;
use super::outbound::{Dispatch, decimal};
use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::overlap::prediction::{self, PredictedHit};
use crate::pair::begin::PairDispatch;
use crate::relay::{
    EarlyPart, OpenEventStream, PendingAnswer, StreamShape, Upstream, gather, relay,
};
use crate::reply::early_head;
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::io::Io;
use crate::state::leg::AttemptWatch;
use crate::state::pulse::PulseWatch;
use crate::state::shard::{SendParts, Shard};
use crate::state::workers::Workers;
use crate::story::event::{AnswerEnd, AnswerHead, AnswerPart, AnswerUsage, StreamTimes};
use crate::story::facts::AnswerFault;
use forebay_base::NanosSinceStart;
use forebay_board::account::{Count, Lease};
use forebay_board::{FailureWeight, RankLoad};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_http1::{ResponseHead, header};
use forebay_identity::CorsFields;
use forebay_json::{UsageForm, UsageReader};
use forebay_mailbox::ResponsePlace;
use forebay_prompt::parse::{Endpoint, PromptSource};
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{AnswerMeaning, Judgement};

/// Connection of an answer whose head is read.
pub(crate) struct UpstreamAnswer {
    pub(crate) upstream: Box<Upstream>,
    /// The worker has received the whole request.
    pub(crate) sent: bool,
}

/// State accounted while the answer is relayed.
pub(crate) struct AttemptAccount<'a> {
    pub(crate) going: Dispatch<'a>,
    pub(crate) lease: &'a mut Lease,
    /// Pulse watch of the rank; `None` for pairs and for endpoints without inference.
    pub(crate) pulse: Option<&'a PulseWatch<'a>>,
    pub(crate) predicted: Option<Box<PredictedHit>>,
    pub(crate) paired: Option<&'a PairDispatch<'a>>,
}

/// Handles the head of an answer of this meaning, and judges the rank if the head is an error. A
/// success is judged at the end of the answer. `is_resumable`: another rank may continue the
/// answer.
pub(crate) fn answer_began(
    shard: &Shard,
    request: &mut Request<'_>,
    going: Dispatch<'_>,
    lease: &mut Lease,
    meaning: AnswerMeaning,
    is_resumable: bool,
) {
    judge_head(shard, request.answer_head.status, going, lease, meaning);
    // From here on only the remainder of a stream may be sent again.
    if !is_resumable {
        shard.io.recycle(std::mem::take(&mut request.message));
        shard.io.recycle(std::mem::take(&mut request.leg_body));
        shard.routing.text.give(&shard.io, request.prompt.end());
    }
    let place = ResponsePlace {
        rank: going.plan.rank,
        model: going.facts.model,
        tenant: request.caller.principal.tenant,
    };
    let is_foreign = is_foreign(request, going.endpoint);
    let Request { buffers, story, .. } = request;
    story.facts.answer.fault = is_foreign.then_some(AnswerFault::Form);
    let head = &buffers.answer_head;
    let is_counted = story.facts.answer.counted.is_some();
    let endpoint = going.endpoint;
    let status = head.status;
    story.answer_began(&AnswerHead { shard, head, status, endpoint, is_counted, place });
}

fn judge_head(
    shard: &Shard,
    status: u16,
    going: Dispatch<'_>,
    lease: &mut Lease,
    meaning: AnswerMeaning,
) {
    if !(200..300).contains(&status) || matches!(meaning, AnswerMeaning::Failed(..)) {
        // No tokens were computed, and the time of the answer is no sign of the rank's speed.
        lease.end_prefill();
    }
    match meaning {
        AnswerMeaning::Failed(scope, weight) => {
            if weight == FailureWeight::Refused {
                lease.judge_taken();
            }
            blame::mark_failed(shard, lease, Judgement::Failure { scope, weight, status });
            // The worker may have restarted with other models or another key.
            let load = shard.workers.board.rank(lease.rank());
            let is_open = load.is_some_and(RankLoad::is_open);
            if is_open || may_lack_model(shard, status, going) {
                shard.workers.suspect(going.plan.worker);
            }
        }
        // A tunnel ends whenever either end closes it: that is no sign of the rank's health.
        _ if status == 101 => lease.judge_success(),
        _ => lease.judge_taken(),
    }
}

/// May the status mean that the engine has lost the model? SGLang refuses a lost adapter with 400,
/// as it refuses wrong parameters. At worst the worker is described again each second.
fn may_lack_model(shard: &Shard, status: u16, going: Dispatch<'_>) -> bool {
    let is_adapter = |fleet: &FleetSnapshot| {
        fleet.models.get(going.facts.model.index()).is_some_and(Model::is_adapter)
    };
    status == 404 || status == 400 && is_adapter(&shard.workers.fleet())
}

/// Relays the answer in `answer_head`. Borrows `answering`: by value, the future would hold it
/// twice.
pub(crate) async fn answer(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    answering: &mut Option<UpstreamAnswer>,
    accounted: AttemptAccount<'_>,
) -> Result<ConnectionReuse, RelayError> {
    let SendParts { env, io, workers } = shard.sending();
    if request.early.open_stream().is_some() && !OpenEventStream::goes_on_with(&request.answer_head)
    {
        let going = accounted.going;
        let Some(answering) = answering.take() else { return Err(RelayError::BodyInvalid) };
        return Box::pin(end_early(shard, conn, request, going, answering)).await;
    }
    let Some(UpstreamAnswer { upstream, sent }) = answering else {
        debug_assert!(false, "no worker answers");
        return Err(RelayError::BodyInvalid);
    };
    let AttemptAccount { going, lease, pulse, predicted, paired } = accounted;
    let Dispatch { plan, endpoint, facts, .. } = going;
    // An answer in a wrong form proves no work of the engine.
    let pulse = pulse.filter(|_| request.story.facts.answer.fault.is_none());
    let mut digits = [0; 10];
    let found = predicted.as_deref().or_else(|| paired?.predicted.as_deref());
    let Request { buffers, early, cors, story, .. } = request;
    let cors = cors.as_deref();
    let own = own_fields(ReplyFields { buffers, cors }, plan, found, paired, &mut digits);
    let wanted = wanted(env, buffers, early, endpoint, own.get());
    let mut passed = AnswerTally::new(workers, &buffers.answer_head, endpoint, pulse);
    let down = DownWatch::new(env, workers, plan.worker);
    let mut client = AttemptWatch { conn, leg: None, down };
    let start = going.body_start(&buffers.api);
    let mut body = None;
    let status = buffers.answer_head.status;
    let relayed = relay(&mut client, upstream, &wanted, |data| {
        if !data.is_empty() {
            workers.count_receipt(plan.worker, status);
            lease.share_trial();
            body.get_or_insert_with(|| BodyKind::of(data));
            passed.take(env, io, data);
            lease.observe_body_bytes(start, || env.now());
            story.passed(data);
        }
    });
    let relayed = relayed.await;
    let (reported, cached) = passed.reported();
    let head = &buffers.answer_head;
    story.answered(&AnswerEnd {
        sending: shard.sending(),
        facts,
        rank: plan.rank,
        head,
        times: passed.times(),
        usage: passed.usage(reported),
        relayed: relayed.as_ref().map(|relayed| relayed.body_bytes).map_err(|error| *error),
        part: if paired.is_some() { AnswerPart::DecodeLeg } else { AnswerPart::Whole },
    });
    let relayed = relayed?;
    let is_answer = BodyKind::is_answer(body, endpoint);
    blame::judge_end(shard, lease, &mut story.facts.answer, head.status, is_answer);
    env.counters.add(Count::ResponseBytes, relayed.body_bytes);
    // In a pair, the answering rank has not computed the prompt.
    if paired.is_none() {
        // The prediction is for the first prompt of a batch, the report for all of them.
        let is_batch = matches!(buffers.api.prompt, PromptSource::Batch(_));
        let predicted = predicted.as_deref().filter(|_| !is_batch);
        prediction::account_answer(env, plan.rank, reported, cached, predicted);
    }
    let is_reusable = relayed.upstream_reusable && *sent;
    if let Some(answering) = answering.take().filter(|_| is_reusable) {
        io.keep(env, answering.upstream);
    }
    Ok(if relayed.client_reusable { ConnectionReuse::KeepAlive } else { ConnectionReuse::Linger })
}

/// Sources of fields in every answer.
#[derive(Clone, Copy)]
pub(crate) struct ReplyFields<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) cors: Option<&'a CorsFields>,
}

/// Fields that the router adds to an answer.
pub(crate) fn own_fields<'a>(
    reply: ReplyFields<'a>,
    plan: &'a SendPlan,
    found: Option<&PredictedHit>,
    paired: Option<&'a PairDispatch<'_>>,
    digits: &'a mut [u8; 10],
) -> AddedFields<'a> {
    let mut own = AddedFields::new();
    own.push((header::WORKER, plan.shown_as.as_bytes()));
    own.push((header::REQUEST_ID, reply.buffers.request_id()));
    if let Some(tokens) = found.and_then(PredictedHit::tokens) {
        own.push((header::OVERLAP_TOKENS, decimal(tokens, digits)));
    }
    if let Some(paired) = paired {
        own.push((header::PREFILL_WORKER, paired.plan.shown_as.as_bytes()));
    }
    if let Some(cors) = reply.cors {
        own.extend(cors.fields());
    }
    own.extend(reply.buffers.fields.limits.fields());
    own
}

/// How to encode the answer in `answer_head` for the client.
pub(crate) fn wanted<'a>(
    env: &Env,
    buffers: &'a Buffers,
    early: &EarlyPart,
    endpoint: Endpoint,
    extra: &'a [(&'a str, &'a [u8])],
) -> PendingAnswer<'a> {
    PendingAnswer {
        head: &buffers.answer_head,
        client_version: buffers.head.version,
        keep_alive: buffers.head.keep_alive && !env.draining.is_set(),
        shape: StreamShape::of(endpoint).unwrap_or(StreamShape::OpenAi),
        head_sent: early.open_stream().is_some(),
        extra,
        idle_max: env.config().timeouts.stream_idle,
        write_max: env.config().timeouts.write,
    }
}

/// Usage and times of the relayed part of an answer.
pub(crate) struct AnswerTally<'a> {
    pub(crate) usage: UsageReader,
    is_stream: bool,
    /// Time of a stream's first byte.
    pub(crate) first_at: Option<NanosSinceStart>,
    /// Time of the last event that may carry a token, where tokens are counted.
    pub(crate) last_at: Option<NanosSinceStart>,
    pulse: Option<&'a PulseWatch<'a>>,
}

impl<'a> AnswerTally<'a> {
    pub(crate) fn new(
        workers: &Workers,
        head: &ResponseHead,
        endpoint: Endpoint,
        pulse: Option<&'a PulseWatch<'a>>,
    ) -> Self {
        let usage = usage_reader(workers, head, endpoint);
        let is_stream = head.is_event_stream();
        // An error may come from the HTTP server alone, which proves no work of the engine.
        let pulse = pulse.filter(|_| head.status == 200);
        Self { usage, is_stream, first_at: None, last_at: None, pulse }
    }

    pub(crate) fn count_chunk(&mut self, env: &Env) {
        self.first_at = self.first_at.or_else(|| self.is_stream.then(|| env.now()));
        if let Some(pulse) = self.pulse {
            pulse.count_chunk(self.first_at);
        }
    }

    pub(crate) fn take(&mut self, env: &Env, io: &Io, data: &[u8]) {
        self.count_chunk(env);
        if self.usage.feed(&io.usage, data) {
            self.last_at = Some(env.now());
        }
    }

    pub(crate) fn times(&self) -> StreamTimes {
        StreamTimes { first_at: self.first_at, last_at: self.last_at }
    }

    pub(crate) fn usage(&self, reported: Option<TokenUsage>) -> AnswerUsage<'_> {
        AnswerUsage { reported, scan: self.usage.as_scan(), by_ids: None }
    }

    /// Usage that the engine reports, and its cached tokens.
    pub(crate) fn reported(&self) -> (Option<TokenUsage>, Option<u64>) {
        (self.usage.usage(), self.usage.cached())
    }
}

/// Reader of the answer's usage. Scans only billed answers.
fn usage_reader(workers: &Workers, head: &ResponseHead, endpoint: Endpoint) -> UsageReader {
    let is_counted = workers.fleet.borrow().tenants.are_counted() && endpoint.is_inference();
    let form = match (endpoint, head.is_event_stream()) {
        (Endpoint::Generate, true) => UsageForm::MetaInfoStream,
        (Endpoint::Generate, false) => UsageForm::MetaInfo,
        (_, true) => UsageForm::UsageStream,
        (_, false) => UsageForm::Usage,
    };
    match is_counted && head.status == 200 {
        true => UsageReader::scan(form),
        false => UsageReader::glance(form),
    }
}

/// Sends the engine's answer as last event of a stream that the router has already begun.
async fn end_early(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
    going: Dispatch<'_>,
    answering: UpstreamAnswer,
) -> Result<ConnectionReuse, RelayError> {
    let Some(begun) = request.early.open_stream().copied() else {
        return Err(RelayError::BodyInvalid);
    };
    let SendParts { env, io, workers } = shard.sending();
    let UpstreamAnswer { mut upstream, sent } = answering;
    let idle_max = env.config().timeouts.stream_idle;
    let gathered = gather(conn, &mut upstream, &request.answer_head, idle_max).await?;
    if gathered.upstream_reusable && sent {
        io.keep(env, upstream);
    }
    let Request { buffers, story, .. } = request;
    let head = &buffers.answer_head;
    let mut passed = AnswerTally::new(workers, head, going.endpoint, None);
    passed.take(env, io, &gathered.body);
    story.answered(&AnswerEnd {
        sending: shard.sending(),
        facts: going.facts,
        rank: going.plan.rank,
        head,
        times: StreamTimes { first_at: None, ..passed.times() },
        usage: passed.usage(None),
        relayed: Ok(u64::try_from(gathered.body.len()).unwrap_or(u64::MAX)),
        part: AnswerPart::DecodeLeg,
    });
    Ok(early_head::fail(&begun, env, conn, head.status, &gathered.body).await)
}

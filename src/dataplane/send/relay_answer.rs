//! relay, account: the answer of one rank, from its head to its end.

use super::answer_meaning::meaning;
use super::blame;
use super::outbound::{Going, decimal};
use crate::exchange::rate_fields::RATE_FIELDS;
use crate::exchange::response_scan::KeptScan;
use crate::exchange::slot::{After, Slot};
use crate::ingress::Conn;
use crate::overlap::prediction::{self, Predicted};
use crate::pair::begin::Paired;
use crate::relay::{
    Answer, Begun, Hits, StreamShape, Upstream, UsageForm, UsageScan, begins_with_error, gather,
    relay,
};
use crate::reply::early_head;
use crate::state::down::DownWatch;
use crate::state::env::Env;
use crate::state::io::Io;
use crate::state::leg::Waiting;
use crate::state::pulse::PulseWatch;
use crate::state::shard::{Sending, Shard};
use crate::state::workers::Workers;
use crate::story::bill::{self, AnswerEnd};
use forebay_base::NanosSinceStart;
use forebay_fleet::account::{Count, Lease};
use forebay_fleet::mailbox::KeptPlace;
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{FailureWeight, RankLoad};
use forebay_http1::header;
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{RelayError, SendPlan};
use forebay_router::request::{AnswerMeaning, Judgement};

/// A worker whose answer's head has come.
pub(crate) struct Answering {
    pub(crate) upstream: Upstream,
    /// It has read the whole request.
    pub(crate) sent: bool,
}

/// What is accounted while the answer passes.
pub(crate) struct Accounted<'a> {
    pub(crate) going: Going<'a>,
    pub(crate) lease: Lease,
    /// What it shows of its rank; `None` for what no engine computes, and for pairs.
    pub(crate) pulse: Option<&'a PulseWatch<'a>>,
    pub(crate) predicted: Option<Predicted>,
    pub(crate) paired: Option<&'a Paired<'a>>,
}

/// Takes in the head of an answer, and judges the rank by an error. An answer is a success when it
/// has come to its end. `is_kept`: another rank may go on with it.
pub(crate) fn head_came(
    shard: &Shard,
    slot: &mut Slot,
    going: Going<'_>,
    lease: &mut Lease,
    is_kept: bool,
) {
    judge_head(shard, slot, going, lease);
    // Nothing is sent a second time from here on, but the rest of a stream.
    if !is_kept {
        shard.io.recycle(std::mem::take(&mut slot.message));
        shard.io.recycle(std::mem::take(&mut slot.pair.leg_body));
        shard.routing.text.give(&shard.io, slot.prompt.end());
    }
    if slot.answer.status.is_none() {
        shard.env.counters.answered(going.endpoint as usize, slot.answer.head.status);
        slot.answer.status = Some(slot.answer.head.status);
    }
    let place = KeptPlace {
        rank: going.plan.rank,
        model: going.facts.model,
        tenant: slot.told.whom.tenant,
    };
    slot.told.noted.kept = KeptScan::of(shard, &slot.answer.head, going.endpoint, place);
}

fn judge_head(shard: &Shard, slot: &Slot, going: Going<'_>, lease: &mut Lease) {
    let status = slot.answer.head.status;
    if !(200..300).contains(&status) {
        // Nothing was computed, and the time of the answer says nothing of the rank's speed.
        lease.end_prefill();
    }
    match meaning(slot, going.plan) {
        AnswerMeaning::Failed(scope, weight) => {
            if weight == FailureWeight::Refused {
                lease.judge_taken();
            }
            blame::mark_failed(shard, lease, Judgement::Failure { scope, weight, status });
            // The worker may serve other models since a restart, or expect another key.
            let load = shard.workers.board.rank(lease.rank());
            if status == 404 || load.is_some_and(RankLoad::is_open) {
                shard.workers.suspect(going.plan.worker);
            }
        }
        // A tunnel ends when one of its ends wants it to: that shows nothing of the rank.
        _ if status == 101 => lease.judge_success(),
        _ => lease.judge_taken(),
    }
}

/// Relays the answer whose head is parsed in the slot. `answering` is borrowed: each connection
/// would hold it once more.
pub(crate) async fn answer(
    shard: &Shard,
    conn: &mut Conn,
    slot: &Slot,
    answering: &mut Option<Answering>,
    accounted: Accounted<'_>,
) -> Result<After, RelayError> {
    let Sending { env, io, workers } = shard.sending();
    if slot.answer.early.begun().is_some() && !Begun::goes_on_with(&slot.answer.head) {
        let endpoint = accounted.going.endpoint;
        let Some(answering) = answering.take() else { return Err(RelayError::BodyInvalid) };
        return Box::pin(end_early(shard.sending(), conn, slot, endpoint, answering)).await;
    }
    let Some(Answering { upstream, sent }) = answering else {
        debug_assert!(false, "no worker answers");
        return Err(RelayError::BodyInvalid);
    };
    let Accounted { going, mut lease, pulse, predicted, paired } = accounted;
    let Going { plan, endpoint, facts, .. } = going;
    let mut digits = [0; 10];
    let found = predicted.or_else(|| paired?.predicted);
    let own = OwnFields::of(slot, plan, found, paired, &mut digits);
    let wanted = wanted(env, slot, endpoint, own.get());
    let mut passed = Passed::new(workers, slot, endpoint, pulse);
    let down = DownWatch::new(env, workers, plan.worker);
    let mut client = Waiting { conn, leg: None, down };
    let start = going.body_start(&slot.request);
    let mut body = None;
    let relayed = relay(&mut client, upstream, &wanted, |data| {
        if !data.is_empty() {
            workers.hear(plan.worker);
            lease.share_trial();
            body.get_or_insert_with(|| BodyKind::of(data));
            lease.bytes_came(start, || env.now());
            passed.take(env, io, data);
            slot.told.noted.kept.feed(data);
        }
    });
    let relayed = relayed.await;
    let (told, cached) = passed.told();
    if let Some(trace) = &slot.told.trace {
        trace.passed(passed.first_at, told);
    }
    if let Some(first_at) = passed.first_at {
        let waited = first_at.since(facts.arrived_at);
        env.counters.choices().first_byte(facts.model, plan.rank, waited);
    }
    if slot.told.quota.is_counted() {
        let relayed = relayed.as_ref().map(|relayed| relayed.body_bytes).map_err(|error| *error);
        let end = passed.end(endpoint, relayed, env.now());
        bill::answered(workers, slot, &end);
    }
    let relayed = relayed?;
    let status = slot.answer.head.status;
    let is_inference = going.endpoint.is_inference();
    match blame::failed_at_end(status, body == Some(BodyKind::Answer) || !is_inference) {
        Some(judgement) => blame::mark_failed(shard, &mut lease, judgement),
        None if (200..300).contains(&status) => lease.judge_success(),
        None => {}
    }
    env.counters.add(Count::ResponseBytes, relayed.body_bytes);
    // Of a pair the rank that answers has not computed the prompt.
    if paired.is_none() {
        slot.told.noted.usage.set(told);
        prediction::account_answer(env, plan.rank, told, cached, predicted);
    }
    let is_reusable = relayed.upstream_reusable && *sent;
    if let Some(answering) = answering.take().filter(|_| is_reusable) {
        io.keep(env, answering.upstream);
    }
    Ok(if relayed.client_reusable { After::KeepAlive } else { After::Linger })
}

/// What the first bytes of a body show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    Answer,
    Error,
}

impl BodyKind {
    pub(crate) fn of(data: &[u8]) -> Self {
        if begins_with_error(data) { Self::Error } else { Self::Answer }
    }
}

/// Fields that the router adds to an answer. Each is compared with every field of the worker's.
pub(crate) struct OwnFields<'a> {
    fields: [(&'a str, &'a [u8]); 8 + RATE_FIELDS],
    count: usize,
}

impl<'a> OwnFields<'a> {
    pub(crate) fn of(
        slot: &'a Slot,
        plan: &'a SendPlan,
        found: Option<Predicted>,
        paired: Option<&'a Paired<'_>>,
        digits: &'a mut [u8; 10],
    ) -> Self {
        let overlap = found.map(|found| (header::OVERLAP_TOKENS, decimal(found.tokens(), digits)));
        let prefill =
            paired.map(|paired| (header::PREFILL_WORKER, paired.plan.shown_as.as_bytes()));
        let own = [
            Some((header::WORKER, plan.shown_as.as_bytes())),
            Some((header::REQUEST_ID, &slot.request_id[..])),
            overlap,
            prefill,
        ];
        let cors = slot.answer.cors_fields().into_iter().flatten();
        let limits = slot.answer.limits.fields().into_iter().filter(|(name, _)| !name.is_empty());
        let mut all = Self { fields: [("", &b""[..]); 8 + RATE_FIELDS], count: 0 };
        for (place, field) in
            all.fields.iter_mut().zip(own.into_iter().flatten().chain(cors).chain(limits))
        {
            *place = field;
            all.count += 1;
        }
        all
    }

    pub(crate) fn get(&self) -> &[(&'a str, &'a [u8])] {
        self.fields.get(..self.count).unwrap_or_default()
    }
}

/// How the client wants the answer whose head is parsed in the slot.
pub(crate) fn wanted<'a>(
    env: &Env,
    slot: &'a Slot,
    endpoint: Endpoint,
    extra: &'a [(&'a str, &'a [u8])],
) -> Answer<'a> {
    Answer {
        head: &slot.answer.head,
        client_version: slot.head.version,
        keep_alive: slot.head.keep_alive && !env.draining.is_set(),
        shape: StreamShape::of(endpoint).unwrap_or(StreamShape::OpenAi),
        head_sent: slot.answer.early.begun().is_some(),
        extra,
        idle_max: env.config().timeouts.stream_idle,
        write_max: env.config().timeouts.write,
    }
}

/// What of an answer has passed.
pub(crate) struct Passed<'a> {
    /// Apart: every open stream holds this, and most have none.
    pub(crate) scan: Option<Box<UsageScan>>,
    hits: Hits,
    is_stream: bool,
    /// When the first byte of a stream did.
    pub(crate) first_at: Option<NanosSinceStart>,
    /// When the last event did that may have a token, where these are counted.
    pub(crate) last_at: Option<NanosSinceStart>,
    pulse: Option<&'a PulseWatch<'a>>,
}

impl<'a> Passed<'a> {
    pub(crate) fn new(
        workers: &Workers,
        slot: &Slot,
        endpoint: Endpoint,
        pulse: Option<&'a PulseWatch<'a>>,
    ) -> Self {
        let scan = usage_scan(workers, slot, endpoint);
        let is_stream = slot.answer.head.event_stream;
        // What an HTTP server may say by itself tells nothing.
        let pulse = pulse.filter(|_| slot.answer.head.status == 200);
        Self { scan, hits: Hits::default(), is_stream, first_at: None, last_at: None, pulse }
    }

    pub(crate) fn hear(&mut self, env: &Env) {
        self.first_at = self.first_at.or_else(|| self.is_stream.then(|| env.now()));
        if let Some(pulse) = self.pulse {
            pulse.hear(self.first_at);
        }
    }

    pub(crate) fn take(&mut self, env: &Env, io: &Io, data: &[u8]) {
        self.hear(env);
        let Some(scan) = &mut self.scan else { return self.hits.feed(&io.hits, data) };
        if scan.feed(data) {
            self.last_at = Some(env.now());
        }
    }

    /// How the answer ended, for its bill.
    pub(crate) fn end(
        &self,
        endpoint: Endpoint,
        relayed: Result<u64, RelayError>,
        now: NanosSinceStart,
    ) -> AnswerEnd<'_> {
        let scan = self.scan.as_deref();
        let last_at = self.last_at;
        AnswerEnd { endpoint, scan, last_at, relayed, by_ids: None, now }
    }

    /// What the engine says of the tokens, and of those from its cache.
    pub(crate) fn told(&self) -> (Option<TokenUsage>, Option<u64>) {
        let of_scan = |scan: &UsageScan| (scan.told(), scan.cached());
        self.scan.as_deref().map_or_else(|| (self.hits.usage(), self.hits.cached()), of_scan)
    }
}

/// Reads off the answer what it costs, where somebody is to be counted for.
fn usage_scan(workers: &Workers, slot: &Slot, endpoint: Endpoint) -> Option<Box<UsageScan>> {
    let head = &slot.answer.head;
    let is_counted = workers.fleet.borrow().tenants.are_counted() && endpoint.is_inference();
    (is_counted && head.status == 200).then(|| {
        Box::new(UsageScan::new(match (endpoint, head.event_stream) {
            (Endpoint::Generate, true) => UsageForm::MetaInfoStream,
            (Endpoint::Generate, false) => UsageForm::MetaInfo,
            (_, true) => UsageForm::UsageStream,
            (_, false) => UsageForm::Usage,
        }))
    })
}

/// The engine's answer is not the stream that the client was promised: it becomes the last event of
/// one.
async fn end_early(
    sending: Sending<'_>,
    conn: &mut Conn,
    slot: &Slot,
    endpoint: Endpoint,
    answering: Answering,
) -> Result<After, RelayError> {
    let Some(begun) = slot.answer.early.begun() else { return Err(RelayError::BodyInvalid) };
    let Sending { env, io, workers } = sending;
    let Answering { mut upstream, sent } = answering;
    let idle_max = env.config().timeouts.stream_idle;
    let gathered = gather(conn, &mut upstream, &slot.answer.head, idle_max).await?;
    if gathered.upstream_reusable && sent {
        io.keep(env, upstream);
    }
    let mut passed = Passed::new(workers, slot, endpoint, None);
    passed.take(env, io, &gathered.body);
    let relayed = Ok(u64::try_from(gathered.body.len()).unwrap_or(u64::MAX));
    bill::answered(workers, slot, &passed.end(endpoint, relayed, env.now()));
    Ok(early_head::fail(begun, env, conn, slot.answer.head.status, &gathered.body).await)
}

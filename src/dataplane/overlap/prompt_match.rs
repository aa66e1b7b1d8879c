//! render, index: overlap of each rank with a prompt ([`forebay_select::PromptOverlaps`]), found
//! once per request, counted and timed. The shard matches small prompts inline, without an await.
//! The offload thread matches large prompts.

use crate::exchange::buffers::Buffers;
use crate::exchange::phase::{Delivery, MatchPhase, TargetPhase};
use crate::exchange::request::Request;
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::runtime::{Tools, offloaded};
use crate::state::env::Env;
use crate::state::io::Io;
use crate::state::routing::RoutingState;
use crate::state::shard::Shard;
use crate::state::workers::ShardFleet;
use forebay_base::limits::{INLINE_BODY_BYTES_MAX, TEMPLATE_WAIT_MAX};
use forebay_base::{ModelIndex, RankIndex};
use forebay_board::account::{Count, Stage};
use forebay_disagg::{SplitRequest, inspect};
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_index::IndexReader;
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource};
use forebay_prompt::render::{RenderMethod, RenderThread, Unrenderable, name_images};
use forebay_router::request::{Split, Stop, WorkerReply};
use forebay_select::{MatchRequest, Prompt};
use std::mem::take;
use std::time::Duration;

/// A request's model in the current fleet.
#[derive(Clone, Copy)]
pub(crate) struct ModelRequest<'a> {
    pub(crate) fleet: &'a ShardFleet,
    pub(crate) model_index: ModelIndex,
    pub(crate) model: &'a Model,
    pub(crate) endpoint: Endpoint,
}

impl<'a> ModelRequest<'a> {
    pub(crate) fn request(
        self,
        index: &'a IndexReader,
        request: &'a ApiRequest,
        body: &'a [u8],
    ) -> MatchRequest<'a> {
        let Self { fleet, model, .. } = self;
        let thread = RenderThread::Shard;
        MatchRequest { index, fleet, model, request, body, thread }
    }
}

/// Renders the prompt and walks the index for all ranks of the model. The match stays in the prompt
/// until the answer begins. A prompt that cannot be matched has no overlap.
///
/// # Errors
/// The request stops while it waits for the offload thread.
pub(crate) async fn find<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, TargetPhase>,
) -> Result<Exchange<'c, MatchPhase>, RefusedExchange<'c>> {
    let Exchange { request, phase: TargetPhase { endpoint, fleet, facts, .. } } = &mut exchange;
    let split = match fleet.models.get(facts.model.index()) {
        Some(model) => {
            let asked =
                ModelRequest { fleet, model_index: facts.model, model, endpoint: *endpoint };
            match_prompt(&shard.env, &shard.io, &shard.routing, conn, request, asked).await
        }
        None => Ok(Split::default()),
    };
    match split {
        Ok(split) => {
            let Exchange { request, phase } = exchange;
            let TargetPhase { endpoint, new_request, places, facts, resumable, .. } = phase;
            let delivery = Delivery { split, resumable, reply: WorkerReply::default() };
            let phase = MatchPhase { endpoint, new_request, places, facts, delivery };
            Ok(Exchange { request, phase })
        }
        Err(stop) => Err(exchange.stop(stop)),
    }
}

async fn match_prompt(
    env: &Env,
    io: &Io,
    routing: &RoutingState,
    conn: &mut Conn,
    request: &mut Request<'_>,
    asked: ModelRequest<'_>,
) -> Result<Split, Stop> {
    routing.text.give(io, request.prompt.end());
    let has_prompt = !matches!(
        asked.endpoint,
        Endpoint::Models | Endpoint::StoredResponse | Endpoint::WebSocket
    );
    let matches = env.config().policy.uses_overlap() && has_prompt;
    let is_large = request.body().len() > INLINE_BODY_BYTES_MAX;
    let is_split = || !asked.model.ranks.iter().all(|&rank| asked.fleet.is_whole_only(rank));
    let inspects = is_large && is_split();
    let is_here = || request.api.scanned_on_shard && !inspects && is_mostly_ascii(request.body());
    if matches && (!is_large || is_here()) && here(env, io, routing, request, asked) {
        return Ok(Split::default());
    }
    if !matches && !inspects || io.offload.is_full() {
        env.counters.add(Count::Unrenderable, u64::from(matches));
        return Ok(Split::default());
    }
    let bytes_per_token = routing.stages.borrow().matching.ratios.of(asked.model_index);
    let wanting = MatchWork { matches, inspects, bytes_per_token };
    elsewhere(env, io, conn, request, asked, wanting).await
}

/// Limit of non-ASCII bytes in a long body that the shard renders itself.
const OTHERS_MAX: usize = 24 * 1024;

/// Non-ASCII text may need Unicode composition, which costs more than the rest of the match.
fn is_mostly_ascii(body: &[u8]) -> bool {
    // A sum of bytes compiles to vector code, a count does not.
    let others = |part: &[u8]| usize::from(part.iter().map(|byte| byte >> 7).sum::<u8>());
    body.chunks(128).map(others).sum::<usize>() <= OTHERS_MAX
}

/// Matches on the shard. False if that takes too long and the offload thread may take over.
fn here(
    env: &Env,
    io: &Io,
    routing: &RoutingState,
    request: &mut Request<'_>,
    asked: ModelRequest<'_>,
) -> bool {
    let mut stages = routing.stages.borrow_mut();
    let start = env.now();
    let ratio = stages.matching.ratios.of(asked.model_index);
    let text = routing.text.take(io, request.body().len());
    request.prompt.begin(text);
    let Buffers { prompt, api, message, head, .. } = &mut *request.buffers;
    let body = message.get(head.head_bytes..).unwrap_or_default();
    let ask = asked.request(&routing.index, api, body);
    let rendered = prompt.write_text(&ask);
    // Templates never run on a shard: a body of 0.7 MB blocked a shard for seconds.
    if rendered == Some(Err(Unrenderable::NotHere)) {
        return false;
    }
    let is_large = body.len() > INLINE_BODY_BYTES_MAX;
    if prompt.prompt_bytes() > 0 {
        let rendered_at = env.now();
        let matched = &mut stages.matching.matched;
        matched.walk(&ask, prompt, &asked.model.ranks, ratio);
        if is_large && matched.is_cut() && !io.offload.is_full() {
            return false;
        }
        env.histograms.borrow_mut().record(Stage::Render, rendered_at.since(start));
        env.time(Stage::Index, rendered_at);
    }
    env.count_render(rendered);
    true
}

/// Work for the offload thread.
#[derive(Clone, Copy)]
struct MatchWork {
    matches: bool,
    inspects: bool,
    bytes_per_token: f32,
}

/// A request on its way to the offload thread and back.
struct OffloadedMatch {
    message: Vec<u8>,
    head_bytes: usize,
    request: Box<ApiRequest>,
    prompt: Prompt,
    /// Parts of the body that a KV transfer needs.
    kv_transfer: Option<SplitRequest>,
    rendered: Option<Result<RenderMethod, Unrenderable>>,
    /// Time spent rendering and walking.
    spent: [u64; 2],
}

impl OffloadedMatch {
    /// Takes the parts that the offload thread needs. The prompt gets a buffer of the shard.
    fn take(request: &mut Request<'_>, io: &Io) -> Self {
        let mut prompt = take(&mut request.prompt);
        let buffer = prompt.end();
        prompt.begin(if buffer.capacity() > 0 { buffer } else { io.buffers.take() });
        Self {
            message: take(&mut request.message),
            head_bytes: request.head.head_bytes,
            request: take(&mut request.api),
            prompt,
            kv_transfer: None,
            rendered: None,
            spent: [0; 2],
        }
    }

    fn inspect(&mut self, endpoint: Endpoint) {
        let body = self.message.get(self.head_bytes..).unwrap_or_default();
        self.kv_transfer = inspect(body, endpoint).ok();
    }

    fn match_prompt(
        &mut self,
        tools: &mut Tools,
        fleet: &FleetSnapshot,
        model: &Model,
        bytes_per_token: f32,
    ) {
        let Tools { matched, index, clock, posted_at } = tools;
        let start = clock.now();
        let body = self.message.get(self.head_bytes..).unwrap_or_default();
        let request = &self.request;
        let thread = RenderThread::Offload;
        let ask = MatchRequest { index, fleet, model, request, body, thread };
        let is_late = Duration::from_nanos(start.since(*posted_at)) > TEMPLATE_WAIT_MAX
            && self.request.prompt == PromptSource::Messages;
        self.rendered = match is_late {
            true => self.prompt.write_late(&ask),
            false => self.prompt.write_text(&ask),
        };
        let rendered_at = clock.now();
        matched.walk(&ask, &mut self.prompt, &model.ranks, bytes_per_token);
        // The walk used the thread's memory; the shard's memory holds another prompt.
        self.prompt.leave();
        self.spent = [rendered_at.since(start), clock.now().since(rendered_at)];
    }
}

async fn elsewhere(
    env: &Env,
    io: &Io,
    conn: &mut Conn,
    request: &mut Request<'_>,
    asked: ModelRequest<'_>,
    wanting: MatchWork,
) -> Result<Split, Stop> {
    let MatchWork { matches, inspects, bytes_per_token } = wanting;
    let body_bytes = request.body().len();
    let mut away = OffloadedMatch::take(request, io);
    let fleet = asked.fleet.lend();
    let model_index = asked.model_index;
    let endpoint = asked.endpoint;
    let done = offloaded(&io.offload, conn, body_bytes, move |tools| {
        let model = fleet.models.get(model_index.index()).filter(|_| matches);
        // Before the inspection: it must see the body that engines receive.
        if let Some(model) = model {
            let OffloadedMatch { request, message, head_bytes, .. } = &mut away;
            name_images(request, message, *head_bytes, fleet.image_key_of(model));
        }
        if inspects {
            away.inspect(endpoint);
        }
        if let Some(model) = model {
            away.match_prompt(tools, &fleet, model, bytes_per_token);
        }
        away
    });
    let away = done.await?;
    request.message = away.message;
    request.api = away.request;
    request.prompt = away.prompt;
    let split = if inspects { Split::known(away.kv_transfer) } else { Split::default() };
    if matches {
        env.count_render(away.rendered);
    }
    if request.prompt.prompt_bytes() > 0 {
        let mut histograms = env.histograms.borrow_mut();
        for (stage, nanos) in [Stage::Render, Stage::Index].into_iter().zip(away.spent) {
            histograms.record(stage, nanos);
        }
    }
    Ok(split)
}

/// Bytes of prompts that fit into a rank's cache; 0 if the engine does not report its capacity.
pub(crate) fn cache_bytes(fleet: &FleetSnapshot, rank: RankIndex) -> usize {
    /// Measured for English and code with common vocabularies: 3.5 to 4.5.
    const BYTES_PER_TOKEN: u64 = 4;
    let tokens = fleet.kv_capacity_tokens(rank);
    usize::try_from(tokens.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX)
}

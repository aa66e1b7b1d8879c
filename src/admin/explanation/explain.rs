//! Explains the routing of a prompt, for `/debug/overlap`: the blocks that each rank holds or is
//! predicted to hold, each rank's cost, and the rank that would be selected. Runs the stages that
//! shards run (parse, render, index, select) on a thread of its own (`explain_thread`), with its
//! own working memory. Reads the load board, the reports and the index, and changes none of them:
//! no lease, no trial of a breaker. The position of `round_robin` is not known here.

use super::explain_words::{NoMatch, guess, leg_name, predictions, route_because, route_name, way};
use crate::calls::workers::{report, state};
use axum::body::Bytes;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{ModelIndex, NanosSinceStart, RankIndex};
use forebay_board::account::ShardCounters;
use forebay_board::{LoadBoard, LoadReports, RankLoad, ShardBoard};
use forebay_config::{Config, Policy, QueueMode};
use forebay_disagg::inspect;
use forebay_fleet::worker::{
    FleetSnapshot, KvTransfer, Leg, Model, Requester, Role, SESSION_DRAW_END, SessionKey,
};
use forebay_http1::{Method, RequestHead};
use forebay_index::IndexReader;
use forebay_prompt::parse::{ApiRequest, Endpoint, Reason, Refusal, route, scan, session_key};
use forebay_prompt::render::{RenderMethod, RenderThread, name_images};
use forebay_select::{
    self, BYTES_PER_TOKEN_DEFAULT, Binder, Candidates, ChoiceReason, MatchRequest, NoModel, NoPair,
    PickRequest, Prices, Prompt, PromptOverlaps, PromptSize, RankCost, RankSearch, RoundRobin,
    Route, RouteRequest, RouteRules, is_anchor, lease_cost, model, most_held, output_tokens, pick,
    served_as,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The request to explain.
#[derive(Debug)]
pub struct ExplainRequest {
    /// Path that the request would be sent to.
    pub endpoint: String,
    /// The body of the request.
    pub body: Bytes,
    /// The leg to explain; `None`: the leg that sends the response.
    pub leg: Option<Leg>,
    /// Session name that a header field would carry.
    pub session: Option<String>,
    /// Include the rendered prompt in the answer.
    pub with_text: bool,
}

/// Sources of an explanation.
#[derive(Debug)]
pub(crate) struct ExplainSources<'a> {
    pub(crate) config: &'a Config,
    pub(crate) fleet: &'a FleetSnapshot,
    pub(crate) board: &'a Arc<LoadBoard>,
    pub(crate) reports: &'a LoadReports,
    pub(crate) index: &'a IndexReader,
    pub(crate) counters: &'a [Arc<ShardCounters>],
    pub(crate) now: NanosSinceStart,
}

/// Working memory, reused by all explanations.
#[derive(Debug)]
pub(crate) struct Explainer {
    request: ApiRequest,
    matched: PromptOverlaps,
    prompt: Prompt,
    candidates: Candidates,
    turn: RoundRobin,
    random: fastrand::Rng,
}

/// An explanation in progress.
struct Case<'a> {
    sources: &'a ExplainSources<'a>,
    model: &'a Model,
    leg: Leg,
    prompt: PromptSize,
    session: Option<SessionKey>,
}

impl Case<'_> {
    /// Requester without a caller, which has no recorded failures.
    fn requester(&self) -> Requester {
        let named = self.sources.fleet.model(&self.model.name);
        let model = named.map_or(ModelIndex(0), |(index, _)| index);
        Requester { caller: u32::MAX, model, is_forced: false }
    }
}

impl Explainer {
    pub(crate) fn new() -> Self {
        Self {
            request: ApiRequest::default(),
            matched: PromptOverlaps::new(RANKS_MAX),
            prompt: Prompt::default(),
            candidates: Candidates::default(),
            turn: RoundRobin::default(),
            random: fastrand::Rng::new(),
        }
    }

    /// The explanation, or the refusal that the request itself would get.
    pub(crate) fn explain(
        &mut self,
        asked: &ExplainRequest,
        sources: &ExplainSources<'_>,
    ) -> Result<Value, Refusal> {
        let endpoint = route(&Method::Post, asked.endpoint.as_bytes())?;
        scan(&asked.body, endpoint, &mut self.request)?;
        let session = self.session(asked, sources.config);
        self.rename(sources.fleet, session);
        let (model_index, model) =
            model(sources.fleet, endpoint, &self.request).map_err(|none| match none {
                NoModel::NoneYet => Refusal::new(Reason::NoHealthyWorker),
                NoModel::Unknown if self.request.is_renamed() => {
                    Refusal::unserved_alias(self.request.asked_model())
                }
                NoModel::Unknown => Refusal::unknown_model(self.request.asked_model()),
                NoModel::Missing => Refusal::missing_model(),
                NoModel::NoPath => Refusal::no_path_without_model(),
            })?;
        let learnt = bytes_per_token(sources.counters, model_index);
        let ratio = learnt.unwrap_or(BYTES_PER_TOKEN_DEFAULT);
        let mut body = asked.body.to_vec();
        let image_key = sources.fleet.image_key_of(model);
        name_images(&mut self.request, &mut body, 0, image_key);
        let rendered = self.match_prompt(&body, model, ratio, sources);
        let prompt_bytes = match self.matched.prompt_bytes() {
            0 => self.request.text_bytes(u64::try_from(body.len()).unwrap_or(u64::MAX)),
            matched => matched,
        };
        let prompt_size = PromptSize::new(prompt_bytes, ratio);
        let mut case = Case { sources, model, leg: Leg::Whole, prompt: prompt_size, session };
        let route = self.route(&body, endpoint, &case);
        case.leg = asked.leg.unwrap_or(match route {
            Ok(Route::Pair) => Leg::Decode,
            Ok(Route::Whole(_)) | Err(_) => Leg::Whole,
        });
        let choice = self.choose(&case, None);
        // The prefill rank of the pair, near the chosen decode rank.
        let prefill = choice.rank.filter(|_| case.leg == Leg::Decode).and_then(|decode| {
            let prefill = Case { leg: Leg::Prefill, ..case };
            self.choose(&prefill, Some(decode)).rank
        });
        let ranks: Vec<Value> =
            model.ranks.iter().filter_map(|&rank| self.rank(rank, &case)).collect();
        let text = asked.with_text.then(|| String::from_utf8_lossy(self.prompt.text()));
        let prompt = json!({
            "bytes": self.matched.prompt_bytes(),
            "rendered_by": rendered.ok().map(way),
            "not_matched": rendered.err().map(|reason| reason.to_string()),
            "text": text,
        });
        let block_sizes: Vec<u32> =
            model.roots.blocks.iter().map(|root| root.block_size_tokens).collect();
        Ok(json!({
            "endpoint": endpoint.name(),
            "model": &*model.name,
            "asked_model": self.request.asked_model(),
            "predictions": predictions(sources.fleet, model, self.request.shape()),
            "policy": sources.config.policy.name(),
            "prompt": prompt,
            "route": route_name(route),
            "route_because": route_because(route),
            "route_refused": route.err().map(NoPair::why),
            "leg": leg_name(case.leg),
            "block_sizes": block_sizes,
            "bytes_per_token": ratio,
            "bytes_per_token_learnt": learnt.is_some(),
            "has_session": case.session.is_some(),
            "chosen": choice.rank.and_then(|rank| named(rank, sources.fleet)),
            "because": choice.because,
            "prefill_chosen": prefill.and_then(|rank| named(rank, sources.fleet)),
            "by_chance": choice.by_chance,
            "none_because": choice.none_because,
            "waits_for": choice.waits_for.and_then(|rank| named(rank, sources.fleet)),
            "ranks": ranks,
        }))
    }

    fn match_prompt(
        &mut self,
        body: &[u8],
        model: &Model,
        bytes_per_token: f32,
        sources: &ExplainSources<'_>,
    ) -> Result<RenderMethod, NoMatch> {
        let request = &self.request;
        let thread = RenderThread::Offload;
        let index = sources.index;
        let fleet = sources.fleet;
        let ask = MatchRequest { index, fleet, model, request, body, thread };
        let buffer = self.prompt.end();
        self.prompt.begin(buffer);
        let rendered = self.prompt.write_text(&ask);
        self.matched.walk(&ask, &mut self.prompt, &model.ranks, bytes_per_token);
        let none = if request.reads_no_cache { NoMatch::ReadsNoCache } else { NoMatch::NoText };
        rendered.ok_or(none)?.map_err(NoMatch::from)
    }

    fn request<'a>(&'a self, case: &Case<'a>) -> PickRequest<'a> {
        let request = PickRequest {
            requester: case.requester(),
            leg: case.leg,
            ranks: self.candidates.ranks(),
            board: case.sources.board,
            reports: case.sources.reports,
            now: case.sources.now,
            overlaps: self.matched.overlaps(),
            fleet: case.sources.fleet,
            prices: Prices::of(
                case.sources.config.policy,
                case.sources.fleet,
                case.sources.board,
                &case.model.ranks,
            ),
            prompt: case.prompt,
            marks: self.prompt.marks(),
            session: case.session,
            anchor: None,
        };
        let anchor = request.anchor_among(case.sources.config.policy, request.ranks);
        PickRequest { anchor, ..request }
    }

    /// Applies the `[[model]]` tables. Without a session the served model is drawn at random.
    fn rename(&mut self, fleet: &FleetSnapshot, session: Option<SessionKey>) {
        let asked = &self.request.model;
        let any = self.random.u64(..SESSION_DRAW_END);
        let served = served_as(fleet, asked, || session.map_or(any, |session| session.draw(asked)));
        if let Some(served) = served.filter(|_| self.request.has_model) {
            self.request.rename(served);
        }
    }

    /// The session of the query, else the session of the body.
    fn session(&self, asked: &ExplainRequest, config: &Config) -> Option<SessionKey> {
        let head = RequestHead::default();
        let named = asked.session.as_deref().map(|name| SessionKey::of(name.as_bytes()));
        named.unwrap_or_else(|| {
            session_key(&config.session, &head, &[], (&self.request, &asked.body))
        })
    }

    /// Decides between a pair and a single rank.
    fn route(&mut self, body: &[u8], endpoint: Endpoint, case: &Case<'_>) -> Result<Route, NoPair> {
        let ExplainSources { fleet, .. } = *case.sources;
        let mut candidates = std::mem::take(&mut self.candidates);
        let asked = RouteRequest {
            fleet,
            model: case.model,
            request: PickRequest { ranks: &[], ..self.request(case) },
            pin: None,
            tried: &[],
            ignores_pauses: false,
            rules: RouteRules::of(&fleet.config.flow.disaggregation),
        };
        let wanted = inspect(body, endpoint).ok();
        let can_split =
            |kv_transfer: &KvTransfer| wanted.as_ref().is_some_and(|w| w.can_split(kv_transfer));
        let found = forebay_select::route(&asked, &mut candidates, can_split);
        self.candidates = candidates;
        found
    }

    fn collect(&mut self, case: &Case<'_>, near: Option<RankIndex>) -> bool {
        let ExplainSources { fleet, board, now, .. } = *case.sources;
        let seeking =
            RankSearch { requester: case.requester(), leg: case.leg, near, pin: None, tried: &[] };
        self.candidates.collect(fleet, case.model, board, seeking, now).is_ok()
    }

    fn choose(&mut self, case: &Case<'_>, near: Option<RankIndex>) -> Choice {
        let policy = case.sources.config.policy;
        if !self.collect(case, near) {
            return Choice::none("no rank is healthy");
        }
        if case.leg == Leg::Decode {
            return self.choose_decode(case);
        }
        let waits = has_target(policy, case.sources.fleet);
        loop {
            let mut turn = std::mem::take(&mut self.turn);
            let mut random = self.random.clone();
            let picked = pick(policy, &self.request(case), &mut turn, &mut random);
            self.turn = turn;
            self.random = random;
            let Some(rank) = picked else { return Choice::none("no rank has room") };
            if self.has_room(rank, case) {
                return Choice::of(policy, rank, &self.request(case));
            }
            if waits {
                return Choice::waits_for(rank);
            }
            self.candidates.remove(rank);
        }
    }

    fn has_room(&self, rank: RankIndex, case: &Case<'_>) -> bool {
        let ExplainSources { fleet, board, now, .. } = *case.sources;
        let limits = board.limits_now(rank, fleet.room(rank));
        let output_tokens = output_tokens(self.request.max_tokens);
        let wanted = lease_cost(&self.request(case), rank, output_tokens).room_wanted();
        let has_room = |load: &RankLoad| load.has_room(load.room_at(limits, None, now), wanted);
        board.rank(rank).is_some_and(has_room)
    }

    /// Selects a decode rank together with its prefill rank, or a rank that serves the whole
    /// request.
    fn choose_decode(&mut self, case: &Case<'_>) -> Choice {
        let ExplainSources { config, fleet, board, reports, now, .. } = *case.sources;
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut turn = std::mem::take(&mut self.turn);
        let mut random = self.random.clone();
        let request = PickRequest { ranks: &[], ..self.request(case) };
        let board = ShardBoard::from(Arc::clone(board));
        let mut binder = Binder {
            fleet,
            board: &board,
            reports,
            policy: config.policy,
            now,
            turn: &mut turn,
            random: &mut random,
        };
        let output_tokens = output_tokens(self.request.max_tokens);
        let picked = binder.would_bind(&request, output_tokens, &mut candidates);
        let weight = |rank| binder.weight(&request, &candidates, rank);
        let equal =
            |rank| candidates.ranks().iter().filter(|&&r| weight(r) == weight(rank)).count();
        let choice = picked.map_or(Choice::none("no rank has room"), |rank| Choice {
            rank: Some(rank),
            because: Some(match candidates.ranks().len() {
                _ if fleet.is_whole_only(rank) => "no_pair_has_room",
                1 => "only_candidate",
                _ => "cheapest_pair",
            }),
            by_chance: equal(rank) > 1,
            none_because: None,
            waits_for: None,
        });
        self.candidates = candidates;
        self.turn = turn;
        self.random = random;
        choice
    }

    fn rank(&self, index: RankIndex, case: &Case<'_>) -> Option<Value> {
        let sources = case.sources;
        let (rank, worker) = sources.fleet.rank(index)?;
        let load = sources.board.rank(index)?;
        let held = self.matched.by_events(index, rank.tiers);
        let reported = held.device;
        // In a pair, a rank that only prefills is shown with its cost as the prefill leg. A rank of
        // both roles is shown with its cost as the whole request.
        let leg = match (case.leg, rank.role) {
            (Leg::Decode, Role::Prefill) => Leg::Prefill,
            (Leg::Decode, Role::Both) => Leg::Whole,
            (leg, _) => leg,
        };
        let parts = PickRequest { leg, ..self.request(case) }.cost_parts(index)?;
        let cached = reported.servable_blocks(self.prompt.whole_bytes());
        let (guess, guessed_bytes) = guess(&self.matched, sources.fleet, index);
        Some(json!({
            "rank": index.0,
            "worker": &*worker.name,
            "dp_rank": rank.dp_rank.0,
            "role": rank.role.name(),
            "topology": rank.topology.as_deref(),
            "leg": leg_name(leg),
            "serves_leg": sources.fleet.serves(index, leg),
            "overlap_blocks": reported.blocks,
            "overlap_bytes": reported.bytes,
            "overlap_kind": rank.tiers.overlap_kind(),
            "host_overlap_bytes": held.host.bytes,
            "disk_overlap_bytes": held.disk.bytes,
            "kv_pool_overlap_bytes": held.kv_pool.bytes,
            "weighed_overlap_bytes": self.matched.overlaps().get(index).bytes,
            "guess": (guessed_bytes > 0).then_some(guess),
            "guessed_bytes": guessed_bytes,
            "cached_tokens_expected": case.prompt.cached_tokens(reported, cached, rank),
            "uncached_tokens": parts.uncached_tokens,
            "cost": parts.total().0,
            "cost_parts": {
                "queued_tokens": parts.queued_tokens,
                "uncached_tokens": parts.uncached_tokens,
                "evicted_tokens": parts.evicted_tokens,
                "delay_tokens": parts.delay_tokens,
                "running_tokens": parts.running_tokens,
                "held_tokens": parts.held_tokens,
                "reported_tokens": parts.reported_tokens,
                "slower_tokens": parts.slower_tokens,
            },
            "state": state(worker.state),
            "draining": worker.state.is_draining(),
            "kv_events": rank.kv_feed_live,
            "failures": load.failures(),
            "breaker_open": load.is_restricted(),
            "breaker_admits": load.breaker_admits(sources.now, None),
            "has_room": self.has_room(index, case),
            "in_flight": load.in_flight(),
            "prefill_tokens": load.prefill_tokens(),
            "prefill_tokens_per_s": sources.board.past(index)?.prefill_tokens_per_s(),
            "wait_tokens_per_s": sources.board.past(index)?.wait_tokens_per_s(),
            "decode_tokens": load.kv_tokens(),
            "report": report(index, sources.reports, sources.now),
        }))
    }
}

/// Bytes per token of a model: mean over the shards that have measured the ratio.
fn bytes_per_token(counters: &[Arc<ShardCounters>], model: ModelIndex) -> Option<f32> {
    let mut sum = 0.0_f32;
    let mut count = 0.0_f32;
    for ratio in counters.iter().filter_map(|shard| shard.bytes_per_token(model)) {
        sum += ratio;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

struct Choice {
    rank: Option<RankIndex>,
    because: Option<&'static str>,
    /// True if the choice was random among several ranks.
    by_chance: bool,
    none_because: Option<&'static str>,
    /// The cheapest rank, which has no room; the request waits for it.
    waits_for: Option<RankIndex>,
}

impl Choice {
    fn none(because: &'static str) -> Self {
        let none_because = Some(because);
        Self { rank: None, because: None, by_chance: false, none_because, waits_for: None }
    }

    fn waits_for(rank: RankIndex) -> Self {
        Self { waits_for: Some(rank), ..Self::none("it waits for room on its rank") }
    }

    fn of(policy: Policy, rank: RankIndex, request: &PickRequest<'_>) -> Self {
        let by_chance = is_by_chance(policy, rank, request);
        let because = Some(because(policy, rank, request, by_chance));
        Self { rank: Some(rank), because, by_chance, none_because: None, waits_for: None }
    }
}

/// True if a request waits for the cheapest rank when that rank has no room.
fn has_target(policy: Policy, fleet: &FleetSnapshot) -> bool {
    let is_pool = fleet.config.flow.queue.mode == QueueMode::Pool;
    is_pool && policy.has_target()
}

fn is_by_chance(policy: Policy, picked: RankIndex, request: &PickRequest<'_>) -> bool {
    let ties = |key: &dyn Fn(RankIndex) -> u64| {
        request.ranks.iter().filter(|&&rank| key(rank) == key(picked)).count() > 1
    };
    match policy {
        // The distances of a session decide.
        Policy::Kv | Policy::Session if request.session.is_some() => false,
        Policy::Session => ties(&|rank| request.load_only(rank).0),
        _ if policy.compares_all() => ties(&|rank| request.weight(policy, rank, RankCost::MAX).0),
        _ => request.ranks.len() > 1,
    }
}

/// Label of the reason: a [`ChoiceReason`]; `chance` if no rank holds any of the prompt and costs
/// tie; the policy's name for [`ChoiceReason::Load`].
fn because(
    policy: Policy,
    picked: RankIndex,
    request: &PickRequest<'_>,
    by_chance: bool,
) -> &'static str {
    let most = most_held(request.overlaps, |rank| request.ranks.contains(&rank));
    let picked_bytes = request.overlaps.get(picked).bytes;
    let session = request.session.filter(|_| policy == Policy::Session);
    let ranks = request.ranks.iter().copied();
    let is_kept = is_anchor(session, request.fleet, picked, ranks);
    match ChoiceReason::of(policy, picked_bytes, most, request.ranks.len() == 1, is_kept) {
        ChoiceReason::Cheapest if by_chance => "chance",
        ChoiceReason::Load => policy.name(),
        because => because.name(),
    }
}

fn named(index: RankIndex, fleet: &FleetSnapshot) -> Option<Value> {
    let (rank, worker) = fleet.rank(index)?;
    Some(json!({ "rank": index.0, "worker": &*worker.name, "dp_rank": rank.dp_rank.0 }))
}

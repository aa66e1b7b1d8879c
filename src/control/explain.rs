//! One prompt explained, for `POST /debug/overlap`: what of it each rank holds, what each rank would cost, and which one
//! would get it. Runs the stages that shards run (parse, render, index, select) on the control plane's thread, with its
//! own working memory; reads the load board and the index, and changes neither: no lease, no trial of a breaker.
//!
//! What a shard knows and this does not: the bytes per token that it has learnt, and whose turn it is in `round_robin`.

use super::workers::state;
use crate::base::limits::RANKS_MAX;
use crate::base::{NanosSinceStart, RankIndex};
use crate::config::{KvConfig, Policy};
use crate::http1::Method;
use crate::index::{IndexReader, Overlaps};
use crate::parse::{ApiRequest, Reason, Refusal, route, scan};
use crate::render::{Rendered, Unrenderable, render};
use crate::select::{
    BYTES_PER_TOKEN_DEFAULT, Candidates, NoModel, PickRequest, RoundRobin, TierOverlaps,
    cache_namespace, model, pick, weigh_tiers,
};
use crate::worker::{FleetSnapshot, LoadBoard, Model};
use axum::body::Bytes;
use serde_json::{Value, json};

/// What is to be explained.
#[derive(Debug)]
pub(super) struct Asked {
    /// Path that the request would be sent to.
    pub(super) endpoint: String,
    /// The request's body.
    pub(super) body: Bytes,
    /// Put the rendered prompt into the answer.
    pub(super) with_text: bool,
}

/// What the answer is made from.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) fleet: &'a FleetSnapshot,
    pub(super) board: &'a LoadBoard,
    pub(super) index: &'a IndexReader,
    pub(super) policy: Policy,
    pub(super) kv: KvConfig,
    pub(super) rank_concurrency_max: u32,
    pub(super) now: NanosSinceStart,
}

/// Working memory, used again for every question.
#[derive(Debug)]
pub(super) struct Explainer {
    request: ApiRequest,
    prompt: Vec<u8>,
    /// Length of the whole prompt, of which that may be a part.
    prompt_bytes: u64,
    /// What the walk found.
    found: Overlaps,
    /// The same with tiers weighed: what the choice rests on.
    overlaps: Overlaps,
    /// What is only believed is not explained: shards know it by the moment, and it is gone by the next.
    on_the_way: Overlaps,
    candidates: Candidates,
    turn: RoundRobin,
    random: fastrand::Rng,
}

impl Explainer {
    pub(super) fn new() -> Self {
        Self {
            request: ApiRequest::default(),
            prompt: Vec::new(),
            prompt_bytes: 0,
            found: Overlaps::new(RANKS_MAX),
            overlaps: Overlaps::new(RANKS_MAX),
            on_the_way: Overlaps::new(0),
            candidates: Candidates::default(),
            turn: RoundRobin::default(),
            random: fastrand::Rng::new(),
        }
    }

    /// The explanation, or the refusal that the request itself would get.
    pub(super) fn explain(
        &mut self,
        asked: &Asked,
        sources: &Sources<'_>,
    ) -> Result<Value, Refusal> {
        let endpoint = route(&Method::Post, asked.endpoint.as_bytes())?;
        scan(&asked.body, endpoint, &mut self.request)?;
        let (_, model) =
            model(sources.fleet, endpoint, &self.request).map_err(|none| match none {
                NoModel::NoneYet => Refusal::new(Reason::NoHealthyWorker),
                NoModel::Unknown => Refusal::unknown_model(&self.request.model),
                NoModel::Missing => Refusal::missing_model(),
            })?;
        let rendered = self.match_prompt(&asked.body, model, sources);
        let choice = self.choose(model, sources);
        let ranks: Vec<Value> =
            model.ranks.iter().filter_map(|&rank| self.rank(rank, sources)).collect();
        let text = asked.with_text.then(|| String::from_utf8_lossy(&self.prompt));
        let prompt = json!({
            "bytes": self.prompt.len(),
            "rendered_by": rendered.ok().map(way),
            "not_matched": rendered.err().map(|reason| reason.to_string()),
            "text": text,
        });
        Ok(json!({
            "endpoint": endpoint.name(),
            "model": &*model.name,
            "policy": sources.policy.name(),
            "prompt": prompt,
            "block_sizes": model.roots.iter().map(|root| root.block_size_tokens).collect::<Vec<_>>(),
            "bytes_per_token": BYTES_PER_TOKEN_DEFAULT,
            "chosen": choice.rank.and_then(|rank| named(rank, sources.fleet)),
            "by_chance": choice.by_chance,
            "none_because": choice.none_because,
            "ranks": ranks,
        }))
    }

    fn match_prompt(
        &mut self,
        body: &[u8],
        model: &Model,
        sources: &Sources<'_>,
    ) -> Result<Rendered, Unmatched> {
        self.prompt.clear();
        self.prompt_bytes = 0;
        self.found.clear();
        self.overlaps.clear();
        let text = model.text.as_ref().ok_or(Unmatched::NoText)?;
        let rendered = render(&self.request, body, text, &mut self.prompt)?;
        self.prompt_bytes = rendered.prompt_bytes(self.prompt.len());
        sources.index.overlap_of_roots(
            &model.roots,
            &cache_namespace(model, &self.request),
            &self.prompt,
            &mut self.found,
        );
        let Sources { fleet, kv, .. } = sources;
        weigh_tiers(fleet, &model.ranks, *kv, &self.found, &mut self.overlaps);
        Ok(rendered)
    }

    fn choose(&mut self, model: &Model, sources: &Sources<'_>) -> Choice {
        let none = |because| Choice { rank: None, by_chance: false, none_because: Some(because) };
        let Sources { fleet, board, now, .. } = sources;
        if self.candidates.collect(fleet, model, board, &[], *now).is_err() {
            return none("no rank is healthy");
        }
        loop {
            let request = PickRequest {
                ranks: self.candidates.ranks(),
                board,
                overlaps: &self.overlaps,
                on_the_way: &self.on_the_way,
                prompt_bytes: self.prompt_bytes,
                bytes_per_token: BYTES_PER_TOKEN_DEFAULT,
            };
            let picked = pick(sources.policy, &request, &mut self.turn, &mut self.random);
            let Some(rank) = picked else { return none("no rank has room") };
            if has_room(rank, sources) {
                let by_chance = is_by_chance(sources.policy, rank, &request);
                return Choice { rank: Some(rank), by_chance, none_because: None };
            }
            self.candidates.remove(rank);
        }
    }

    fn rank(&self, index: RankIndex, sources: &Sources<'_>) -> Option<Value> {
        let (rank, worker) = sources.fleet.rank(index)?;
        let load = sources.board.rank(index)?;
        let held = TierOverlaps::of(index, rank.tiers, &self.found);
        let overlap = held.device;
        let request = PickRequest {
            ranks: &[],
            board: sources.board,
            overlaps: &self.overlaps,
            on_the_way: &self.on_the_way,
            prompt_bytes: self.prompt_bytes,
            bytes_per_token: BYTES_PER_TOKEN_DEFAULT,
        };
        let whole = usize::try_from(self.prompt_bytes).unwrap_or(usize::MAX);
        let cached = overlap.servable_blocks(whole);
        Some(json!({
            "rank": index.0,
            "worker": &*worker.name,
            "dp_rank": rank.dp_rank.0,
            "overlap_blocks": overlap.blocks,
            "overlap_bytes": overlap.bytes,
            "host_overlap_bytes": held.host.bytes,
            "disk_overlap_bytes": held.disk.bytes,
            "weighed_overlap_bytes": self.overlaps.get(index).bytes,
            "cached_tokens_expected": u64::from(cached) * u64::from(rank.block_size_tokens),
            "uncached_tokens": request.uncached_tokens(index),
            "cost": request.cost(index).0,
            "state": state(worker.state),
            "kv_events": rank.kv_feed_live,
            "failures": load.failures(),
            "breaker_open": load.is_open(),
            "breaker_admits": load.breaker_admits(sources.now),
            "has_room": has_room(index, sources),
            "in_flight": load.in_flight(),
            "prefill_tokens": load.prefill_tokens(),
            "decode_tokens": load.decode_tokens(),
        }))
    }
}

struct Choice {
    rank: Option<RankIndex>,
    /// True when another rank could have been chosen as well.
    by_chance: bool,
    none_because: Option<&'static str>,
}

/// Why there is no overlap to speak of.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Unmatched {
    #[error("the model has no tokenizer here")]
    NoText,
    #[error(transparent)]
    Unrenderable(#[from] Unrenderable),
}

fn has_room(rank: RankIndex, sources: &Sources<'_>) -> bool {
    let max = sources.fleet.concurrency_max(rank, sources.rank_concurrency_max);
    max == 0 || sources.board.rank(rank).is_some_and(|load| load.in_flight() < max)
}

fn is_by_chance(policy: Policy, picked: RankIndex, request: &PickRequest<'_>) -> bool {
    let ties = |key: &dyn Fn(RankIndex) -> u64| {
        request.ranks.iter().filter(|&&rank| key(rank) == key(picked)).count() > 1
    };
    match policy {
        Policy::Kv => ties(&|rank| request.cost(rank).0),
        Policy::LeastLoaded => ties(&|rank| request.load_only(rank).0),
        Policy::PowerOfTwo | Policy::RoundRobin | Policy::Random => request.ranks.len() > 1,
    }
}

fn named(index: RankIndex, fleet: &FleetSnapshot) -> Option<Value> {
    let (rank, worker) = fleet.rank(index)?;
    Some(json!({ "rank": index.0, "worker": &*worker.name, "dp_rank": rank.dp_rank.0 }))
}

fn way(rendered: Rendered) -> &'static str {
    match rendered {
        Rendered::Plan => "plan",
        Rendered::Template => "template",
        Rendered::TextPart => "template, up to the first part that is not text",
        Rendered::Raw => "raw",
    }
}

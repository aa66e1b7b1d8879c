//! render, index: what each rank holds of one prompt ([`forebay_select::Matched`]), once a request,
//! counted and timed. Small prompts are matched on the shard, without an await; others on its
//! offload thread.

use super::offload::{self, Tools};
use super::slot::Slot;
use super::state::Shard;
use crate::ingress::Conn;
use forebay_base::limits::{INLINE_BODY_BYTES_MAX, TEMPLATE_WAIT_MAX};
use forebay_base::{ModelIndex, RankIndex};
use forebay_config::{Config, Policy};
use forebay_disagg::{Wanted, inspect};
use forebay_fleet::account::{Count, Stage};
use forebay_fleet::worker::{FleetSnapshot, Model};
use forebay_index::IndexReader;
use forebay_prompt::parse::{ApiRequest, Endpoint, PromptSource};
use forebay_prompt::render::{RenderThread, Rendered, Unrenderable};
use forebay_router::request::{Split, Stop};
use forebay_select::{MatchRequest, Prompt};
use std::sync::Arc;
use std::time::Duration;

fn request<'a>(
    (index, config): (&'a IndexReader, &'a Config),
    (fleet, model): (&'a FleetSnapshot, &'a Model),
    (request, body): (&'a ApiRequest, &'a [u8]),
    place: RenderThread,
) -> MatchRequest<'a> {
    let Config { kv, approximate, .. } = config;
    MatchRequest { index, fleet, model, kv: *kv, approximate, request, body, place }
}

/// A request's model, in the fleet of the moment.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) fleet: &'a Arc<FleetSnapshot>,
    pub(super) model_index: ModelIndex,
    pub(super) model: &'a Model,
    pub(super) endpoint: Endpoint,
}

/// Renders the prompt and walks the index for all ranks of the model. What is found stays in the
/// slot until the answer has begun. What cannot be matched is left without overlap.
///
/// # Errors
/// How the request ends while it waits for the offload thread.
pub(super) async fn match_prompt(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    asked: Asked<'_>,
) -> Result<(), Stop> {
    shard.recycle(slot.prompt.end());
    let body_bytes = slot.message.len().saturating_sub(slot.head.head_bytes);
    let is_large = body_bytes > INLINE_BODY_BYTES_MAX;
    let matches = has_prompt_to_match(shard, asked);
    if matches && !is_large && here(shard, slot, asked) {
        return Ok(());
    }
    let is_split = !asked.model.ranks.iter().all(|&rank| asked.fleet.is_whole_only(rank));
    let is_inspected = is_large && is_split;
    if !matches && !is_inspected || shard.offload.is_full() {
        shard.counters.add(Count::Unrenderable, u64::from(matches));
        return Ok(());
    }
    elsewhere(shard, conn, slot, asked, (body_bytes, is_inspected)).await
}

fn has_prompt_to_match(shard: &Shard, asked: Asked<'_>) -> bool {
    shard.config.policy == Policy::Kv && asked.endpoint != Endpoint::Models
}

/// On the shard. False if that takes too long.
fn here(shard: &Shard, slot: &mut Slot, asked: Asked<'_>) -> bool {
    let mut stages = shard.stages.borrow_mut();
    let start = shard.now();
    let ratio = stages.ratios.of(asked.model_index);
    slot.prompt.begin(shard.buffers.take());
    let body = slot.message.get(slot.head.head_bytes..).unwrap_or_default();
    let ask = request(
        (&shard.index, &shard.config),
        (asked.fleet, asked.model),
        (&slot.request, body),
        RenderThread::Shard,
    );
    let rendered = slot.prompt.write_text(&ask);
    if rendered == Some(Err(Unrenderable::NotHere)) {
        return false;
    }
    count(shard, rendered);
    if slot.prompt.prompt_bytes() > 0 {
        let rendered_at = shard.time(Stage::Render, start);
        stages.matched.walk(&ask, &mut slot.prompt, &asked.model.ranks, ratio);
        shard.time(Stage::Index, rendered_at);
    }
    true
}

fn count(shard: &Shard, rendered: Option<Result<Rendered, Unrenderable>>) {
    let Some(rendered) = rendered else { return };
    let count = match rendered {
        Ok(Rendered::Plan) => Count::RenderedPlan,
        Ok(_) => Count::RenderedFull,
        Err(reason) => {
            let is_given_up = matches!(reason, Unrenderable::TooManySteps | Unrenderable::Late);
            shard.counters.add(Count::RendersGivenUp, u64::from(is_given_up));
            Count::Unrenderable
        }
    };
    shard.counters.add(count, 1);
}

/// A request on its way to the offload thread and back.
struct Away {
    message: Vec<u8>,
    head_bytes: usize,
    request: ApiRequest,
    prompt: Prompt,
    kv_transfer: Option<Wanted>,
    endpoint: Endpoint,
    fleet: Arc<FleetSnapshot>,
    model_index: ModelIndex,
    bytes_per_token: f32,
    rendered: Option<Result<Rendered, Unrenderable>>,
    /// Time spent rendering and walking.
    spent: [u64; 2],
}

impl Away {
    fn inspect(&mut self) {
        let body = self.message.get(self.head_bytes..).unwrap_or_default();
        self.kv_transfer = inspect(body, self.endpoint).ok();
    }

    fn match_prompt(&mut self, tools: &mut Tools) {
        let Tools { matched, index, config, clock, posted_at } = tools;
        let start = clock.now();
        let Some(model) = self.fleet.models.get(self.model_index.index()) else { return };
        let body = self.message.get(self.head_bytes..).unwrap_or_default();
        let ask = request(
            (&*index, &*config),
            (&*self.fleet, model),
            (&self.request, body),
            RenderThread::Offload,
        );
        let is_late = Duration::from_nanos(start.since(*posted_at)) > TEMPLATE_WAIT_MAX
            && self.request.prompt == PromptSource::Messages;
        self.rendered = match is_late {
            true => self.prompt.write_late(&ask),
            false => self.prompt.write_text(&ask),
        };
        let rendered_at = clock.now();
        matched.walk(&ask, &mut self.prompt, &model.ranks, self.bytes_per_token);
        self.prompt.leave();
        self.spent = [rendered_at.since(start), clock.now().since(rendered_at)];
    }
}

async fn elsewhere(
    shard: &Shard,
    conn: &mut Conn,
    slot: &mut Slot,
    asked: Asked<'_>,
    (body_bytes, is_inspected): (usize, bool),
) -> Result<(), Stop> {
    let matches = has_prompt_to_match(shard, asked);
    let mut prompt = std::mem::take(&mut slot.prompt);
    let buffer = prompt.end();
    prompt.begin(if buffer.capacity() > 0 { buffer } else { shard.buffers.take() });
    let mut away = Away {
        message: std::mem::take(&mut slot.message),
        head_bytes: slot.head.head_bytes,
        request: std::mem::take(&mut slot.request),
        prompt,
        kv_transfer: None,
        endpoint: asked.endpoint,
        fleet: Arc::clone(asked.fleet),
        model_index: asked.model_index,
        bytes_per_token: shard.stages.borrow().ratios.of(asked.model_index),
        rendered: None,
        spent: [0; 2],
    };
    let done = offload::run(&shard.offload, conn, body_bytes, move |tools| {
        if is_inspected {
            away.inspect();
        }
        if matches {
            away.match_prompt(tools);
        }
        away
    });
    let away = done.await?;
    (slot.message, slot.request, slot.prompt) = (away.message, away.request, away.prompt);
    if is_inspected {
        slot.split = Split::known(away.kv_transfer);
    }
    if matches {
        count(shard, away.rendered);
    }
    if slot.prompt.prompt_bytes() > 0 {
        let mut histograms = shard.histograms.borrow_mut();
        for (stage, nanos) in [Stage::Render, Stage::Index].into_iter().zip(away.spent) {
            histograms.record(stage, nanos);
        }
    }
    Ok(())
}

/// Tells the owner of the prompt's path where it went, if that helps the next one.
pub(super) fn remember(shard: &Shard, slot: &Slot, asked: Asked<'_>, rank: RankIndex) {
    let body = slot.message.get(slot.head.head_bytes..).unwrap_or_default();
    let ask = request(
        (&shard.index, &shard.config),
        (asked.fleet, asked.model),
        (&slot.request, body),
        RenderThread::Shard,
    );
    let now = || shard.now();
    let remembered = {
        let (matched, told) = (&shard.stages.borrow().matched, &mut shard.told.borrow_mut());
        matched.to_remember(&ask, &slot.prompt, rank, told, now)
    };
    if let Some((owner, prompt)) = remembered {
        shard.post_routed(owner, prompt);
    }
}

/// Bytes of prompts that a rank's cache can hold; 0 when the engine does not tell.
pub(super) fn cache_bytes(fleet: &FleetSnapshot, rank: RankIndex) -> usize {
    /// English and code under the common vocabularies: 3.5 to 4.5.
    const BYTES_PER_TOKEN: u64 = 4;
    let tokens = fleet
        .ranks
        .get(rank.index())
        .map_or(0, |rank| u64::from(rank.kv_block_count) * u64::from(rank.block_size_tokens));
    usize::try_from(tokens.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX)
}

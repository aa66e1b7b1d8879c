//! render, index: what each rank holds of one prompt ([`crate::select::Matched`]), once a request, counted and timed. No
//! await in here.

use super::choose::Target;
use super::connection::Slot;
use super::state::Shard;
use crate::account::{Count, Stage};
use crate::base::{ModelIndex, RankIndex};
use crate::config::Policy;
use crate::render::Rendered;
use crate::select::{MatchRequest, Matched};
use crate::worker::{FleetSnapshot, Model};

fn request<'a>(
    shard: &'a Shard,
    slot: &'a Slot,
    fleet: &'a FleetSnapshot,
    model: &'a Model,
) -> MatchRequest<'a> {
    MatchRequest {
        index: &shard.index,
        fleet,
        model,
        kv: shard.config.kv,
        approximate: &shard.config.approximate,
        request: &slot.request,
        body: slot.message.get(slot.head.head_bytes..).unwrap_or_default(),
    }
}

/// Renders the prompt and walks the index for all ranks of the model. What is found stays in the slot until the answer
/// has begun. What cannot be matched is left without overlap.
pub(super) fn match_prompt(
    shard: &Shard,
    slot: &mut Slot,
    fleet: &FleetSnapshot,
    (model_index, model): (ModelIndex, &Model),
) {
    shard.buffers.give(slot.prompt.end());
    if shard.config.policy != Policy::Kv {
        return;
    }
    let mut scratch = shard.scratch.borrow_mut();
    let start = shard.now();
    let ratio = scratch.bytes_per_token(model_index);
    let mut prompt = std::mem::take(&mut slot.prompt);
    prompt.begin(shard.buffers.take());
    let ask = request(shard, slot, fleet, model);
    if let Some(rendered) = prompt.write_text(&ask) {
        let count = match rendered {
            Ok(Rendered::Plan) => Count::RenderedPlan,
            Ok(_) => Count::RenderedFull,
            Err(_) => Count::Unrenderable,
        };
        shard.counters.add(count, 1);
    }
    if prompt.prompt_bytes() > 0 {
        let rendered_at = shard.time(Stage::Render, start);
        scratch.matched.walk(&ask, &mut prompt, &model.ranks, ratio);
        shard.time(Stage::Index, rendered_at);
    }
    slot.prompt = prompt;
}

/// Tells the owner of the prompt's path where it went, if that helps the next one.
pub(super) fn remember(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    matched: &Matched,
    rank: RankIndex,
) {
    let ask = request(shard, slot, target.fleet, target.model);
    if let Some((owner, prompt)) = matched.to_remember(&ask, &slot.prompt, rank) {
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

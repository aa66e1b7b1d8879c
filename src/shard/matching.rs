//! render, index: what each rank holds of one prompt. Exactly where KV events tell; elsewhere, and until events tell,
//! by where earlier prompts went. No await in here.

use super::choose::Target;
use super::connection::Slot;
use super::state::{Scratch, Shard};
use crate::account::{Count, Stage};
use crate::base::RankIndex;
use crate::base::limits::SPECULATIVE_CHUNK_BYTES;
use crate::block::BlockKey;
use crate::index::{Overlap, Overlaps};
use crate::mailbox::{GuessKind, RoutedPrompt};
use crate::render::{Rendered, canonical, render};
use crate::select::{ANY_MODEL, TierOverlaps, cache_namespace, weigh_tiers};
use crate::worker::FleetSnapshot;

/// One prompt and what is known of it; kept from request to request.
#[derive(Debug)]
pub(super) struct Matched {
    /// The prompt as the engine will see it, or a canonical text.
    text: Vec<u8>,
    /// Its length in bytes, which may be more than the text's; 0 when it is not matched.
    pub(super) prompt_bytes: u64,
    /// Is the text what the engine will see?
    rendered: bool,
    /// What each rank is believed to hold: the selection's view.
    pub(super) overlaps: Overlaps,
    /// The part of it that no event has told of though the rank has events.
    pub(super) on_the_way: Overlaps,
    /// What events tell.
    exact: Overlaps,
    /// Working memory.
    guessed: Overlaps,
}

impl Matched {
    pub(super) fn new(rank_count: usize) -> Self {
        let overlaps = || Overlaps::new(rank_count);
        Self {
            text: Vec::new(),
            prompt_bytes: 0,
            rendered: false,
            overlaps: overlaps(),
            on_the_way: overlaps(),
            exact: overlaps(),
            guessed: overlaps(),
        }
    }

    /// Forgets the prompt.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.prompt_bytes = 0;
        self.rendered = false;
        self.overlaps.clear();
        self.on_the_way.clear();
        self.exact.clear();
    }

    /// What the rank's events tell it holds, by tier; `None` where the selection's view rests on something else.
    pub(super) fn exact(&self, fleet: &FleetSnapshot, rank: RankIndex) -> Option<TierOverlaps> {
        let told = self.kind(fleet, rank) == GuessKind::Speculative
            && self.on_the_way.get(rank) == Overlap::default();
        let tiers = fleet.ranks.get(rank.index())?.tiers;
        told.then(|| TierOverlaps::of(rank, tiers, &self.exact))
    }

    /// What a guess about the rank would be.
    fn kind(&self, fleet: &FleetSnapshot, rank: RankIndex) -> GuessKind {
        let is_live = fleet.ranks.get(rank.index()).is_some_and(|rank| rank.kv_feed_live);
        if self.rendered && is_live { GuessKind::Speculative } else { GuessKind::Approximate }
    }
}

/// Renders the prompt and walks the index for the candidates. What cannot be matched is left without overlap.
pub(super) fn match_prompt(shard: &Shard, slot: &Slot, target: &Target<'_>, scratch: &mut Scratch) {
    let start = shard.now();
    let matched = &mut scratch.matched;
    if !write_text(shard, slot, target, matched) {
        return;
    }
    let rendered_at = shard.time(Stage::Render, start);
    if matched.rendered {
        shard.index.overlap_of_roots(
            &target.model.roots,
            &cache_namespace(target.model, &slot.request),
            &matched.text,
            &mut matched.exact,
        );
        let (fleet, ranks) = (target.fleet, &target.model.ranks);
        let Matched { exact, overlaps, .. } = matched;
        weigh_tiers(fleet, ranks, shard.config.kv, exact, overlaps);
    }
    let approximate = &shard.config.approximate;
    let of_kind = |kind| {
        let ranks = scratch.candidates.ranks();
        ranks.iter().any(|&rank| matched.kind(target.fleet, rank) == kind)
    };
    let any_blind = !approximate.ttl.is_zero() && of_kind(GuessKind::Approximate);
    let any_told = !approximate.speculative_ttl.is_zero() && of_kind(GuessKind::Speculative);
    if any_blind {
        add_approximate(shard, slot, target, matched);
    }
    if any_told && leaves_a_chunk(matched) {
        add_speculative(shard, slot, target, scratch);
    }
    shard.time(Stage::Index, rendered_at);
}

/// Is more of the prompt than a speculative chunk unknown to the rank that holds most of it? If not, nothing that is on
/// its way matters, and conversations that go on are spared a walk.
fn leaves_a_chunk(matched: &Matched) -> bool {
    let told_most = matched.exact.iter_held().map(|(_, found)| found.bytes).max().unwrap_or(0);
    let told_most = usize::try_from(told_most).unwrap_or(usize::MAX);
    matched.text.len().saturating_sub(told_most) >= SPECULATIVE_CHUNK_BYTES
}

/// The prompt's text: as the engine will see it, else some text of it. False when the body has no prompt.
fn write_text(shard: &Shard, slot: &Slot, target: &Target<'_>, matched: &mut Matched) -> bool {
    let body = slot.message.get(slot.head.head_bytes..).unwrap_or_default();
    matched.prompt_bytes = 0;
    if let Some(text) = &target.model.text {
        let rendered = render(&slot.request, body, text, &mut matched.text);
        matched.rendered = rendered.is_ok();
        let count = match rendered {
            Ok(Rendered::Plan) => Count::RenderedPlan,
            Ok(_) => Count::RenderedFull,
            Err(_) => Count::Unrenderable,
        };
        shard.counters.add(count, 1);
        matched.prompt_bytes = rendered.map_or(0, |way| way.prompt_bytes(matched.text.len()));
    }
    if !matched.rendered {
        matched.prompt_bytes = canonical(&slot.request, body, &mut matched.text);
    }
    matched.prompt_bytes > 0
}

/// Ranks without events: what was sent to them.
fn add_approximate(shard: &Shard, slot: &Slot, target: &Target<'_>, matched: &mut Matched) {
    matched.guessed.clear();
    let root = root(shard, slot, target, GuessKind::Approximate);
    shard.index.overlap(root, &matched.text, &mut matched.guessed);
    for (rank, found) in matched.guessed.iter_held() {
        if matched.kind(target.fleet, rank) == GuessKind::Approximate {
            matched.overlaps.record(rank, found);
        }
    }
}

/// Ranks with events: what was just sent to them and is not told of yet. Differences of up to a block and a chunk come
/// from the different cuts and are left to the events.
fn add_speculative(shard: &Shard, slot: &Slot, target: &Target<'_>, scratch: &mut Scratch) {
    let ratio = scratch.bytes_per_token(target.model_index);
    let matched = &mut scratch.matched;
    matched.guessed.clear();
    let root = root(shard, slot, target, GuessKind::Speculative);
    shard.index.overlap(root, &matched.text, &mut matched.guessed);
    for (rank, found) in matched.guessed.iter_held() {
        if matched.kind(target.fleet, rank) != GuessKind::Speculative {
            continue;
        }
        let told = matched.overlaps.get(rank).bytes;
        let more = found.bytes.saturating_sub(told);
        if more > cut_bytes(target.fleet, rank, ratio) {
            matched.overlaps.record(rank, found);
            matched.on_the_way.record(rank, Overlap { blocks: 0, bytes: more });
        }
    }
}

/// Bytes of one chunk or one of the rank's blocks, whichever is longer.
fn cut_bytes(fleet: &FleetSnapshot, rank: RankIndex, bytes_per_token: f32) -> u32 {
    let block_size_tokens = fleet.ranks.get(rank.index()).map_or(0, |rank| rank.block_size_tokens);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a ratio of 1 to 100, rounded up"
    )]
    let bytes_per_token = bytes_per_token.ceil() as u32;
    let block_bytes = block_size_tokens.saturating_mul(bytes_per_token);
    block_bytes.max(u32::try_from(SPECULATIVE_CHUNK_BYTES).unwrap_or(u32::MAX))
}

fn root(shard: &Shard, slot: &Slot, target: &Target<'_>, kind: GuessKind) -> BlockKey {
    let roots = &target.model.guess_roots;
    let root = match kind {
        GuessKind::Approximate => roots.approximate,
        GuessKind::Speculative => roots.speculative,
    };
    let root = shard.index.salted(root, &cache_namespace(target.model, &slot.request));
    // One entry of the fleet may stand for many models.
    let is_any = &*target.model.name == ANY_MODEL;
    if is_any { shard.index.salted(root, &slot.request.model) } else { root }
}

/// Tells the owner of the prompt's path where it went, if that helps the next one.
pub(super) fn remember(
    shard: &Shard,
    slot: &Slot,
    target: &Target<'_>,
    matched: &Matched,
    rank: RankIndex,
) {
    let kind = matched.kind(target.fleet, rank);
    let ttl = match kind {
        GuessKind::Approximate => shard.config.approximate.ttl,
        GuessKind::Speculative => shard.config.approximate.speculative_ttl,
    };
    if ttl.is_zero() || matched.prompt_bytes == 0 || target.model.ranks.len() < 2 {
        return;
    }
    let told = usize::try_from(matched.exact.get(rank).bytes).unwrap_or(usize::MAX);
    let untold = matched.text.len().saturating_sub(told);
    if kind == GuessKind::Speculative && untold < SPECULATIVE_CHUNK_BYTES {
        return;
    }
    let root = root(shard, slot, target, kind);
    let path = shard.index.chunk_path(root, &matched.text, kind.chunk_bytes());
    let (Some((owner, chunks)), Some((_, worker))) = (path, target.fleet.rank(rank)) else {
        return;
    };
    let generation = worker.cache_generation;
    shard.post_routed(owner, Box::new(RoutedPrompt { rank, generation, kind, root, chunks }));
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

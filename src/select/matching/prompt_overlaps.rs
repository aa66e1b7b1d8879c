//! Overlap of each rank with a prompt: exact for ranks with KV events; without events, and until
//! events arrive, guessed from the ranks of earlier prompts. Shards run it for requests, the
//! control plane for explanations; both get the same result.

use super::guesses::{self, GuessScratch};
use super::prompt::View;
use super::reported_paths::RoutedPath;
use crate::MatchRequest;
use crate::Prompt;
use crate::ReportedPaths;
use crate::TierOverlaps;
use crate::cache_namespace;
use crate::reaches;
use crate::weigh_tiers;
use forebay_base::limits::{INLINE_PROBES_MAX, SPECULATIVE_CHUNK_BYTES, WALK_PROBES_MAX};
use forebay_base::{NanosSinceStart, RankIndex, ShardIndex};
use forebay_fleet::trust::GuessUse;
use forebay_fleet::worker::{FleetSnapshot, TierRanks};
use forebay_index::{BlockKey, GuessKind, Overlap, Overlaps, PrefixMarks, RoutedPrompt};
use forebay_prompt::parse::Endpoint;
use forebay_prompt::render::RenderThread;
use std::time::Duration;

/// Overlaps of the current prompt by rank: working memory for the choice. [`Prompt`] stores the
/// same in compact form.
#[derive(Debug)]
pub struct PromptOverlaps {
    /// See [`Prompt::prompt_bytes`].
    prompt_bytes: u64,
    /// See [`Prompt::is_rendered`].
    is_rendered: bool,
    /// Overlaps for selection: events and guesses.
    overlaps: Overlaps,
    /// Guessed part of the overlaps of ranks with events: no event has confirmed it yet.
    pending: Overlaps,
    /// Overlaps by events alone.
    exact: Overlaps,
    /// Overlaps of ranks with events by the prompts that went there, while a verdict about the
    /// model needs these guesses ([`GuessUse`]).
    beside: Overlaps,
    /// Working memory.
    scratch: GuessScratch,
    /// Number of the walk that found these overlaps.
    walk_number: u64,
}

/// A guess in use stays valid if it is reported again within this part of its TTL.
const TTL_PARTS: u32 = 4;

/// Endpoints on which every engine with ranks reads the requested rank.
const READ_BY_ALL: [Endpoint; 3] =
    [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages];

impl PromptOverlaps {
    #[must_use]
    pub fn new(rank_count: usize) -> Self {
        let overlaps = || Overlaps::new(rank_count);
        Self {
            prompt_bytes: 0,
            is_rendered: false,
            overlaps: overlaps(),
            pending: overlaps(),
            exact: overlaps(),
            beside: overlaps(),
            scratch: GuessScratch::new(overlaps()),
            walk_number: 0,
        }
    }

    fn clear(&mut self) {
        self.overlaps.clear();
        self.pending.clear();
        self.exact.clear();
        self.beside.clear();
    }

    /// Loads the overlaps of a prompt, unless they are still here from its own walk.
    pub fn recall(&mut self, prompt: &Prompt) {
        self.prompt_bytes = prompt.prompt_bytes();
        self.is_rendered = prompt.is_rendered();
        if prompt.recalled_by != 0 && prompt.recalled_by == self.walk_number {
            return;
        }
        // Another prompt was matched in between: there is an await between match and choice.
        self.clear();
        self.walk_number += 1;
        for (view, rank, overlap) in prompt.found() {
            match view {
                View::Selection => self.overlaps.record(rank, overlap),
                View::OnTheWay => self.pending.record(rank, overlap),
                View::Exact => self.exact.record(rank, overlap),
                View::Beside => self.beside.record(rank, overlap),
                View::Same => {
                    self.overlaps.record(rank, overlap);
                    self.exact.record(rank, overlap);
                }
            }
        }
    }

    /// Did the last walk stop early, at the limit of its thread?
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.exact.is_cut()
    }

    /// Length of the prompt in bytes; 0 if it is not matched.
    #[must_use]
    pub const fn prompt_bytes(&self) -> u64 {
        self.prompt_bytes
    }

    /// Overlaps for selection: events and guesses.
    #[must_use]
    pub fn overlaps(&self) -> &Overlaps {
        &self.overlaps
    }

    /// Guessed part of the overlaps of ranks with events: no event has confirmed it yet.
    #[must_use]
    pub fn pending(&self) -> &Overlaps {
        &self.pending
    }

    /// Guessed bytes of a rank with events, by the prompts that went there; 0 unless a verdict
    /// about the model needs guesses.
    #[must_use]
    pub fn guessed_beside(&self, rank: RankIndex) -> u32 {
        self.beside.get(rank).bytes
    }

    /// Overlaps of a rank with these tiers by events alone, without guesses.
    #[must_use]
    pub fn by_events(&self, rank: RankIndex, tiers: TierRanks) -> TierOverlaps {
        TierOverlaps::of(rank, tiers, &self.exact)
    }

    /// Overlaps of the rank by tier, if selection used events alone; `None` if it used a guess.
    #[must_use]
    pub fn exact(&self, fleet: &FleetSnapshot, rank: RankIndex) -> Option<TierOverlaps> {
        let is_exact = self.kind(fleet, rank) == GuessKind::Speculative
            && self.pending.get(rank) == Overlap::default();
        let tiers = fleet.ranks.get(rank.index())?.tiers;
        is_exact.then(|| self.by_events(rank, tiers))
    }

    /// The kind of guesses for the rank.
    #[must_use]
    pub fn kind(&self, fleet: &FleetSnapshot, rank: RankIndex) -> GuessKind {
        let is_live = fleet.ranks.get(rank.index()).is_some_and(|rank| rank.kv_feed_live);
        if self.is_rendered && is_live { GuessKind::Speculative } else { GuessKind::Approximate }
    }

    /// Walks the index for these ranks, after [`Prompt::write_text`], and stores the overlaps in
    /// the prompt. A prompt that cannot be matched has no overlap.
    pub fn walk(
        &mut self,
        ask: &MatchRequest<'_>,
        prompt: &mut Prompt,
        ranks: &[RankIndex],
        bytes_per_token: f32,
    ) {
        self.clear();
        self.walk_number += 1;
        self.prompt_bytes = prompt.prompt_bytes();
        self.is_rendered = prompt.is_rendered();
        if self.prompt_bytes == 0 {
            return;
        }
        // A rank without a limit of KV tokens pins no prefix.
        if ranks.iter().any(|&rank| ask.fleet.room(rank).kv_tokens_max > 0) {
            prompt.chunks.marks =
                PrefixMarks::of(ask.guess_root(GuessKind::Speculative), prompt.text());
        }
        let text = prompt.text();
        let mut is_same = false;
        if self.is_rendered {
            let namespace = cache_namespace(ask.model, ask.request);
            self.exact.limit(match ask.thread {
                RenderThread::Shard => INLINE_PROBES_MAX,
                RenderThread::Offload => WALK_PROBES_MAX,
            });
            self.exact.expect_images(prompt.has_images());
            ask.index.overlap_of_roots(&ask.model.roots, &namespace, text, &mut self.exact);
            let Self { exact, overlaps, .. } = self;
            is_same =
                !weigh_tiers(ask.fleet, &ask.model.ranks, ask.fleet.config.kv, exact, overlaps);
        }
        let trust = ask.trust();
        is_same &= !guesses::shrink_claims(ask.fleet, trust, &mut self.overlaps);
        let of_kind = |kind| ranks.iter().any(|&rank| self.kind(ask.fleet, rank) == kind);
        let any_blind =
            !ask.fleet.config.approximate.ttl.is_zero() && of_kind(GuessKind::Approximate);
        let has_events = of_kind(GuessKind::Speculative);
        let any_with_events = has_events && !ask.fleet.config.approximate.speculative_ttl.is_zero();
        if any_blind {
            is_same = false;
            let mut chunks = std::mem::take(&mut prompt.chunks.approximate);
            self.add_approximate(ask, prompt.text(), &mut chunks);
            prompt.chunks.approximate = chunks;
        }
        if trust.guesses != GuessUse::None && has_events && ask.model.ranks.len() > 1 {
            let Self { scratch, overlaps, pending, beside, .. } = self;
            scratch.guess(ask, self.prompt_bytes, overlaps, &mut prompt.chunks.beside, beside);
            if trust.guesses == GuessUse::Counted {
                is_same = false;
                guesses::count_beside(ask.fleet, trust, beside, overlaps, pending);
            }
        }
        // A second walk, so only if events leave more than a chunk unconfirmed. For ranks with
        // windows, `overlaps` already has only the part that they could resume.
        let confirmed = match ask.model.roots.windowed.is_empty() {
            true => &self.exact,
            false => &self.overlaps,
        };
        if any_with_events && !trust.counts_all() && leaves_a_chunk(confirmed, prompt.text()) {
            is_same = false;
            let mut chunks = std::mem::take(&mut prompt.chunks.speculative);
            self.add_speculative(ask, prompt.text(), bytes_per_token, &mut chunks);
            prompt.chunks.speculative = chunks;
        }
        if let Some(endpoint) = ask.request.endpoint.filter(|at| !READ_BY_ALL.contains(at)) {
            // The overlap of a rank is worth nothing if another rank may serve the request.
            is_same = false;
            let is_reached = |rank| reaches(ask.fleet, rank, endpoint);
            self.overlaps.retain(is_reached);
            self.pending.retain(is_reached);
            self.beside.retain(is_reached);
        }
        if is_same {
            prompt.store(View::Same, &self.exact);
        } else {
            prompt.store(View::Selection, &self.overlaps);
            prompt.store(View::OnTheWay, &self.pending);
            prompt.store(View::Exact, &self.exact);
        }
        prompt.store(View::Beside, &self.beside);
        prompt.recalled_by = self.walk_number;
    }

    /// The report of the prompt's rank to the owner of its path. `None` if later prompts would gain
    /// nothing, or if the same was reported a moment ago.
    #[must_use]
    pub fn to_remember(
        &self,
        ask: &MatchRequest<'_>,
        prompt: &Prompt,
        rank: RankIndex,
        reported: &mut ReportedPaths,
        now: impl FnOnce() -> NanosSinceStart,
    ) -> Option<(ShardIndex, Box<RoutedPrompt>)> {
        let is_reached = |endpoint| reaches(ask.fleet, rank, endpoint);
        if !ask.request.endpoint.is_none_or(is_reached) {
            return None;
        }
        let kind = self.kind(ask.fleet, rank);
        // Guesses beside events replace these.
        let is_beside = || guesses::counts_guess(ask.fleet, ask.trust(), rank);
        if kind == GuessKind::Speculative && is_beside() {
            return None;
        }
        let ttl: Duration = match kind {
            GuessKind::Approximate => ask.fleet.config.approximate.ttl,
            GuessKind::Speculative => ask.fleet.config.approximate.speculative_ttl,
        };
        // A model with a single rank leaves no choice, so no guess is useful.
        if ttl.is_zero() || self.prompt_bytes == 0 || ask.model.ranks.len() < 2 {
            return None;
        }
        // For a rank with windows: the part that it could resume.
        let tiers = ask.fleet.ranks.get(rank.index()).map(|rank| rank.tiers).unwrap_or_default();
        let held = self.exact.get(tiers.point().unwrap_or(rank));
        let held = usize::try_from(held.bytes).unwrap_or(usize::MAX);
        let unheld = prompt.text_bytes().saturating_sub(held);
        // Events confirm all but less than a chunk: a guess would add nothing.
        if kind == GuessKind::Speculative && unheld < SPECULATIVE_CHUNK_BYTES {
            return None;
        }
        if prompt.text_bytes() < kind.chunk_bytes() {
            return None;
        }
        let root = ask.guess_root(kind);
        let chunks = match kind {
            GuessKind::Approximate if !prompt.chunks.approximate.is_empty() => {
                let chunks = &prompt.chunks.approximate;
                let is_due = self.mark_due(chunks, rank, reported, now(), ttl);
                is_due.then(|| chunks.clone())?
            }
            GuessKind::Speculative if !prompt.chunks.speculative.is_empty() => {
                prompt.chunks.speculative.clone()
            }
            _ => {
                let mut chunks = Vec::new();
                ask.index.chunk_path(root, &prompt.text_again(ask), kind, &mut chunks);
                chunks
            }
        };
        let owner = ask.index.owner_of_path(&chunks)?;
        let (_, worker) = ask.fleet.rank(rank)?;
        let generation = worker.generation.cache;
        Some((owner, Box::new(RoutedPrompt { rank, generation, kind, root, chunks })))
    }

    /// The same report for guesses beside events, if a verdict about the model needs these.
    #[must_use]
    pub fn to_remember_beside(
        &self,
        ask: &MatchRequest<'_>,
        prompt: &Prompt,
        rank: RankIndex,
        reported: &mut ReportedPaths,
        now: impl FnOnce() -> NanosSinceStart,
    ) -> Option<(ShardIndex, Box<RoutedPrompt>)> {
        let chunks = &prompt.chunks.beside;
        let is_reached = |endpoint| reaches(ask.fleet, rank, endpoint);
        if chunks.is_empty() || self.kind(ask.fleet, rank) != GuessKind::Speculative {
            return None;
        }
        let is_claimed = ask.request.endpoint.is_none_or(is_reached);
        let report = || guesses::to_remember(ask, chunks, rank, reported, now());
        is_claimed.then(report).flatten()
    }

    /// Records a report of these chunks, unless the rank's guesses hold all of them and are younger
    /// than a part of their TTL; false: no report.
    fn mark_due(
        &self,
        chunks: &[BlockKey],
        rank: RankIndex,
        reported: &mut ReportedPaths,
        now: NanosSinceStart,
        ttl: Duration,
    ) -> bool {
        let Some(&end) = chunks.last() else { return false };
        let held = usize::try_from(self.overlaps.get(rank).bytes).unwrap_or(0);
        if held < chunks.len() * GuessKind::Approximate.chunk_bytes() {
            reported.mark(RoutedPath { end, rank }, now);
            return true;
        }
        reported.mark_due(RoutedPath { end, rank }, now, ttl / TTL_PARTS)
    }

    /// Adds guesses for ranks without events, from the prompts sent to them.
    fn add_approximate(&mut self, ask: &MatchRequest<'_>, text: &[u8], chunks: &mut Vec<BlockKey>) {
        let kind = GuessKind::Approximate;
        if text.len() < kind.chunk_bytes() {
            return;
        }
        self.scratch.found.clear();
        ask.index.chunk_path(ask.guess_root(kind), text, kind, chunks);
        ask.index.overlap_of_path(chunks, kind, &mut self.scratch.found);
        for (rank, found) in self.scratch.found.iter_held() {
            if self.kind(ask.fleet, rank) == GuessKind::Approximate {
                self.overlaps.record(rank, found);
            }
        }
    }

    /// Adds guesses for ranks with events, from prompts sent a moment ago whose events are not here
    /// yet. Blocks and chunks end at different bytes, so a difference of up to a block or a chunk
    /// is ignored.
    fn add_speculative(
        &mut self,
        ask: &MatchRequest<'_>,
        text: &[u8],
        bytes_per_token: f32,
        chunks: &mut Vec<BlockKey>,
    ) {
        let kind = GuessKind::Speculative;
        self.scratch.found.clear();
        ask.index.chunk_path(ask.guess_root(kind), text, kind, chunks);
        ask.index.overlap_of_path(chunks, kind, &mut self.scratch.found);
        for (rank, found) in self.scratch.found.iter_held() {
            if self.kind(ask.fleet, rank) != GuessKind::Speculative {
                continue;
            }
            let confirmed = self.overlaps.get(rank).bytes;
            let more = found.bytes.saturating_sub(confirmed);
            if more > cut_bytes(ask.fleet, rank, bytes_per_token) {
                self.overlaps.record(rank, found);
                debug_assert!(more <= self.overlaps.get(rank).bytes, "a part above the whole");
                self.pending.record(rank, Overlap { blocks: 0, bytes: more });
            }
        }
    }
}

/// Does the largest overlap leave at least a speculative chunk of the prompt? If not, guesses do
/// not matter, and the next turns of a conversation are spared a walk.
fn leaves_a_chunk(confirmed: &Overlaps, text: &[u8]) -> bool {
    let most = confirmed.iter_held().map(|(_, found)| found.bytes).max().unwrap_or(0);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    text.len().saturating_sub(most) >= SPECULATIVE_CHUNK_BYTES
}

/// Bytes of a chunk or of a block of the rank, whichever is longer.
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

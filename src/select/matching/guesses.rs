//! Guesses beside events, and shrunk claims: the parts of a match that a verdict about predicted
//! hits adds ([`ShapeTrust`]). Without a verdict none of this runs.

use super::reported_paths::{ReportedPaths, RoutedPath};
use crate::MatchRequest;
use forebay_base::{NanosSinceStart, RankIndex, ShardIndex};
use forebay_fleet::trust::{ShapeTrust, trust_group};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::{BlockKey, GuessKind, Overlap, Overlaps, RoutedPrompt};
use forebay_prompt::render::canonical;

/// Working memory of guesses.
#[derive(Debug)]
pub(crate) struct GuessScratch {
    pub(crate) found: Overlaps,
    /// Canonical text of a rendered prompt.
    text: Vec<u8>,
}

/// Capacity that the canonical text retains between prompts.
const TEXT_RETAINED: usize = 64 * 1024;

const KIND: GuessKind = GuessKind::Approximate;

impl GuessScratch {
    pub(crate) const fn new(found: Overlaps) -> Self {
        Self { found, text: Vec::new() }
    }

    /// Guesses the overlaps of ranks with events by the prompts that went there. The rendered text
    /// may be wrong, so the guesses go by the canonical text. `known`: overlaps by events.
    pub(crate) fn guess(
        &mut self,
        ask: &MatchRequest<'_>,
        prompt_bytes: u64,
        known: &Overlaps,
        chunks: &mut Vec<BlockKey>,
        out: &mut Overlaps,
    ) {
        self.text.clear();
        self.found.clear();
        let text_bytes = canonical(ask.request, ask.body, &mut self.text);
        if self.text.len() >= KIND.chunk_bytes() {
            ask.index.chunk_path(ask.guess_root(KIND), &self.text, KIND, chunks);
            ask.index.overlap_of_path(chunks, KIND, &mut self.found);
        }
        self.text.clear();
        self.text.shrink_to(TEXT_RETAINED);
        let scale = TextScale { prompt_bytes, text_bytes };
        for (rank, guessed) in self.found.iter_held() {
            if ask.fleet.ranks.get(rank.index()).is_some_and(|rank| rank.kv_feed_live) {
                let bytes = scale.guess(guessed.bytes, known.get(rank).bytes);
                out.record(rank, Overlap { blocks: 0, bytes });
            }
        }
    }
}

/// Lengths of a prompt as rendered, and of its canonical text.
#[derive(Clone, Copy, Debug)]
struct TextScale {
    prompt_bytes: u64,
    text_bytes: u64,
}

impl TextScale {
    /// Guessed bytes of the rendered prompt. A guess ends at a chunk, and events end at a block:
    /// a guess that has more chunks than the events adds these chunks to the events. Otherwise a
    /// rank that holds a conversation would be worth little more than a rank that holds its system
    /// message.
    fn guess(self, guessed: u32, known: u32) -> u32 {
        let Self { prompt_bytes, text_bytes } = self;
        let chunk = u64::try_from(KIND.chunk_bytes()).unwrap_or(u64::MAX);
        let known = u64::from(known);
        let guessed = u64::from(guessed).min(text_bytes);
        let as_text = known.saturating_mul(text_bytes) / prompt_bytes.max(1);
        let as_prompt = |bytes: u64| bytes.saturating_mul(prompt_bytes) / text_bytes.max(1);
        let more = (guessed / chunk).saturating_sub(as_text / chunk);
        let bytes = match more {
            0 => as_prompt(guessed).min(known),
            more => known.saturating_add(as_prompt(more.saturating_mul(chunk))),
        };
        u32::try_from(bytes.min(prompt_bytes)).unwrap_or(u32::MAX)
    }
}

/// Adds guesses that count to the overlaps for selection; `pending` gets the guessed part.
pub(crate) fn count_beside(
    fleet: &FleetSnapshot,
    trust: ShapeTrust,
    beside: &Overlaps,
    overlaps: &mut Overlaps,
    pending: &mut Overlaps,
) {
    for (rank, guessed) in beside.iter_held() {
        if !counts_guess(fleet, trust, rank) {
            continue;
        }
        let more = guessed.bytes.saturating_sub(overlaps.get(rank).bytes);
        if more > 0 {
            overlaps.record(rank, guessed);
            pending.record(rank, Overlap { blocks: 0, bytes: more });
        }
    }
}

/// Do guesses about the rank count beside its events?
pub(crate) fn counts_guess(fleet: &FleetSnapshot, trust: ShapeTrust, rank: RankIndex) -> bool {
    let known = fleet.ranks.get(rank.index());
    known.is_some_and(|rank| trust.counts_guess(trust_group(rank.worker)))
}

/// Shrinks the overlaps to the part that counts. False: all count whole.
pub(crate) fn shrink_claims(
    fleet: &FleetSnapshot,
    trust: ShapeTrust,
    overlaps: &mut Overlaps,
) -> bool {
    if trust.is_whole() {
        return false;
    }
    overlaps.map(|rank, overlap| {
        let Some(rank) = fleet.ranks.get(rank.index()) else { return overlap };
        let part = |whole| trust.share(trust_group(rank.worker), whole);
        Overlap { blocks: part(overlap.blocks), bytes: part(overlap.bytes) }
    });
    true
}

/// The report of the prompt's rank to the owner of its canonical path. `None` if the same was
/// reported a moment ago.
pub(crate) fn to_remember(
    ask: &MatchRequest<'_>,
    chunks: &[BlockKey],
    rank: RankIndex,
    reported: &mut ReportedPaths,
    now: NanosSinceStart,
) -> Option<(ShardIndex, Box<RoutedPrompt>)> {
    /// A guess stays valid if it is reported again within this part of its TTL.
    const TTL_PARTS: u32 = 4;
    let ttl = ask.fleet.config.approximate.ttl;
    let end = *chunks.last()?;
    if ttl.is_zero() || !reported.mark_due(RoutedPath { end, rank }, now, ttl / TTL_PARTS) {
        return None;
    }
    let owner = ask.index.owner_of_path(chunks)?;
    let (_, worker) = ask.fleet.rank(rank)?;
    let generation = worker.generation.cache;
    let root = ask.guess_root(KIND);
    let chunks = chunks.to_vec();
    Some((owner, Box::new(RoutedPrompt { rank, generation, kind: KIND, root, chunks })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::WorkerIndex;
    use forebay_fleet::worker::test_support;
    use proptest::prelude::*;

    #[test]
    fn a_guess_adds_the_chunks_that_events_lack() {
        let equal = TextScale { prompt_bytes: 4_000, text_bytes: 4_000 };
        assert_eq!(equal.guess(1_024, 930), 930 + 512, "the holder of the conversation");
        assert_eq!(equal.guess(512, 930), 512, "a rank with the system message");
        assert_eq!(equal.guess(1_024, 0), 1_024);
        assert_eq!(equal.guess(1_024, 2_000), 1_024, "the events have more");
        let longer = TextScale { prompt_bytes: 2_000, text_bytes: 4_000 };
        assert_eq!(longer.guess(1_024, 0), 512, "a text with escapes");
        assert_eq!(TextScale { prompt_bytes: 0, text_bytes: 0 }.guess(9, 9), 0);
    }

    #[test]
    fn claims_shrink_for_the_group_of_the_worker() {
        let mut fleet = FleetSnapshot::default();
        for worker in 0..2 {
            fleet.ranks.push(forebay_fleet::worker::Rank {
                worker: WorkerIndex(worker),
                ..test_support::rank(worker)
            });
        }
        let mut overlaps = Overlaps::new(4);
        for rank in 0..2 {
            overlaps.record(RankIndex(rank), Overlap { blocks: 8, bytes: 800 });
        }
        let mut trust = ShapeTrust::default();
        assert!(!shrink_claims(&fleet, trust, &mut overlaps));
        trust.claim_shares[1] = 2;
        assert!(shrink_claims(&fleet, trust, &mut overlaps));
        let held = |overlaps: &Overlaps, rank| overlaps.get(RankIndex(rank));
        assert_eq!(held(&overlaps, 0), Overlap { blocks: 8, bytes: 800 });
        assert_eq!(held(&overlaps, 1), Overlap { blocks: 2, bytes: 200 });
        trust.claim_shares[1] = 0;
        shrink_claims(&fleet, trust, &mut overlaps);
        assert_eq!(overlaps.iter_held().count(), 1, "a claim of nothing is none");
    }

    proptest! {
        #[test]
        fn no_guess_is_above_the_prompt(
            prompt_bytes in 0..5_000_000_u64,
            text_bytes in 0..5_000_000_u64,
            guessed in any::<u32>(),
            known in any::<u32>(),
        ) {
            let scale = TextScale { prompt_bytes, text_bytes };
            prop_assert!(u64::from(scale.guess(guessed, known)) <= prompt_bytes);
        }
    }
}

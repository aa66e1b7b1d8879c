//! Replays a recording into an index of this process, with the code of the feeds. Each source is a
//! rank.

use super::message::RecordedMessage;
use forebay_base::limits::RANKS_MAX;
use forebay_base::{RankIndex, count_broken_invariant};
use forebay_index::{
    BlockKey, IndexReader, KeySeed, Overlaps, RootName, SliceWriter, WINDOWS_MAX, Window,
    WindowedRank, index, slice_of,
};
use forebay_kv_events::{
    BlockText, FeedCounters, NamedImages, Naming, RankFeed, Resume, SliceOps, TRACKED_BLOCK_BYTES,
    Tier, Tree,
};
use forebay_text::Vocabulary;
use std::sync::Arc;

/// Model name in the root of all prompts.
const MODEL: &str = "recorded";

/// How a recording's tokens become bytes.
#[derive(Clone, Debug)]
pub enum TokenText {
    /// The text of the model's tokenizer, which gives the index of a router.
    Vocabulary(Arc<Vocabulary>),
    /// 4 bytes a token, which gives the same blocks and prefixes, but no text can be looked up.
    Ids,
}

impl BlockText for TokenText {
    fn decode_into(&self, token_ids: &[u32], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Vocabulary(vocabulary) => vocabulary.decode_into(token_ids, out),
            Self::Ids => {
                out.extend(token_ids.iter().flat_map(|token| token.to_le_bytes()));
                true
            }
        }
    }

    fn has_media(&self, token_ids: &[u32]) -> bool {
        match self {
            Self::Vocabulary(vocabulary) => vocabulary.has_media(token_ids),
            Self::Ids => false,
        }
    }

    fn decode_images(
        &self,
        token_ids: &[u32],
        images: NamedImages<'_, '_>,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            Self::Vocabulary(vocabulary) => vocabulary.decode_images(token_ids, images, out),
            Self::Ids => false,
        }
    }
}

/// The number of a window that has held a block, from the highest number down, above the ranks.
fn window_number(
    windows: &mut Vec<(RankIndex, usize)>,
    rank_count: usize,
    rank: RankIndex,
    place: usize,
) -> Option<RankIndex> {
    let known = windows.iter().position(|known| *known == (rank, place));
    let position = known.unwrap_or(windows.len());
    if known.is_none() {
        if rank_count + windows.len() >= RANKS_MAX {
            return None;
        }
        windows.push((rank, place));
    }
    number_at(position)
}

fn number_at(position: usize) -> Option<RankIndex> {
    RankIndex::try_from_index((RANKS_MAX - 1).checked_sub(position)?)
}

/// Number of windows that have not held a block yet.
const NO_RANK: RankIndex = RankIndex(u16::MAX - 1);

/// An index built from recorded messages.
#[derive(Debug)]
pub struct RebuiltIndex {
    seed: KeySeed,
    feeds: Vec<RankFeed<TokenText>>,
    counters: FeedCounters,
    ops: SliceOps,
    /// Windows with a number, by rank and place.
    windows: Vec<(RankIndex, usize)>,
    reader: IndexReader,
    writers: Vec<SliceWriter>,
}

impl RebuiltIndex {
    /// An empty index for that many sources.
    #[must_use]
    pub fn new(
        seed: KeySeed,
        text: &TokenText,
        source_count: usize,
        memory_bytes_max: usize,
    ) -> Self {
        let (reader, writers) = index(1, seed, memory_bytes_max);
        let source_count = source_count.min(RANKS_MAX);
        let entries_max = memory_bytes_max / TRACKED_BLOCK_BYTES / source_count.max(1);
        let feed = |_| {
            let naming = Naming {
                seed,
                model: MODEL.into(),
                text: Some(text.clone()),
                slice_of,
                shard_count: writers.len(),
            };
            RankFeed::new(naming, entries_max)
        };
        Self {
            seed,
            feeds: (0..source_count).map(feed).collect(),
            counters: FeedCounters::new(),
            ops: SliceOps::new(writers.len()),
            windows: Vec::new(),
            reader,
            writers,
        }
    }

    /// Applies the next message; returns the number of index operations.
    pub fn take(&mut self, message: &RecordedMessage<'_>) -> usize {
        let rank = RankIndex(message.source);
        let Some(feed) = self.feeds.get_mut(rank.index()) else { return 0 };
        if message.is_end_of_connection() {
            feed.disconnected(&self.counters, &mut self.ops);
        } else {
            feed.message(message.frames(), &self.counters, &mut self.ops);
        }
        let mut op_count = 0;
        let Self { feeds, windows, ops, writers, .. } = self;
        for (tree, slice, ops) in ops.trees_mut() {
            let number = match tree {
                Tree::Tier(tier) => (tier == Tier::Device).then_some(rank),
                Tree::Window(_) if ops.is_empty() => continue,
                // A recording compares blocks, not tokens.
                Tree::Odd => None,
                Tree::Window(place) => window_number(windows, feeds.len(), rank, place),
            };
            let Some(number) = number else {
                ops.clear();
                continue;
            };
            let Some(writer) = writers.get_mut(slice.index()) else {
                count_broken_invariant();
                continue;
            };
            op_count += ops.len();
            ops.drain(..).for_each(|op| writer.apply(number, op));
        }
        op_count
    }

    /// The overlap of a text on each rank, up to the point at which the rank can resume. `out` has
    /// room for [`RANKS_MAX`] ranks.
    pub fn overlap(&self, root: BlockKey, text: &[u8], out: &mut Overlaps) {
        let windowed: Vec<WindowedRank> = self.windowed().collect();
        self.reader.overlap_of_windows(root, text, &windowed, out);
        for rank in windowed {
            let first = rank.windows.iter().flatten().next();
            out.set(rank.rank, first.map(|window| out.get(window.number)).unwrap_or_default());
        }
    }

    /// Ranks that can resume only behind some of their blocks.
    fn windowed(&self) -> impl Iterator<Item = WindowedRank> + '_ {
        self.feeds.iter().enumerate().filter_map(|(index, feed)| {
            let Resume::Windows(needs) = feed.resume() else { return None };
            let rank = RankIndex::try_from_index(index)?;
            let mut windows = [None; WINDOWS_MAX];
            for (place, (window, need)) in windows.iter_mut().zip(needs).enumerate() {
                let Some(block_count) = need else { continue };
                let position = self.windows.iter().position(|known| *known == (rank, place));
                let number = position.map_or(Some(NO_RANK), number_at)?;
                *window = Some(Window { number, block_count });
            }
            Some(WindowedRank { rank, windows, odd: None })
        })
    }

    #[must_use]
    pub fn index(&self) -> &IndexReader {
        &self.reader
    }

    /// Counters of all messages.
    #[must_use]
    pub fn counters(&self) -> &FeedCounters {
        &self.counters
    }

    /// Root of prompts on ranks with that block size.
    #[must_use]
    pub fn root(&self, block_size_tokens: u32) -> BlockKey {
        let name = RootName { model: MODEL, block_size_tokens, ..RootName::default() };
        BlockKey::root(self.seed, &name)
    }

    /// Root of prompts with a LoRA adapter.
    #[must_use]
    pub fn lora_root(&self, block_size_tokens: u32, lora: &str) -> BlockKey {
        let name = RootName { model: MODEL, block_size_tokens, lora, ..RootName::default() };
        BlockKey::root(self.seed, &name)
    }

    /// Number of blocks of each rank, by engine hash, and tokens per block, 0 if no event reported
    /// them.
    pub fn ranks(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.feeds.iter().map(|feed| (feed.block_count(), feed.block_size_tokens()))
    }
}

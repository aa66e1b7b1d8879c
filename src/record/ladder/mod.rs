//! The hit ladder: how many prompt tokens of a recording could have come from a cache, and which
//! restrictions cost the difference to the cached tokens that engines reported. Each rung replays
//! the prompts in the order in which they were sent, and adds a restriction to the rung before.
//!
//! | rung | cache that a prompt is matched against |
//! |---|---|
//! | possible | a shared cache without a limit |
//! | with this much cache | a shared cache with the capacity of all ranks |
//! | with these ranks | a cache per rank; the rank with the longest match gets the prompt |
//! | as chosen | a cache per rank; the rank that the router chose gets the prompt |
//! | reached | no replay: cached tokens as reported by the engine |
//!
//! Engines cache responses too. A prompt is the next turn of an earlier prompt if it begins with
//! all whole parts of that prompt, and no other prompt had the last of these parts first. A next
//! turn also matches the parts of the earlier response.
//!
//! The difference of two rungs is a step, and the steps add up to the whole. A step may be below 0,
//! because the caches of the rungs are LRU, which is not the optimal policy.
//!
//! Limits: [`LADDER_PARTS_MAX`] parts in a cache, [`LADDER_PENDING_MAX`] requests without an end;
//! the excess is counted. No I/O and no randomness: a recording always has the same ladder.

mod lru;
#[cfg(test)]
mod tests;

use crate::request_note::{RankEntry, RequestEnd, RequestNote, RequestStart, RequestUsage};
use ahash::AHashMap;
use forebay_base::limits::{LADDER_PARTS_MAX, LADDER_PENDING_MAX, NOTE_PART_BYTES};
use lru::PartCache;
use std::collections::BTreeMap;

/// Rungs from a replay; the last rung comes from engines.
const REPLAYED: usize = 4;
/// Bytes per token if the recording has no response with token counts.
const BYTES_PER_TOKEN: u64 = 4;

/// The first pass over a recording: its bytes per token and its ranks.
#[derive(Debug, Default)]
pub struct LadderSurvey {
    sent_bytes: AHashMap<u64, u64>,
    bytes: u64,
    tokens: u64,
    ranks: Vec<RankEntry>,
}

/// Prompt tokens, rung by rung, and the requests left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitLadder {
    /// Requests in the ladder.
    pub requests: u64,
    /// Prompt tokens of these requests.
    pub prompt_tokens: u64,
    /// Matched tokens, from a cache without a limit to the engines' reports.
    pub rungs: [u64; REPLAYED + 1],
    /// Requests without token counts of the engine, or with more cached tokens than prompt tokens.
    pub untold: u64,
    /// Requests that another rank than the first answered.
    pub moved: u64,
    /// Requests without their start or end in the recording.
    pub cut: u64,
    /// Notes that the router dropped for lack of room.
    pub lost: u64,
    /// Parts that the cache without a limit dropped for lack of room.
    pub forgotten: u64,
}

/// Names of the rungs, in order.
pub const RUNGS: [&str; REPLAYED + 1] =
    ["possible", "with this much cache", "with these ranks", "as chosen", "reached"];
/// Names of the steps between them.
pub const STEPS: [&str; REPLAYED] = ["capacity", "ranks", "choices", "engines"];

/// The second pass over a recording, which computes the ladder.
#[derive(Debug)]
pub struct LadderMaker {
    bytes_per_kilotoken: u64,
    /// Cache capacity of a rank that does not report its own.
    kv_tokens: u64,
    ranks: Vec<RankEntry>,
    unlimited: PartCache,
    pools: BTreeMap<u32, PoolCaches>,
    pending: AHashMap<u64, PendingHits>,
    /// Responses in caches, by the last part of the prompt that first had this part.
    answers: AHashMap<u64, CachedAnswer>,
    ladder: HitLadder,
}

/// The caches of a pool.
#[derive(Debug)]
struct PoolCaches {
    together: PartCache,
    /// Caches by rank, where the longest match gets the prompt.
    by_match: BTreeMap<u32, PartCache>,
    /// Caches by rank, where the router's choice gets the prompt.
    as_chosen: BTreeMap<u32, PartCache>,
}

/// A request that was sent and has not ended.
#[derive(Clone, Copy, Debug)]
struct PendingHits {
    rank: u32,
    prompt_bytes: u64,
    bytes: [u64; REPLAYED],
    /// The last whole part of the prompt, if no prompt before had that part.
    new_part: Option<u64>,
}

/// Bytes behind the whole parts of a prompt in the cache of its rank, mostly the response.
#[derive(Clone, Copy, Debug)]
struct CachedAnswer {
    rank: u32,
    bytes: u64,
}

impl LadderSurvey {
    /// Adds the next note.
    pub fn take(&mut self, note: RequestNote) {
        match note {
            RequestNote::Ranks(ranks) => self.ranks = ranks,
            RequestNote::Sent(sent) if self.sent_bytes.len() < LADDER_PENDING_MAX => {
                self.sent_bytes.insert(sent.id, sent.prompt_bytes);
            }
            RequestNote::Ended(RequestEnd { id, told, .. }) => {
                if let (Some(bytes), Some(told)) = (self.sent_bytes.remove(&id), told) {
                    self.bytes = self.bytes.saturating_add(bytes);
                    self.tokens = self.tokens.saturating_add(told.prompt);
                }
            }
            RequestNote::Sent(_) | RequestNote::Lost(_) => {}
        }
    }

    /// Ranks of the last list that do not report their cache capacity.
    #[must_use]
    pub fn untold_ranks(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.kv_tokens == 0).count()
    }

    /// Starts the second pass. `kv_tokens` is the capacity of ranks that do not report theirs.
    #[must_use]
    pub fn maker(self, kv_tokens: u64) -> LadderMaker {
        let per_kilotoken = self.bytes.saturating_mul(1_000).checked_div(self.tokens);
        LadderMaker {
            bytes_per_kilotoken: per_kilotoken.unwrap_or(BYTES_PER_TOKEN * 1_000).max(1),
            kv_tokens,
            ranks: self.ranks,
            unlimited: PartCache::new(LADDER_PARTS_MAX),
            pools: BTreeMap::new(),
            pending: AHashMap::new(),
            answers: AHashMap::new(),
            ladder: HitLadder::default(),
        }
    }
}

impl LadderMaker {
    /// Adds the next note.
    pub fn take(&mut self, note: &RequestNote) {
        match note {
            // The survey has the last list, and a rank has the same position in all lists.
            RequestNote::Ranks(_) => {}
            RequestNote::Sent(sent) => self.sent(sent),
            RequestNote::Ended(ended) => self.ended(*ended),
            RequestNote::Lost(count) => self.ladder.lost = self.ladder.lost.saturating_add(*count),
        }
    }

    /// The ladder; requests without an end count as cut.
    #[must_use]
    pub fn finish(mut self) -> HitLadder {
        self.ladder.cut = self.ladder.cut.saturating_add(self.pending.len() as u64);
        self.ladder.forgotten = self.unlimited.dropped();
        self.ladder
    }

    fn sent(&mut self, sent: &RequestStart) {
        let RequestStart { id, pool, rank, prompt_bytes, ref keys, .. } = *sent;
        let all: Vec<u32> = self.ranks_of(pool, rank);
        let capacities: Vec<usize> = all.iter().map(|rank| self.capacity(*rank)).collect();
        let answer = self.take_next_turn(keys);
        let Self { unlimited, pools, .. } = self;
        let caches = pools.entry(pool).or_insert_with(|| {
            PoolCaches::new(
                capacities.iter().fold(0_usize, |sum, parts| sum.saturating_add(*parts)),
            )
        });
        if let Some((before, made, rank)) = answer {
            unlimited.take(made);
            caches.take_answer(before, made, rank);
        }
        let new_part = keys.last().copied().filter(|_| unlimited.prefix(keys) < keys.len());
        let parts = [
            used(unlimited, keys),
            used(&mut caches.together, keys),
            caches.by_longest_match(&all, &capacities, keys),
            caches.as_chosen(rank, &all, &capacities, keys),
        ];
        // Engines always compute the last token, and so the part that contains it.
        let most = prompt_bytes.saturating_sub(1) / NOTE_PART_BYTES as u64;
        let bytes = parts.map(|parts| most.min(parts as u64) * NOTE_PART_BYTES as u64);
        if self.pending.len() < LADDER_PENDING_MAX {
            let before =
                self.pending.insert(id, PendingHits { rank, prompt_bytes, bytes, new_part });
            self.ladder.cut += u64::from(before.is_some());
        } else {
            self.ladder.cut += 1;
        }
    }

    fn ended(&mut self, ended: RequestEnd) {
        let ladder = &mut self.ladder;
        let Some(sent) = self.pending.remove(&ended.id) else {
            ladder.cut += 1;
            return;
        };
        if sent.rank != ended.rank {
            ladder.moved += 1;
            return;
        }
        let told = ended.told.filter(|told| told.cached <= told.prompt && told.prompt > 0);
        let Some(RequestUsage { prompt, cached, output }) = told.filter(|_| sent.prompt_bytes > 0)
        else {
            ladder.untold += 1;
            return;
        };
        ladder.requests += 1;
        ladder.prompt_tokens = ladder.prompt_tokens.saturating_add(prompt);
        for (rung, bytes) in ladder.rungs.iter_mut().zip(sent.bytes) {
            let tokens = u128::from(bytes) * u128::from(prompt) / u128::from(sent.prompt_bytes);
            *rung = rung.saturating_add(u64::try_from(tokens).unwrap_or(u64::MAX));
        }
        if let Some(reached) = ladder.rungs.last_mut() {
            *reached = reached.saturating_add(cached);
        }
        if let Some(new_part) = sent.new_part.filter(|_| self.answers.len() < LADDER_PENDING_MAX) {
            let behind = sent.prompt_bytes % NOTE_PART_BYTES as u64;
            // The engine has no KV of the last token of the response.
            let made = u128::from(output.saturating_sub(1)) * u128::from(self.bytes_per_kilotoken);
            let made = u64::try_from(made / 1_000).unwrap_or(u64::MAX);
            let bytes = behind.saturating_add(made);
            self.answers.insert(new_part, CachedAnswer { rank: sent.rank, bytes });
        }
    }

    /// For a next turn, removes the response of the turn before. Returns the last part of that
    /// turn's prompt, the parts of `keys` that its response covers, and the rank of the response.
    fn take_next_turn<'a>(&mut self, keys: &'a [u64]) -> Option<(u64, &'a [u64], u32)> {
        let found = self.unlimited.prefix(keys);
        let before = *keys.get(found.checked_sub(1)?)?;
        let CachedAnswer { rank, bytes } = self.answers.remove(&before)?;
        let parts = usize::try_from(bytes / NOTE_PART_BYTES as u64).unwrap_or(usize::MAX);
        let rest = keys.get(found..)?;
        Some((before, rest.get(..parts.min(rest.len()))?, rank))
    }

    /// The ranks of a pool, and `chosen` if no list has that rank.
    fn ranks_of(&self, pool: u32, chosen: u32) -> Vec<u32> {
        let known = (0_u32..).zip(&self.ranks).filter(|(_, rank)| rank.pool == pool);
        let mut all: Vec<u32> = known.map(|(position, _)| position).collect();
        if !all.contains(&chosen) {
            all.push(chosen);
        }
        all
    }

    /// Capacity of a rank's cache in parts.
    fn capacity(&self, rank: u32) -> usize {
        let rank = usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank));
        let reported = rank.map_or(0, |rank| rank.kv_tokens);
        let tokens = if reported > 0 { reported } else { self.kv_tokens };
        let bytes = u128::from(tokens) * u128::from(self.bytes_per_kilotoken) / 1_000;
        let parts = usize::try_from(bytes / NOTE_PART_BYTES as u128).unwrap_or(usize::MAX);
        parts.min(LADDER_PARTS_MAX)
    }
}

/// Looks a prompt up, and adds it to the cache.
fn used(cache: &mut PartCache, keys: &[u64]) -> usize {
    let found = cache.prefix(keys);
    cache.take(keys);
    found
}

impl PoolCaches {
    fn new(parts: usize) -> Self {
        Self {
            together: PartCache::new(parts.min(LADDER_PARTS_MAX)),
            by_match: BTreeMap::new(),
            as_chosen: BTreeMap::new(),
        }
    }

    /// Adds the parts of a response to all caches that have its prompt.
    fn take_answer(&mut self, before: u64, made: &[u64], rank: u32) {
        let by_match = self.by_match.values_mut();
        let as_chosen = self.as_chosen.get_mut(&rank);
        let caches = by_match.chain(as_chosen).chain([&mut self.together]);
        caches.filter(|cache| cache.prefix(&[before]) > 0).for_each(|cache| cache.take(made));
    }

    /// Gives the prompt to the rank with the longest match; among equals, to the emptiest cache.
    fn by_longest_match(&mut self, all: &[u32], capacities: &[usize], keys: &[u64]) -> usize {
        for (&rank, &capacity) in all.iter().zip(capacities) {
            self.by_match.entry(rank).or_insert_with(|| PartCache::new(capacity));
        }
        let held = |cache: &PartCache| (cache.prefix(keys), usize::MAX - cache.len());
        let best = self.by_match.values_mut().max_by_key(|cache| held(cache));
        best.map_or(0, |cache| used(cache, keys))
    }

    fn as_chosen(&mut self, rank: u32, all: &[u32], capacities: &[usize], keys: &[u64]) -> usize {
        let capacity = all.iter().zip(capacities).find(|(known, _)| **known == rank);
        let capacity = capacity.map_or(0, |(_, capacity)| *capacity);
        used(self.as_chosen.entry(rank).or_insert_with(|| PartCache::new(capacity)), keys)
    }
}

impl HitLadder {
    /// Tokens lost in each step; below 0 where the later rung has more.
    #[must_use]
    pub fn steps(&self) -> [i64; REPLAYED] {
        let mut steps = [0; REPLAYED];
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        for (step, pair) in steps.iter_mut().zip(self.rungs.windows(2)) {
            if let [above, below] = *pair {
                *step = signed(above) - signed(below);
            }
        }
        steps
    }
}

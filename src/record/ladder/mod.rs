//! The ladder of hits: of the prompt tokens of a recording, how many could have come from a cache,
//! and where the difference to what did come from caches went. Each rung is a replay of the prompts
//! in the order in which they were sent; a rung has one restriction more than the rung before.
//!
//! | rung | a prompt finds |
//! |---|---|
//! | possible | what any prompt before it had, one cache without a limit |
//! | with this much cache | the same, one cache as large as those of all ranks |
//! | with these ranks | one cache a rank, and the rank that holds most gets the prompt |
//! | as chosen | one cache a rank, and the rank that the router chose |
//! | reached | what the engine says that it found |
//!
//! Engines keep answers too. A prompt that begins with all whole parts of an earlier prompt, which
//! alone had brought the last of them, is its next turn: it finds as much more as the answer had.
//!
//! The difference of two rungs is a step, and the steps add up to the whole. A step may be below 0:
//! the rungs drop what was used longest ago, which is not the best that could be dropped.
//!
//! Limits: [`LADDER_PARTS_MAX`] parts in a cache, [`LADDER_PENDING_MAX`] requests without an end;
//! what is beyond is counted. Reads nothing and draws nothing: a recording has one ladder.

mod lru;
#[cfg(test)]
mod tests;

use crate::request_note::{NotedEnd, NotedRank, NotedRequest, NotedUsage, RequestNote};
use ahash::AHashMap;
use forebay_base::limits::{LADDER_PARTS_MAX, LADDER_PENDING_MAX, NOTED_PART_BYTES};
use lru::PartCache;
use std::collections::BTreeMap;

/// Rungs that a replay gives; the last rung is what engines say.
const REPLAYED: usize = 4;
/// Where no answer of the recording tells.
const BYTES_PER_TOKEN: u64 = 4;

/// What has to be known of a recording before its ladder: the first pass over it.
#[derive(Debug, Default)]
pub struct LadderSurvey {
    sent_bytes: AHashMap<u64, u64>,
    bytes: u64,
    tokens: u64,
    ranks: Vec<NotedRank>,
}

/// Prompt tokens, rung by rung, and what was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitLadder {
    /// Requests whose tokens are counted.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// From a cache without a limit, to what engines reached.
    pub rungs: [u64; REPLAYED + 1],
    /// Requests whose engine told no tokens, or less than its prompt has.
    pub untold: u64,
    /// Requests that another rank answered in the end.
    pub moved: u64,
    /// Requests whose end or beginning is not in the recording.
    pub cut: u64,
    /// Notes that the router had no room for.
    pub lost: u64,
    /// Parts that the cache without a limit had no room for.
    pub forgotten: u64,
}

/// Names of the rungs, from the first on.
pub const RUNGS: [&str; REPLAYED + 1] =
    ["possible", "with this much cache", "with these ranks", "as chosen", "reached"];
/// Names of the steps between them.
pub const STEPS: [&str; REPLAYED] = ["capacity", "ranks", "choices", "engines"];

/// A ladder as it is made: the second pass.
#[derive(Debug)]
pub struct LadderMaker {
    bytes_per_kilotoken: u64,
    /// Of a rank that does not tell.
    kv_tokens: u64,
    ranks: Vec<NotedRank>,
    unlimited: PartCache,
    pools: BTreeMap<u32, PoolCaches>,
    pending: AHashMap<u64, PendingHits>,
    /// By the last part of a prompt that has brought it: bytes behind it, and who has them.
    answers: AHashMap<u64, KeptAnswer>,
    ladder: HitLadder,
}

/// The caches of one pool.
#[derive(Debug)]
struct PoolCaches {
    together: PartCache,
    /// By rank: where the longest match gets the prompt, and where the router sent it.
    by_match: BTreeMap<u32, PartCache>,
    as_chosen: BTreeMap<u32, PartCache>,
}

/// A request that was sent and has not ended.
#[derive(Clone, Copy, Debug)]
struct PendingHits {
    rank: u32,
    prompt_bytes: u64,
    bytes: [u64; REPLAYED],
    /// Its last whole part, if no prompt before had it.
    brought: Option<u64>,
}

/// What follows the whole parts of a prompt in the cache of its rank.
#[derive(Clone, Copy, Debug)]
struct KeptAnswer {
    rank: u32,
    bytes: u64,
}

impl LadderSurvey {
    /// Takes the next note.
    pub fn take(&mut self, note: RequestNote) {
        match note {
            RequestNote::Ranks(ranks) => self.ranks = ranks,
            RequestNote::Sent(sent) if self.sent_bytes.len() < LADDER_PENDING_MAX => {
                self.sent_bytes.insert(sent.id, sent.prompt_bytes);
            }
            RequestNote::Ended(NotedEnd { id, told, .. }) => {
                if let (Some(bytes), Some(told)) = (self.sent_bytes.remove(&id), told) {
                    self.bytes = self.bytes.saturating_add(bytes);
                    self.tokens = self.tokens.saturating_add(told.prompt);
                }
            }
            RequestNote::Sent(_) | RequestNote::Lost(_) => {}
        }
    }

    /// Ranks of the last list that do not tell how much their cache holds.
    #[must_use]
    pub fn untold_ranks(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.kv_tokens == 0).count()
    }

    /// Starts the second pass. `kv_tokens`: of ranks that do not tell.
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
    /// Takes the next note.
    pub fn take(&mut self, note: &RequestNote) {
        match note {
            // The last list of the recording is known: a rank has the same position in all lists.
            RequestNote::Ranks(_) => {}
            RequestNote::Sent(sent) => self.sent(sent),
            RequestNote::Ended(ended) => self.ended(*ended),
            RequestNote::Lost(count) => self.ladder.lost = self.ladder.lost.saturating_add(*count),
        }
    }

    /// The ladder; requests without an end are cut.
    #[must_use]
    pub fn finish(mut self) -> HitLadder {
        self.ladder.cut = self.ladder.cut.saturating_add(self.pending.len() as u64);
        self.ladder.forgotten = self.unlimited.dropped();
        self.ladder
    }

    fn sent(&mut self, sent: &NotedRequest) {
        let NotedRequest { id, pool, rank, prompt_bytes, ref keys, .. } = *sent;
        let all: Vec<u32> = self.ranks_of(pool, rank);
        let capacities: Vec<usize> = all.iter().map(|rank| self.capacity(*rank)).collect();
        let answer = self.next_turn(keys);
        let Self { unlimited, pools, .. } = self;
        let caches = pools.entry(pool).or_insert_with(|| {
            PoolCaches::new(capacities.iter().fold(0_usize, |sum, one| sum.saturating_add(*one)))
        });
        if let Some((before, made, rank)) = answer {
            unlimited.take(made);
            caches.take_answer(before, made, rank);
        }
        let brought = keys.last().copied().filter(|_| unlimited.prefix(keys) < keys.len());
        let parts = [
            used(unlimited, keys),
            used(&mut caches.together, keys),
            caches.by_longest_match(&all, &capacities, keys),
            caches.as_chosen(rank, &all, &capacities, keys),
        ];
        // The last token is always computed, and with it the part that it is in.
        let most = prompt_bytes.saturating_sub(1) / NOTED_PART_BYTES as u64;
        let bytes = parts.map(|parts| most.min(parts as u64) * NOTED_PART_BYTES as u64);
        if self.pending.len() < LADDER_PENDING_MAX {
            let before =
                self.pending.insert(id, PendingHits { rank, prompt_bytes, bytes, brought });
            self.ladder.cut += u64::from(before.is_some());
        } else {
            self.ladder.cut += 1;
        }
    }

    fn ended(&mut self, ended: NotedEnd) {
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
        let Some(NotedUsage { prompt, cached, output }) = told.filter(|_| sent.prompt_bytes > 0)
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
        if let Some(brought) = sent.brought.filter(|_| self.answers.len() < LADDER_PENDING_MAX) {
            let behind = sent.prompt_bytes % NOTED_PART_BYTES as u64;
            // The engine keeps no KV of the last token that it makes.
            let made = u128::from(output.saturating_sub(1)) * u128::from(self.bytes_per_kilotoken);
            let made = u64::try_from(made / 1_000).unwrap_or(u64::MAX);
            let bytes = behind.saturating_add(made);
            self.answers.insert(brought, KeptAnswer { rank: sent.rank, bytes });
        }
    }

    /// Of a next turn: the last part of the turn before, the parts behind it that the answer had,
    /// and the rank that made them.
    fn next_turn<'a>(&mut self, keys: &'a [u64]) -> Option<(u64, &'a [u64], u32)> {
        let found = self.unlimited.prefix(keys);
        let before = *keys.get(found.checked_sub(1)?)?;
        let KeptAnswer { rank, bytes } = self.answers.remove(&before)?;
        let parts = usize::try_from(bytes / NOTED_PART_BYTES as u64).unwrap_or(usize::MAX);
        let rest = keys.get(found..)?;
        Some((before, rest.get(..parts.min(rest.len()))?, rank))
    }

    /// The ranks of a pool, with one that no list has.
    fn ranks_of(&self, pool: u32, chosen: u32) -> Vec<u32> {
        let known = (0_u32..).zip(&self.ranks).filter(|(_, rank)| rank.pool == pool);
        let mut all: Vec<u32> = known.map(|(position, _)| position).collect();
        if !all.contains(&chosen) {
            all.push(chosen);
        }
        all
    }

    /// Parts that the cache of a rank holds.
    fn capacity(&self, rank: u32) -> usize {
        let rank = usize::try_from(rank).ok().and_then(|rank| self.ranks.get(rank));
        let told = rank.map_or(0, |rank| rank.kv_tokens);
        let tokens = if told > 0 { told } else { self.kv_tokens };
        let bytes = u128::from(tokens) * u128::from(self.bytes_per_kilotoken) / 1_000;
        let parts = usize::try_from(bytes / NOTED_PART_BYTES as u128).unwrap_or(usize::MAX);
        parts.min(LADDER_PARTS_MAX)
    }
}

/// Looks a prompt up, and leaves it in the cache.
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

    /// An answer is where its prompt is.
    fn take_answer(&mut self, before: u64, made: &[u64], rank: u32) {
        let by_match = self.by_match.values_mut();
        let as_chosen = self.as_chosen.get_mut(&rank);
        let caches = by_match.chain(as_chosen).chain([&mut self.together]);
        caches.filter(|cache| cache.prefix(&[before]) > 0).for_each(|cache| cache.take(made));
    }

    /// The rank that holds most of the prompt gets it; among equals the one that holds least.
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
    /// What each step loses, in tokens; below 0 where the rung after has more.
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

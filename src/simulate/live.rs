//! Simulation in the time of the wall: the requests of a running fleet arrive as they come, and
//! each rule serves them on simulated ranks of its own.
//!
//! The text of an answer is unknown until a next turn repeats it. So an answer gets blocks without
//! a key, and the prompt that continues the conversation gives these blocks their keys.
//!
//! Memory: at most [`BLOCKS_MAX`] blocks with about 100 bytes each for two rules, and
//! [`REQUESTS_MAX`] requests with about 400 bytes each and rule. Requests leave in the order of
//! their arrival, so that a request with a long answer keeps the requests behind it. A block that no
//! cache and no request uses is given to another key.

use crate::live_figures::LiveFigures;
use crate::plan::SimPlan;
use crate::rivals::Rule;
use crate::traces::trace::{NO_BLOCK, TraceRequest, TurnStart};
use crate::world::World;
use ahash::AHashMap;

/// Most blocks with a name at the same time.
const BLOCKS_MAX: usize = 1 << 21;
/// Further blocks beside the blocks that all caches have room for.
const BLOCKS_BESIDE: usize = 1 << 16;
/// Most requests of a rule in memory. A further prompt is left out.
const REQUESTS_MAX: usize = 1 << 16;
/// Prompts without room until the blocks in use are counted again.
const LEFT_OUT_BETWEEN: u32 = 256;

/// A prompt as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct LivePrompt<'a> {
    /// A key for each full block, which covers the block with all blocks before.
    pub keys: &'a [u64],
    /// Tokens of the prompt, at least the tokens of the keys.
    pub input_tokens: u32,
    /// Expected tokens of the answer.
    pub output_tokens: u32,
}

/// A simulated fleet for each rule, fed with the same requests.
pub struct LiveFleet {
    worlds: Vec<World<'static>>,
    names: LiveNames,
    block_tokens: u32,
    sessions: u32,
    left_out: u64,
    /// Prompts to leave out before blocks in use are counted again.
    full_for: u32,
    now_ns: u64,
    requests_max: usize,
}

/// Blocks by the keys of prompts.
#[derive(Debug, Default)]
struct LiveNames {
    by_key: AHashMap<u64, u32>,
    /// By the last full block of a prompt: its answer.
    answers: AHashMap<u32, LiveAnswer>,
    free: Vec<u32>,
    count: usize,
    blocks_max: usize,
}

/// Blocks of an answer that no prompt has continued yet.
#[derive(Debug)]
struct LiveAnswer {
    blocks: Vec<u32>,
    session: u32,
}

/// A block with a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedBlock {
    block: u32,
    parent: u32,
}

impl LiveFleet {
    /// Fleets without requests, at time 0. Each rank holds `kv_tokens` of its engine.
    #[must_use]
    pub fn new(block_tokens: u32, plan: &SimPlan, rules: &[Rule]) -> Self {
        let world = |rule: &Rule| World::live(block_tokens, plan.clone(), *rule);
        let worlds: Vec<World<'static>> = rules.iter().map(world).collect();
        let device_blocks = worlds.first().map_or(0, World::device_blocks_min) * plan.ranks;
        let blocks_max = device_blocks.saturating_mul(rules.len() + 1) + BLOCKS_BESIDE;
        let names = LiveNames { blocks_max: blocks_max.min(BLOCKS_MAX), ..LiveNames::default() };
        Self {
            worlds,
            names,
            block_tokens,
            sessions: 0,
            left_out: 0,
            full_for: 0,
            now_ns: 0,
            requests_max: REQUESTS_MAX,
        }
    }

    /// Takes a request at `now_ns`; a time before the present is the present. False: the request is
    /// left out, because no rank has room for the prompt, or the blocks have none for its keys.
    pub fn arrive(&mut self, prompt: &LivePrompt<'_>, now_ns: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        let now_ns = self.now_ns;
        let has_room = self.worlds.iter().all(|world| world.request_count() < self.requests_max);
        if !has_room {
            // A world forgets requests only when time passes.
            self.advance(now_ns);
        }
        let took = self.request(prompt).filter(|_| has_room).map(|(request, named)| {
            for world in &mut self.worlds {
                named.iter().for_each(|named| world.name_block(named.block, named.parent));
                world.add(request.clone(), now_ns);
            }
        });
        self.left_out += u64::from(took.is_none());
        took.is_some()
    }

    /// Runs all fleets up to `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.worlds.iter_mut().for_each(|world| world.advance(self.now_ns));
    }

    /// Figures of each rule since the start.
    #[must_use]
    pub fn figures(&self) -> Vec<LiveFigures> {
        self.worlds.iter().map(World::figures).collect()
    }

    /// Requests that were left out.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Share of the warm-up: tokens that each rule has computed, in parts of the room of its
    /// caches, by the slowest.
    #[must_use]
    pub fn turned_share(&self) -> f64 {
        self.worlds.iter().map(World::turned_share).fold(1.0, f64::min)
    }

    /// Has each rule computed as many tokens as its caches have room for?
    #[must_use]
    pub fn has_turned(&self) -> bool {
        self.worlds.iter().all(World::has_turned)
    }

    fn request(&mut self, prompt: &LivePrompt<'_>) -> Option<(TraceRequest, Vec<NamedBlock>)> {
        let block_tokens = self.block_tokens;
        let input_tokens = prompt.input_tokens.max(prompt.keys.len() as u32 * block_tokens).max(1);
        let output_tokens = prompt.output_tokens.max(1);
        let all = (input_tokens + output_tokens) as usize / block_tokens as usize + 2;
        if self.worlds.iter().any(|world| world.device_blocks_min() < all) {
            return None;
        }
        if !self.has_room(all) {
            return None;
        }
        let mut named = Vec::new();
        let (blocks, continued) = self.names.path(prompt.keys, &mut named);
        let session = continued.unwrap_or(self.sessions);
        self.sessions = self.sessions.wrapping_add(u32::from(continued.is_none()));
        let full = (input_tokens / block_tokens) as usize;
        let mut made = Vec::new();
        // With a key for each full block, and a last block that no earlier prompt had.
        if blocks.len() == full && named.last().map(|named| named.block) == blocks.last().copied() {
            let count = ((input_tokens + output_tokens - 1) / block_tokens) as usize - full;
            made = self.names.answer(blocks.last().copied(), count, session, &mut named);
        }
        let turn = TurnStart::At { ns: 0 };
        let request = TraceRequest { turn, input_tokens, output_tokens, blocks, made, session };
        Some((request, named))
    }

    fn has_room(&mut self, blocks: usize) -> bool {
        if self.names.room() >= blocks {
            return true;
        }
        if self.full_for > 0 {
            self.full_for -= 1;
            return false;
        }
        let mut used = vec![false; self.names.count];
        self.worlds.iter().for_each(|world| world.mark_used(&mut used));
        self.names.keep(used);
        let room = self.names.room();
        if room < self.names.blocks_max / 8 {
            self.full_for = LEFT_OUT_BETWEEN;
        }
        room >= blocks
    }
}

impl LiveNames {
    fn room(&self) -> usize {
        self.blocks_max.saturating_sub(self.count) + self.free.len()
    }

    /// The blocks of a prompt, and the session that it continues. Appends new blocks to `named`.
    fn path(&mut self, keys: &[u64], named: &mut Vec<NamedBlock>) -> (Vec<u32>, Option<u32>) {
        let mut blocks = Vec::with_capacity(keys.len());
        let mut parent = NO_BLOCK;
        let mut answer = Vec::new().into_iter();
        let mut session = None;
        for &key in keys {
            let known = self.by_key.get(&key).copied();
            let block = known.unwrap_or_else(|| {
                if let Some(found) = self.answers.remove(&parent) {
                    session = Some(found.session);
                    answer = found.blocks.into_iter();
                }
                let block = answer.next().unwrap_or_else(|| self.new_block(parent, named));
                self.by_key.insert(key, block);
                block
            });
            blocks.push(block);
            parent = block;
        }
        (blocks, session)
    }

    /// Blocks for the answer to a prompt that ends with the full block `last`.
    fn answer(
        &mut self,
        last: Option<u32>,
        count: usize,
        session: u32,
        named: &mut Vec<NamedBlock>,
    ) -> Vec<u32> {
        let Some(last) = last else { return Vec::new() };
        let mut parent = last;
        let mut next = |_| {
            parent = self.new_block(parent, named);
            parent
        };
        let blocks: Vec<u32> = (0..count).map(&mut next).collect();
        self.answers.insert(last, LiveAnswer { blocks: blocks.clone(), session });
        blocks
    }

    fn new_block(&mut self, parent: u32, named: &mut Vec<NamedBlock>) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            (self.count - 1) as u32
        });
        named.push(NamedBlock { block, parent });
        block
    }

    /// Frees all blocks but the used ones, and the answers to prompts in use.
    fn keep(&mut self, mut used: Vec<bool>) {
        self.answers.retain(|last, _| used[*last as usize]);
        let answers = self.answers.values().flat_map(|answer| answer.blocks.iter());
        answers.for_each(|&block| used[block as usize] = true);
        self.by_key.retain(|_, block| used[*block as usize]);
        self.free = (0..self.count as u32).rev().filter(|&block| !used[block as usize]).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::speed::ModelSpeed;
    use forebay_config::Policy;

    const BLOCK: u32 = 64;
    const SECOND: u64 = 1_000_000_000;

    fn plan(ranks: usize, kv_tokens: u32) -> SimPlan {
        let engines = vec![ModelSpeed { kv_tokens, ..ModelSpeed::default() }];
        SimPlan { ranks, engines, ..SimPlan::default() }
    }

    fn rules() -> [Rule; 2] {
        [Rule::Own(Policy::Kv), Rule::Own(Policy::RoundRobin)]
    }

    /// The keys of a conversation's prompt.
    fn keys(conversation: u64, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|at| (conversation << 32) + at + 1).collect()
    }

    fn prompt(keys: &[u64], output_tokens: u32) -> LivePrompt<'_> {
        LivePrompt { keys, input_tokens: keys.len() as u32 * BLOCK + 9, output_tokens }
    }

    #[test]
    fn a_next_turn_finds_prompt_and_answer() {
        let mut fleet = LiveFleet::new(BLOCK, &plan(1, 100_000), &rules());
        assert!(fleet.arrive(&prompt(&keys(1, 10), 5 * BLOCK), 0));
        fleet.advance(60 * SECOND);
        // The prompt of 10 blocks, and the answer of 5 blocks, of which the last token has no KV.
        assert!(fleet.arrive(&prompt(&keys(1, 18), BLOCK), 60 * SECOND));
        fleet.advance(120 * SECOND);
        for figures in fleet.figures() {
            assert_eq!(figures.cached_tokens, u64::from(15 * BLOCK), "{figures:?}");
            assert_eq!((figures.answered, figures.first_tokens, figures.refused), (2, 2, 0));
            assert!(figures.ttft_ms_mean().unwrap() > 0.0);
        }
    }

    #[test]
    fn kv_keeps_conversations_where_their_blocks_are() {
        let mut fleet = LiveFleet::new(BLOCK, &plan(4, 200_000), &rules());
        let mut now = 0;
        for turn in 1..=6 {
            for conversation in 0..9 {
                now += SECOND / 10;
                assert!(fleet.arrive(&prompt(&keys(conversation, turn * 20), 8), now));
            }
            now += 10 * SECOND;
        }
        fleet.advance(now + 60 * SECOND);
        let [kv, spread] = fleet.figures()[..] else { panic!("two rules") };
        assert!(kv.hit_rate().unwrap() > 0.65, "{kv:?}");
        assert!(spread.hit_rate().unwrap() < 0.5 * kv.hit_rate().unwrap(), "{spread:?}");
        assert_eq!(kv.answered, 54);
        let later = kv.since(&kv);
        assert_eq!((later.answered, later.hit_rate(), later.ttft_ms_mean()), (0, None, None));
    }

    #[test]
    fn names_and_requests_are_bounded() {
        let plan = plan(2, 8_192);
        let mut fleet = LiveFleet::new(BLOCK, &plan, &rules());
        fleet.names.blocks_max = 2_000;
        let mut now = 0;
        for conversation in 0..1_000 {
            now += SECOND / 4;
            assert!(fleet.arrive(&prompt(&keys(conversation, 20), 100), now), "{conversation}");
            assert!(fleet.names.count <= 2_000 && fleet.names.by_key.len() <= 2_000);
            assert!(fleet.names.answers.len() <= 2_000);
        }
        fleet.advance(now + 60 * SECOND);
        assert!(fleet.has_turned());
        for world in &fleet.worlds {
            assert!(world.request_count() <= 200, "{}", world.request_count());
            assert_eq!(world.figures().answered, 1_000);
            assert_eq!(world.figures().cached_tokens, 0, "no block of another conversation");
        }
        assert!(!fleet.arrive(&prompt(&keys(5_000, 200), 1), now), "longer than a rank's cache");
        assert_eq!(fleet.left_out(), 1);
    }

    /// A request that runs for long keeps the requests behind it in the lists: without blocks, and
    /// not without a bound.
    #[test]
    fn a_long_answer_does_not_hold_the_memory_of_all_requests_behind_it() {
        const ANSWER_TOKENS: u32 = 400_000;
        let mut fleet = LiveFleet::new(BLOCK, &plan(2, 2_000_000), &rules());
        fleet.requests_max = 500;
        assert!(fleet.arrive(&prompt(&keys(1, 2), ANSWER_TOKENS), 0));
        let mut now = 0;
        let mut taken = 1;
        for conversation in 2..1_502 {
            now += SECOND / 10;
            taken += usize::from(fleet.arrive(&prompt(&keys(conversation, 8), 4), now));
        }
        fleet.advance(now + 20 * SECOND);
        assert!((400..=501).contains(&taken), "{taken}");
        assert_eq!(fleet.left_out(), 1_501 - taken as u64);
        for world in &fleet.worlds {
            assert!(world.request_count() <= 500, "{}", world.request_count());
            assert!(world.held_block_count() < 20_000, "{}", world.held_block_count());
            assert!(!world.has_turned());
        }
    }

    #[test]
    fn quantiles_are_within_a_fifth() {
        let mut figures = LiveFigures::default();
        let outcome = |ms: u64| crate::summary::RequestOutcome {
            ttft_ns: Some(ms * 1_000_000),
            ..crate::summary::RequestOutcome::default()
        };
        figures.count((1..=1_000).map(outcome));
        for part in [0.1, 0.5, 0.9, 0.99] {
            let ms = figures.ttft_ms(part).unwrap();
            assert!((ms / (part * 1_000.0) - 1.0).abs() < 0.2, "{part}: {ms}");
        }
        assert_eq!(LiveFigures::default().ttft_ms(0.5), None);
        assert_eq!(LiveFigures::default().hit_rate(), None);
    }
}

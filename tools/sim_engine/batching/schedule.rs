//! Continuous batching of a rank in virtual time. Owned by the ranks' task; reads no clock and does
//! no I/O: calls pass the time, finished tokens and cache events come out.
//!
//! Model: requests wait in arrival order. A single prefill runs at a time and takes (prompt tokens
//! not in the cache) / (prefill rate); then every running request yields a token per inter-token
//! latency. At most `concurrency_max` requests run. A request starts only when the blocks of its
//! prompt and of its whole answer are free, so no request is ever preempted.
//!
//! Disaggregated requests have two legs ([`LegPart`]): a prefill ends with its first token, and
//! holds its blocks until `let_go`. A decode starts with the KV of its prompt and computes no
//! prompt tokens.

use super::prefix_cache::{CacheEvent, LiveSequence, PrefixCache};
use super::rank_stats::{RankStats, RequestCounts};
use forebay_base::NanosSinceStart;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Id of a request inside an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Speed and limits of a rank.
#[derive(Clone, Copy, Debug)]
pub struct EnginePace {
    /// Requests that run at the same time; further requests wait.
    pub concurrency_max: usize,
    /// Requests that may wait; further requests are refused. `None` is without limit.
    pub queued_max: Option<usize>,
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_s: f64,
    /// Time between two tokens of a request.
    pub inter_token: Duration,
}

/// Part of a request that a rank computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LegPart {
    /// The prompt and the whole answer.
    #[default]
    Whole,
    /// The prompt and the first token; the blocks are held until [`RankSchedule::let_go`].
    Prefill,
    /// The answer, with the prompt's KV from another engine.
    Decode,
}

/// A request to a rank.
#[derive(Debug)]
pub struct Work {
    /// Token ids of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// Token ids of the answer; not empty.
    pub output: Vec<u32>,
    /// Cache salt, or empty without a salt.
    pub salt: String,
    /// Part of the request for this rank.
    pub part: LegPart,
}

/// A token from the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenStep {
    /// The request that gets the token.
    pub request: RequestId,
    /// Id of the token.
    pub token_id: u32,
    /// Prompt tokens found in the cache, the same in every step of a request.
    pub cached_tokens: usize,
    /// The request is over.
    pub last: bool,
}

#[derive(Debug)]
struct RunningRequest {
    sequence: LiveSequence,
    output: Vec<u32>,
    emitted: usize,
    cached_tokens: usize,
    part: LegPart,
}

/// A request that waits for its place in the batch.
#[derive(Debug)]
struct WaitingWork {
    request: RequestId,
    came_at: NanosSinceStart,
    work: Work,
}

#[derive(Debug)]
struct Prefill {
    request: RequestId,
    /// When the request came, and when its prefill began.
    came_at: NanosSinceStart,
    began_at: NanosSinceStart,
    ends_at: NanosSinceStart,
    prompt_tokens: usize,
    running: RunningRequest,
}

/// State of a rank.
#[derive(Debug)]
pub struct RankSchedule {
    pace: EnginePace,
    cache: PrefixCache,
    waiting: VecDeque<WaitingWork>,
    prefill: Option<Prefill>,
    decoding: BTreeMap<(NanosSinceStart, RequestId), RunningRequest>,
    due: HashMap<RequestId, NanosSinceStart>,
    held: HashMap<RequestId, LiveSequence>,
    totals: RankStats,
}

impl RankSchedule {
    /// A rank without requests, with this cache.
    #[must_use]
    pub fn new(pace: EnginePace, cache: PrefixCache) -> Self {
        Self {
            pace,
            cache,
            waiting: VecDeque::new(),
            prefill: None,
            decoding: BTreeMap::new(),
            due: HashMap::new(),
            held: HashMap::new(),
            totals: RankStats::default(),
        }
    }

    /// Takes a request, or refuses it (`false`). Tokens that are due by `now` are pushed to `steps`
    /// first.
    pub fn submit(
        &mut self,
        now: NanosSinceStart,
        request: RequestId,
        work: Work,
        steps: &mut Vec<TokenStep>,
    ) -> bool {
        self.advance(now, steps);
        self.totals.requests.received += 1;
        let most =
            self.pace.queued_max.map(|queued| queued.saturating_add(self.pace.concurrency_max));
        if most.is_some_and(|most| self.in_flight() >= most) {
            self.totals.requests.refused += 1;
            return false;
        }
        self.waiting.push_back(WaitingWork { request, came_at: now, work });
        self.totals.requests.in_flight_peak =
            self.totals.requests.in_flight_peak.max(self.in_flight());
        self.start_prefill(now);
        self.check_invariants();
        true
    }

    /// Aborts a request after its client left, and frees its blocks and its place in the batch at
    /// once. `false` if unknown.
    pub fn abort(&mut self, now: NanosSinceStart, request: RequestId) -> bool {
        let found = self.remove(request);
        if found {
            self.totals.requests.aborted += 1;
            self.start_prefill(now);
        }
        self.check_invariants();
        found
    }

    /// Frees the blocks that a finished prefill holds. `false` if it holds none.
    pub fn let_go(&mut self, now: NanosSinceStart, request: RequestId) -> bool {
        let Some(sequence) = self.held.remove(&request) else { return false };
        self.cache.release(sequence);
        self.start_prefill(now);
        self.check_invariants();
        true
    }

    /// Advances the rank to `now`; pushes every token that became due, in order of time.
    pub fn advance(&mut self, now: NanosSinceStart, steps: &mut Vec<TokenStep>) {
        while let Some(at) = self.next_wake().filter(|at| *at <= now) {
            if self.prefill.as_ref().is_some_and(|prefill| prefill.ends_at == at) {
                self.finish_prefill(at, steps);
            } else {
                self.decode_one(steps);
            }
            self.start_prefill(at);
        }
        self.check_invariants();
    }

    /// Time of the next token; `None` when idle.
    #[must_use]
    pub fn next_wake(&self) -> Option<NanosSinceStart> {
        let prefill = self.prefill.as_ref().map(|prefill| prefill.ends_at);
        let decode = self.decoding.first_key_value().map(|((due, _), _)| *due);
        match (prefill, decode) {
            (Some(prefill), Some(decode)) => Some(prefill.min(decode)),
            (one, other) => one.or(other),
        }
    }

    /// Requests that run or wait.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.running()
    }

    /// Leading full blocks of a prompt that the cache holds.
    #[must_use]
    pub fn held_blocks(&self, prompt: &[u32], salt: &str) -> usize {
        self.cache.held_blocks(prompt, salt)
    }

    /// Empties the cache; `false` while requests hold blocks.
    pub fn clear_cache(&mut self) -> bool {
        self.cache.clear()
    }

    /// Cache events since the last call, as batches in which removals come before stores.
    pub fn take_batches(&mut self) -> Vec<Vec<CacheEvent>> {
        let mut batches: Vec<Vec<CacheEvent>> = Vec::new();
        let mut stored = true;
        for event in self.cache.take_events() {
            let store = matches!(event, CacheEvent::Stored { .. });
            if stored && !store || batches.is_empty() {
                batches.push(Vec::new());
            }
            stored = store;
            if let Some(batch) = batches.last_mut() {
                batch.push(event);
            }
        }
        self.totals.kv_batches += u64::try_from(batches.len()).unwrap_or(0);
        batches
    }

    /// Gauges and counters now.
    #[must_use]
    pub fn stats(&self) -> RankStats {
        RankStats {
            requests: RequestCounts {
                running: self.running(),
                waiting: self.waiting.len(),
                held: self.held.len(),
                ..self.totals.requests
            },
            used_blocks: self.cache.used_blocks(),
            capacity_blocks: self.cache.capacity_blocks(),
            ..self.totals
        }
    }

    fn running(&self) -> usize {
        self.decoding.len() + usize::from(self.prefill.is_some())
    }

    fn start_prefill(&mut self, now: NanosSinceStart) {
        if self.prefill.is_some() || self.running() >= self.pace.concurrency_max {
            return;
        }
        let Some(WaitingWork { request, came_at, work }) = self.waiting.pop_front() else {
            return;
        };
        let Work { prompt, output, salt, part } = work;
        let prompt_tokens = prompt.len();
        // The last token of the answer is never computed, so it needs no slot.
        let tokens_max = prompt_tokens + output.len().saturating_sub(1);
        match self.cache.begin(prompt, salt, tokens_max) {
            Ok((sequence, _)) if part == LegPart::Decode => {
                self.totals.tokens.external += prompt_tokens as u64;
                let running =
                    RunningRequest { sequence, output, emitted: 0, cached_tokens: 0, part };
                self.prefill = Some(Prefill {
                    request,
                    came_at,
                    began_at: now,
                    ends_at: now,
                    prompt_tokens: 0,
                    running,
                });
            }
            Ok((sequence, cached_tokens)) => {
                let computed_tokens = prompt_tokens.saturating_sub(cached_tokens);
                let ends_at = now.plus(self.prefill_time(computed_tokens));
                self.totals.tokens.queried += prompt_tokens as u64;
                self.totals.tokens.hit += cached_tokens as u64;
                let running = RunningRequest { sequence, output, emitted: 0, cached_tokens, part };
                self.prefill = Some(Prefill {
                    request,
                    came_at,
                    began_at: now,
                    ends_at,
                    prompt_tokens,
                    running,
                });
            }
            Err((prompt, salt)) => {
                let work = Work { prompt, output, salt, part };
                self.waiting.push_front(WaitingWork { request, came_at, work });
            }
        }
    }

    fn prefill_time(&self, tokens: usize) -> Duration {
        let seconds = tokens as f64 / self.pace.prefill_tokens_per_s;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    fn finish_prefill(&mut self, at: NanosSinceStart, steps: &mut Vec<TokenStep>) {
        let Some(prefill) = self.prefill.take() else { return };
        let Prefill { request, came_at, began_at, prompt_tokens, mut running, .. } = prefill;
        self.totals.tokens.prompt += prompt_tokens as u64;
        let times = &mut self.totals.times;
        times.prefills += 1;
        times.prefill_ns += at.since(began_at);
        times.queued_ns += began_at.since(came_at);
        self.cache.prefilled(&mut running.sequence);
        self.emit(at, request, running, steps);
    }

    fn decode_one(&mut self, steps: &mut Vec<TokenStep>) {
        let Some(((at, request), mut running)) = self.decoding.pop_first() else { return };
        self.due.remove(&request);
        self.totals.times.later_tokens += 1;
        let between_ns = u64::try_from(self.pace.inter_token.as_nanos()).unwrap_or(u64::MAX);
        self.totals.times.between_tokens_ns += between_ns;
        // The token of the step before is computed now, which is when its slot fills.
        if let Some(previous) = running.output.get(running.emitted.saturating_sub(1)) {
            self.cache.append(&mut running.sequence, *previous);
        }
        self.emit(at, request, running, steps);
    }

    fn emit(
        &mut self,
        at: NanosSinceStart,
        request: RequestId,
        mut running: RunningRequest,
        steps: &mut Vec<TokenStep>,
    ) {
        let token_id = running.output.get(running.emitted).copied().unwrap_or_default();
        running.emitted += 1;
        let last = running.emitted >= running.output.len();
        steps.push(TokenStep { request, token_id, cached_tokens: running.cached_tokens, last });
        self.totals.tokens.generated += 1;
        if last {
            self.totals.requests.finished += 1;
            match running.part {
                LegPart::Prefill => drop(self.held.insert(request, running.sequence)),
                LegPart::Whole | LegPart::Decode => self.cache.release(running.sequence),
            }
            return;
        }
        // From the time at which the token was due, not from now, so that a late wake-up does not
        // slow the rank down.
        let due = at.plus(self.pace.inter_token);
        self.due.insert(request, due);
        self.decoding.insert((due, request), running);
    }

    fn remove(&mut self, request: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.request == request) {
            return self.waiting.remove(at).is_some();
        }
        if self.prefill.as_ref().is_some_and(|prefill| prefill.request == request) {
            if let Some(prefill) = self.prefill.take() {
                self.cache.release(prefill.running.sequence);
            }
            return true;
        }
        let Some(due) = self.due.remove(&request) else { return false };
        let Some(running) = self.decoding.remove(&(due, request)) else { return false };
        self.cache.release(running.sequence);
        true
    }

    fn check_invariants(&self) {
        debug_assert!(self.running() <= self.pace.concurrency_max);
        debug_assert_eq!(self.due.len(), self.decoding.len());
        let holds = self.running() > 0 || !self.held.is_empty();
        debug_assert!(holds || self.cache.used_blocks() == 0);
        debug_assert!(holds || self.waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rank(concurrency_max: usize, capacity_blocks: u32) -> RankSchedule {
        let pace = EnginePace {
            concurrency_max,
            queued_max: None,
            prefill_tokens_per_s: 1_000.0,
            inter_token: Duration::from_millis(10),
        };
        RankSchedule::new(pace, PrefixCache::new(capacity_blocks, 4))
    }

    fn work(prompt_tokens: u32, output_tokens: u32) -> Work {
        Work {
            prompt: (1..=prompt_tokens).collect(),
            output: (1_001..=1_000 + output_tokens).collect(),
            salt: String::new(),
            part: LegPart::Whole,
        }
    }

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * MS)
    }

    #[test]
    fn one_request_in_time() {
        let mut rank = rank(4, 64);
        let mut steps = Vec::new();
        rank.submit(at(5), RequestId(1), work(20, 3), &mut steps);
        // 20 tokens at 1 token/ms.
        assert_eq!(rank.next_wake(), Some(at(25)));
        rank.advance(at(24), &mut steps);
        assert!(steps.is_empty());
        rank.advance(at(25), &mut steps);
        assert_eq!(steps.len(), 1);
        assert_eq!(rank.next_wake(), Some(at(35)));
        // A wake-up that is far too late still yields all tokens.
        rank.advance(at(1_000), &mut steps);
        let tokens: Vec<_> = steps.iter().map(|step| (step.token_id, step.last)).collect();
        assert_eq!(tokens, [(1_001, false), (1_002, false), (1_003, true)]);
        assert_eq!((rank.in_flight(), rank.next_wake()), (0, None));
    }

    #[test]
    fn prefills_are_serial_and_the_second_finds_what_the_first_stored() {
        let mut rank = rank(4, 64);
        let mut steps = Vec::new();
        rank.submit(at(0), RequestId(1), work(20, 1), &mut steps);
        rank.submit(at(0), RequestId(2), work(20, 1), &mut steps);
        assert_eq!((rank.stats().requests.running, rank.stats().requests.waiting), (1, 1));
        rank.advance(at(20), &mut steps);
        // 16 of 20 tokens cached: 4 ms left to compute.
        assert_eq!(rank.next_wake(), Some(at(24)));
        rank.advance(at(24), &mut steps);
        let cached: Vec<_> = steps.iter().map(|step| step.cached_tokens).collect();
        assert_eq!(cached, [0, 16]);
        assert_eq!(rank.stats().requests.in_flight_peak, 2);
        let tokens = rank.stats().tokens;
        assert_eq!((tokens.prompt, tokens.queried, tokens.hit), (40, 40, 16));
        let times = rank.stats().times;
        assert_eq!((times.prefills, times.prefill_ns, times.queued_ns), (2, 24 * MS, 20 * MS));
        assert_eq!((times.later_tokens, times.between_tokens_ns), (0, 0));
    }

    #[test]
    fn concurrency_is_a_limit() {
        let mut rank = rank(2, 64);
        let mut steps = Vec::new();
        for id in 0..5 {
            rank.submit(at(0), RequestId(id), work(4, 100), &mut steps);
        }
        rank.advance(at(50), &mut steps);
        assert_eq!((rank.stats().requests.running, rank.stats().requests.waiting), (2, 3));
        assert!(rank.abort(at(50), RequestId(0)));
        assert_eq!((rank.stats().requests.running, rank.stats().requests.waiting), (2, 2));
        assert!(!rank.abort(at(50), RequestId(0)));
    }

    #[test]
    fn what_waits_is_a_limit_too_and_refusals_leave_no_trace() {
        let mut rank = rank(2, 64);
        rank.pace.queued_max = Some(1);
        let mut steps = Vec::new();
        let mut taken =
            |rank: &mut RankSchedule, id| rank.submit(at(0), RequestId(id), work(4, 3), &mut steps);
        let all: Vec<_> = (0..5).map(|id| taken(&mut rank, id)).collect();
        // Two run (one of them is still to be prefilled), one waits.
        assert_eq!(all, [true, true, true, false, false]);
        assert!(!rank.abort(at(0), RequestId(4)), "a refused request is not known");
        assert!(rank.abort(at(0), RequestId(2)));
        assert!(taken(&mut rank, 5), "its place in the queue is free again");
        rank.advance(at(10_000), &mut steps);
        let stats = rank.stats();
        assert_eq!((stats.requests.received, stats.requests.refused), (6, 2));
        assert_eq!((stats.requests.finished, stats.requests.aborted), (3, 1));
        assert_eq!((stats.requests.in_flight_peak, rank.in_flight()), (3, 0));
    }

    #[test]
    fn abort_frees_blocks_in_every_phase() {
        let mut rank = rank(2, 64);
        let mut steps = Vec::new();
        rank.submit(at(0), RequestId(1), work(8, 50), &mut steps);
        rank.advance(at(30), &mut steps);
        rank.submit(at(30), RequestId(2), work(40, 50), &mut steps);
        rank.submit(at(30), RequestId(3), work(8, 50), &mut steps);
        for id in [3, 2, 1] {
            assert!(rank.abort(at(31), RequestId(id)));
        }
        assert_eq!(rank.stats().used_blocks, 0);
        assert_eq!(rank.next_wake(), None);
        assert_eq!(rank.stats().requests.aborted, 3);
    }

    #[test]
    fn a_prefill_holds_its_blocks_until_they_are_let_go() {
        let mut rank = rank(2, 8);
        let mut steps = Vec::new();
        let half = |part, prompt| Work { part, ..work(prompt, 1) };
        rank.submit(at(0), RequestId(1), half(LegPart::Prefill, 20), &mut steps);
        let other = Work { salt: "other".into(), ..half(LegPart::Prefill, 29) };
        rank.submit(at(0), RequestId(2), other, &mut steps);
        rank.advance(at(100), &mut steps);
        assert_eq!(steps.len(), 1, "no blocks for the second");
        assert_eq!((rank.stats().requests.held, rank.stats().used_blocks), (1, 5));
        assert_eq!((rank.in_flight(), rank.next_wake()), (1, None));
        assert!(rank.let_go(at(100), RequestId(1)));
        assert!(!rank.let_go(at(100), RequestId(1)));
        rank.advance(at(129), &mut steps);
        assert_eq!(steps.last().map(|step| (step.request, step.last)), Some((RequestId(2), true)));
        assert!(rank.let_go(at(130), RequestId(2)));
        assert_eq!((rank.stats().requests.held, rank.stats().used_blocks), (0, 0));
    }

    #[test]
    fn a_decode_computes_nothing_of_its_prompt_and_its_blocks_become_cached() {
        let mut rank = rank(2, 64);
        let mut steps = Vec::new();
        let decode = Work { part: LegPart::Decode, ..work(20, 3) };
        rank.submit(at(5), RequestId(1), decode, &mut steps);
        rank.advance(at(5), &mut steps);
        assert_eq!(steps.len(), 1, "the first token came with the KV");
        rank.advance(at(25), &mut steps);
        assert_eq!(steps.len(), 3);
        assert_eq!((rank.stats().tokens.queried, rank.stats().tokens.external), (0, 20));
        assert_eq!(rank.held_blocks(&work(20, 1).prompt, ""), 5);
    }

    #[test]
    fn a_request_waits_until_its_blocks_are_free() {
        let mut rank = rank(8, 5);
        let mut steps = Vec::new();
        rank.submit(at(0), RequestId(1), work(8, 9), &mut steps);
        rank.submit(at(0), RequestId(2), work(8, 9), &mut steps);
        rank.advance(at(20), &mut steps);
        assert_eq!((rank.stats().requests.running, rank.stats().requests.waiting), (1, 1));
        rank.advance(at(10_000), &mut steps);
        assert_eq!(rank.stats().requests.finished, 2);
    }

    #[test]
    fn generated_tokens_become_cached_blocks_one_late() {
        let mut rank = rank(8, 64);
        let mut steps = Vec::new();
        // 6 prompt + 11 generated, of which 10 are computed: 16 tokens, 4 blocks.
        rank.submit(at(0), RequestId(1), work(6, 11), &mut steps);
        rank.advance(at(10_000), &mut steps);
        let stored: usize = rank
            .take_batches()
            .concat()
            .iter()
            .map(|event| match event {
                CacheEvent::Stored { hashes, .. } => hashes.len(),
                _ => 0,
            })
            .sum();
        assert_eq!(stored, 4);
    }

    #[test]
    fn removals_come_before_stores_in_every_batch() {
        let mut rank = rank(8, 8);
        let mut steps = Vec::new();
        for id in 0..20_u32 {
            let prompt = (id * 100..id * 100 + 13).collect();
            let salt = String::new();
            let part = LegPart::Whole;
            let work = Work { prompt, output: vec![7; 9], salt, part };
            rank.submit(at(u64::from(id) * 5), RequestId(id.into()), work, &mut steps);
        }
        rank.advance(at(100_000), &mut steps);
        let batches = rank.take_batches();
        assert!(batches.len() > 10);
        for batch in batches {
            let first_store =
                batch.iter().position(|event| matches!(event, CacheEvent::Stored { .. }));
            let tail = batch.get(first_store.unwrap_or(batch.len())..).expect("in range");
            assert!(tail.iter().all(|event| matches!(event, CacheEvent::Stored { .. })));
        }
    }
}

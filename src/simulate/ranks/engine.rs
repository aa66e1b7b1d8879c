//! A simulated rank. Each step computes a token of each decoding sequence, and spends the rest of
//! its token budget on prompts, in order of arrival or of the routers' priorities. Steps that only
//! decode are simulated in batches. When no block is free for a next token, the rank preempts as
//! vLLM does: the last sequence by arrival, or by priority, loses its blocks and is computed again.

use crate::ranks::cache_blocks::BlockSlot;
use crate::ranks::kv_cache::{CacheChange, KvCache};
use crate::ranks::speed::{ModelSpeed, StepWork};
use crate::traces::trace::{Trace, TraceRequest};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Progress of a request that the router sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineNews {
    /// The first token was generated.
    First(u32),
    /// The last token was generated.
    Ended(u32),
}

/// Part of a request that a rank serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EngineJob {
    #[default]
    Whole,
    /// The prefill leg: another rank decodes.
    Prompt,
    /// The decode leg. The KV of the prompt comes over the network, except the last token, which is
    /// computed again, as in vLLM.
    Answer,
}

/// A request that arrives at a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineRequest {
    pub(crate) id: u32,
    /// Priority in an engine with `priority_scheduling`; the lowest is served first.
    pub(crate) priority: i64,
    pub(crate) job: EngineJob,
}

/// Blocks that a sequence uses.
#[derive(Clone, Debug, Default)]
struct PathBlocks {
    /// Leading blocks of its path that other sequences can share.
    committed: Vec<BlockSlot>,
    loose: usize,
}

/// A request in the engine.
#[derive(Clone, Debug)]
struct ModelSequence {
    arrival: EngineRequest,
    /// Tokens with KV on the device.
    computed: u32,
    /// Tokens to compute before the next token: the prompt, and the tokens generated before a
    /// preemption.
    target: u32,
    /// Tokens generated up to step `since`.
    made: u32,
    since: u64,
    held: PathBlocks,
    /// Tokens of the sequence in the current step.
    chunk: u32,
}

/// Sequences with KV on its way from the host, the pool or another rank. Transfers are sequential.
#[derive(Clone, Debug, Default)]
struct HostLoads {
    /// Arrival time of the sequence's blocks, in order.
    loading: VecDeque<(u64, ModelSequence)>,
    free_at_ns: u64,
}

/// Blocks of a path behind the blocks on the device, by the tier to load from.
#[derive(Clone, Copy, Debug)]
struct BlocksToLoad {
    host: usize,
    pool: usize,
}

/// Steps under way, all of the same length.
#[derive(Clone, Copy, Debug)]
struct Steps {
    began_ns: u64,
    each_ns: u64,
    count: u64,
}

/// The sequences that decode.
#[derive(Clone, Debug, Default)]
struct Decoding {
    places: Vec<Option<ModelSequence>>,
    free: Vec<usize>,
    /// By step: the place of a sequence that ends at the step, or needs a block.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    steps: u64,
    context_tokens: u64,
    count: u32,
}

/// Totals of an engine over a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineTotals {
    /// Prompt tokens that were computed.
    pub(crate) computed_tokens: u64,
    /// Prompt tokens found in the cache at the start of their requests.
    pub(crate) cached_tokens: u64,
    /// Cached tokens that were loaded from the host.
    pub(crate) loaded_tokens: u64,
    /// Cached tokens that were loaded from the pool.
    pub(crate) pooled_tokens: u64,
    /// Time in which steps ran.
    pub(crate) busy_ns: u64,
    pub(crate) preempted: u64,
    /// First tokens of all requests.
    pub(crate) first_tokens: u64,
}

/// Requests of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineRequests {
    /// Requests in the batch.
    pub(crate) running: u32,
    /// Requests that wait for the batch.
    pub(crate) waiting: u32,
    /// Waiting requests with KV on its way to the device.
    pub(crate) deferred: u32,
}

/// The steps under way, and the requests at the begin and the end of the last steps.
#[derive(Clone, Debug, Default)]
struct StepRecord {
    under_way: Option<Steps>,
    began: EngineRequests,
    ended: EngineRequests,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelEngine {
    rules: ModelSpeed,
    cache: KvCache,
    waiting: VecDeque<ModelSequence>,
    loads: HostLoads,
    prefilling: Vec<ModelSequence>,
    decoding: Decoding,
    steps: StepRecord,
    totals: EngineTotals,
}

impl ModelEngine {
    pub(crate) fn new(rules: ModelSpeed, cache: KvCache) -> Self {
        Self {
            rules,
            cache,
            waiting: VecDeque::new(),
            loads: HostLoads::default(),
            prefilling: Vec::new(),
            decoding: Decoding::default(),
            steps: StepRecord::default(),
            totals: EngineTotals::default(),
        }
    }

    pub(crate) const fn totals(&self) -> &EngineTotals {
        &self.totals
    }

    /// The load as vLLM reports it at the end of a step: without the requests that ended with the
    /// step, and without requests that arrived during it.
    pub(crate) const fn reported(&self) -> EngineRequests {
        self.steps.ended
    }

    pub(crate) fn load(&self) -> EngineRequests {
        let deferred = self.loads.loading.len() as u32;
        let waiting = self.waiting.len() as u32 + deferred;
        EngineRequests { running: self.running(), waiting, deferred }
    }

    /// Requests in the batch.
    fn running(&self) -> u32 {
        self.decoding.count + self.prefilling.len() as u32
    }

    /// Share of the blocks that are in use, in thousandths.
    pub(crate) fn used_permille(&self) -> u16 {
        (self.cache.used() * 1_000 / self.cache.capacity().max(1)).min(1_000) as u16
    }

    /// All blocks in the cache that other requests can share.
    pub(crate) fn held_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.cache.held_blocks()
    }

    pub(crate) fn take_changes(&mut self) -> Vec<CacheChange> {
        self.cache.take_changes()
    }

    /// When the steps under way end; without steps, when the next load ends.
    pub(crate) fn ends_at(&self) -> Option<u64> {
        let steps = self.steps.under_way.map(|steps| steps.began_ns + steps.each_ns * steps.count);
        steps.or_else(|| self.loads.next_ns())
    }

    /// Adds a request. True if [`Self::ends_at`] has changed.
    pub(crate) fn arrive(&mut self, arrival: EngineRequest, trace: &Trace, now: u64) -> bool {
        let tokens = trace.request(arrival.id).input_tokens;
        let priority = if self.rules.priority_scheduling { arrival.priority } else { 0 };
        let place = self.waiting.partition_point(|before| before.arrival.priority <= priority);
        let arrival = EngineRequest { priority, ..arrival };
        self.waiting.insert(place, ModelSequence::new(arrival, tokens));
        let before = self.ends_at();
        let Some(steps) = &mut self.steps.under_way else {
            self.begin(trace, now);
            return self.ends_at() != before;
        };
        // A batch of decode steps is cut after the step under way.
        let done = ((now - steps.began_ns) / steps.each_ns + 1).min(steps.count);
        std::mem::replace(&mut steps.count, done) != done
    }

    /// Ends the steps under way, and begins the next.
    pub(crate) fn end_steps(&mut self, trace: &Trace, now: u64, news: &mut Vec<EngineNews>) {
        if let Some(steps) = self.steps.under_way.take() {
            self.totals.busy_ns += steps.each_ns * steps.count;
            self.decoding.steps += steps.count;
            self.decoding.context_tokens += u64::from(self.decoding.count) * steps.count;
            self.end_decodes(trace, news);
            self.end_chunks(trace, news);
            self.steps.ended = EngineRequests { running: self.running(), ..self.steps.began };
        }
        self.begin(trace, now);
    }

    fn end_decodes(&mut self, trace: &Trace, news: &mut Vec<EngineNews>) {
        while let Some(&Reverse((due, place))) = self.decoding.due.peek() {
            if due > self.decoding.steps {
                break;
            }
            self.decoding.due.pop();
            let steps = self.decoding.steps;
            let Some(sequence) = &mut self.decoding.places[place] else { continue };
            // The entry is stale: the sequence was preempted, and another sequence has its place.
            if sequence.due(trace) != due {
                continue;
            }
            sequence.made += (steps - sequence.since) as u32;
            sequence.since = steps;
            let request = trace.request(sequence.arrival.id);
            sequence.computed = request.input_tokens + sequence.made - 1;
            sequence.commit(&mut self.cache, request, trace.block_tokens);
            if sequence.made >= request.output_tokens {
                news.push(EngineNews::Ended(sequence.arrival.id));
                self.leave(place, trace);
            } else if self.cache.admit(&[], 1) {
                sequence.held.loose += 1;
                let next = sequence.due(trace);
                self.decoding.due.push(Reverse((next, place)));
            } else {
                self.preempt(place, trace);
            }
        }
    }

    /// Preempts the last sequence in order until a block is free for the sequence at `place`, or
    /// that sequence is preempted itself.
    fn preempt(&mut self, place: usize, trace: &Trace) {
        let last = (0..self.decoding.places.len())
            .filter(|&at| at != place)
            .filter_map(|at| Some((self.decoding.places[at].as_ref()?.order(), at)))
            .max();
        let own = self.decoding.places[place].as_ref().map_or((0, 0), ModelSequence::order);
        let victim = last.filter(|(order, _)| *order > own).map_or(place, |(_, at)| at);
        let steps = self.decoding.steps;
        let Some(sequence) = &mut self.decoding.places[victim] else { return };
        sequence.made += (steps - sequence.since) as u32;
        sequence.since = steps;
        let Some(sequence) = self.leave(victim, trace) else { return };
        self.totals.preempted += 1;
        let tokens = trace.request(sequence.arrival.id).input_tokens;
        let ModelSequence { arrival, made, .. } = sequence;
        // The KV that a prefill rank sent is lost.
        let arrival = EngineRequest { job: EngineJob::Whole, ..arrival };
        let again = ModelSequence { made, ..ModelSequence::new(arrival, tokens + made) };
        let front =
            self.waiting.partition_point(|before| before.arrival.priority < arrival.priority);
        self.waiting.insert(front, again);
        let Some(waits) = self.decoding.places[place].as_mut().filter(|_| victim != place) else {
            return;
        };
        if self.cache.admit(&[], 1) {
            waits.held.loose += 1;
            let next = waits.due(trace);
            self.decoding.due.push(Reverse((next, place)));
        } else {
            self.preempt(place, trace);
        }
    }

    fn leave(&mut self, place: usize, trace: &Trace) -> Option<ModelSequence> {
        let sequence = self.decoding.places[place].take()?;
        sequence.release(&mut self.cache);
        let request = trace.request(sequence.arrival.id);
        self.decoding.context_tokens -= u64::from(request.input_tokens + sequence.made);
        self.decoding.free.push(place);
        self.decoding.count -= 1;
        Some(sequence)
    }

    fn end_chunks(&mut self, trace: &Trace, news: &mut Vec<EngineNews>) {
        let Self { cache, prefilling, decoding, totals, .. } = self;
        prefilling.retain_mut(|sequence| {
            let request = trace.request(sequence.arrival.id);
            sequence.computed += sequence.chunk;
            totals.computed_tokens += u64::from(sequence.chunk);
            sequence.chunk = 0;
            sequence.commit(cache, request, trace.block_tokens);
            if sequence.computed < sequence.target {
                return true;
            }
            if sequence.made == 0 {
                totals.first_tokens += 1;
                news.push(EngineNews::First(sequence.arrival.id));
            }
            sequence.made += 1;
            if sequence.made >= request.output_tokens || sequence.arrival.job == EngineJob::Prompt {
                news.push(EngineNews::Ended(sequence.arrival.id));
                sequence.release(cache);
            } else {
                let nothing = ModelSequence::new(sequence.arrival, 0);
                decoding.add(std::mem::replace(sequence, nothing), trace);
            }
            false
        });
    }

    /// The next sequence with its loads complete.
    fn loaded(&mut self, trace: &Trace, now: u64) -> Option<ModelSequence> {
        self.loads.next_ns().filter(|&at| at <= now)?;
        let (_, mut sequence) = self.loads.loading.pop_front()?;
        let request = trace.request(sequence.arrival.id);
        sequence.commit(&mut self.cache, request, trace.block_tokens);
        Some(sequence)
    }

    /// The next waiting sequence that gets its blocks. A sequence with KV elsewhere starts its
    /// load, and the sequence behind it is tried.
    fn started(&mut self, trace: &Trace, now: u64) -> Option<ModelSequence> {
        loop {
            let elsewhere = self.waiting.front_mut()?.start(&mut self.cache, trace)?;
            let mut next = self.waiting.pop_front()?;
            let (loaded, load_ns) = if next.arrival.job == EngineJob::Answer {
                let sent = next.target - 1 - next.computed;
                (sent, self.rules.send_ns(sent))
            } else {
                let [on_host, in_pool] = [elsewhere.host, elsewhere.pool]
                    .map(|blocks| blocks as u32 * trace.block_tokens);
                if next.made == 0 {
                    self.totals.cached_tokens += u64::from(next.computed + on_host + in_pool);
                    self.totals.loaded_tokens += u64::from(on_host);
                    self.totals.pooled_tokens += u64::from(in_pool);
                }
                let load_ns = self.rules.load_ns(on_host) + self.rules.send_ns(in_pool);
                (on_host + in_pool, load_ns)
            };
            next.computed += loaded;
            if loaded == 0 {
                return Some(next);
            }
            let from = self.loads.free_at_ns.max(now);
            self.loads.free_at_ns = from + load_ns;
            self.loads.loading.push_back((self.loads.free_at_ns, next));
        }
    }

    /// Begins the next steps, if there is work.
    fn begin(&mut self, trace: &Trace, now: u64) {
        let decoding = u64::from(self.decoding.count);
        let context_tokens = self.decoding.context_tokens;
        let mut work = StepWork { decoding, context_tokens, ..StepWork::default() };
        let mut left = self.rules.step_tokens_max.saturating_sub(self.decoding.count);
        for sequence in &mut self.prefilling {
            sequence.take_chunk(&mut left, &mut work);
        }
        while left > 0 && self.running() < self.rules.sequences_max {
            let Some(mut next) = self.loaded(trace, now).or_else(|| self.started(trace, now))
            else {
                break;
            };
            next.take_chunk(&mut left, &mut work);
            self.prefilling.push(next);
        }
        let is_idle = work.prefill_tokens == 0 && decoding == 0;
        let count = match self.decoding.due.peek() {
            Some(&Reverse((due, _))) if work.prefill_tokens == 0 => due - self.decoding.steps,
            _ => 1,
        };
        // KV grows by a token a step and sequence, so the middle step is the mean of the steps.
        work.context_tokens += decoding * count.saturating_sub(1) / 2;
        let each_ns = self.rules.step_ns(&work);
        let to_load = self.loads.next_ns().map(|at| at.saturating_sub(now).div_ceil(each_ns));
        let count = count.min(to_load.unwrap_or(u64::MAX));
        self.steps.under_way =
            (!is_idle).then_some(Steps { began_ns: now, each_ns, count: count.max(1) });
        self.steps.began = self.load();
    }
}

impl HostLoads {
    fn next_ns(&self) -> Option<u64> {
        self.loading.front().map(|(at, _)| *at)
    }
}

impl ModelSequence {
    fn new(arrival: EngineRequest, target: u32) -> Self {
        let held = PathBlocks::default();
        Self { arrival, computed: 0, target, made: 0, since: 0, held, chunk: 0 }
    }

    /// Scheduling order: the lower is served first.
    const fn order(&self) -> (i64, u32) {
        (self.arrival.priority, self.arrival.id)
    }

    /// Allocates the blocks of the sequence; `None` if too few are free. Returns the blocks to
    /// load.
    fn start(&mut self, cache: &mut KvCache, trace: &Trace) -> Option<BlocksToLoad> {
        let request = trace.request(self.arrival.id);
        let block_tokens = trace.block_tokens;
        // The last token is always computed.
        let most = ((self.target - 1) / block_tokens) as usize;
        let path = request.path(block_tokens).take(most);
        let all = (self.target + 1).div_ceil(block_tokens) as usize;
        let committed = cache.prefix(path.clone(), all);
        let host = cache.host_prefix(path.clone().skip(committed.len()));
        let pool = cache.pool_prefix(path.skip(committed.len() + host));
        let loose = all - committed.len();
        if !cache.admit(&committed, loose) {
            return None;
        }
        self.computed = committed.len() as u32 * block_tokens;
        self.held = PathBlocks { committed, loose };
        Some(BlocksToLoad { host, pool })
    }

    fn take_chunk(&mut self, left: &mut u32, work: &mut StepWork) {
        self.chunk = (self.target - self.computed).min(*left);
        *left -= self.chunk;
        work.add_chunk(self.computed, self.chunk);
    }

    /// Makes full blocks shareable, as far as their path is known.
    fn commit(&mut self, cache: &mut KvCache, request: &TraceRequest, block_tokens: u32) {
        let full = (self.computed / block_tokens) as usize;
        let PathBlocks { committed, loose } = &mut self.held;
        let more = full.saturating_sub(committed.len()).min(*loose);
        if more == 0 {
            return;
        }
        let before = committed.len();
        for block in request.path(block_tokens).skip(before).take(more) {
            committed.push(cache.commit(block));
        }
        *loose -= committed.len() - before;
    }

    /// The step at which the sequence ends, or needs another block.
    fn due(&self, trace: &Trace) -> u64 {
        let request = trace.request(self.arrival.id);
        let held = (self.held.committed.len() + self.held.loose) as u32 * trace.block_tokens;
        let to_end = request.output_tokens.saturating_sub(self.made);
        let to_block = (held + 1).saturating_sub(request.input_tokens + self.made);
        self.since + u64::from(to_end.min(to_block).max(1))
    }

    fn release(&self, cache: &mut KvCache) {
        cache.release(&self.held.committed, self.held.loose);
    }
}

impl Decoding {
    fn add(&mut self, mut sequence: ModelSequence, trace: &Trace) {
        sequence.since = self.steps;
        let request = trace.request(sequence.arrival.id);
        self.context_tokens += u64::from(request.input_tokens + sequence.made);
        self.count += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.due.push(Reverse((sequence.due(trace), place)));
        self.places[place] = Some(sequence);
    }
}

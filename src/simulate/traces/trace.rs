//! Requests of a trace and their times. Prompts are paths of blocks; equal prefixes are equal
//! blocks.

use ahash::AHashMap;
use forebay_board::account::FirstTokenKind;

/// A block that no prompt contains: generated, and never reused.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnStart {
    /// At a fixed time of the trace, independent of other requests.
    At {
        /// Since the start of the trace.
        ns: u64,
    },
    /// After the end of another request's answer.
    After {
        /// Index of the other request, which comes earlier in the trace.
        request: u32,
        /// Think time of a person, or the time of a tool.
        think_ns: u64,
    },
}

/// A request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When the request is sent.
    pub turn: TurnStart,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub output_tokens: u32,
    /// Blocks of the prompt; the last may be filled in part.
    pub blocks: Vec<u32>,
    /// Blocks that the answer fills, behind the full blocks of the prompt.
    pub made: Vec<u32>,
    /// Conversation of the request.
    pub session: u32,
}

/// Multiplicative hash: spreads consecutive numbers (Knuth).
const CHANCE_FACTOR: u32 = 2_654_435_761;

/// Requests in the order in which they were recorded.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Tokens of each block.
    pub block_tokens: u32,
    /// All requests. A request that follows another comes after it.
    pub requests: Vec<TraceRequest>,
    /// Percent of requests that do not stream: a router does not see their first tokens.
    pub whole_percent: u32,
    /// By block: the block before it on its path, or [`NO_BLOCK`].
    pub(crate) parents: Vec<u32>,
    /// Requests that left the front of the list, see [`Trace::forget`].
    pub(crate) forgotten: u32,
}

/// Assigns numbers to blocks: a number for each path.
#[derive(Debug, Default)]
pub(crate) struct BlockNames {
    names: AHashMap<(u32, u64), u32>,
    parents: Vec<u32>,
}

impl BlockNames {
    /// The path of these hashes, from a root on.
    pub(crate) fn path(&mut self, hashes: impl Iterator<Item = u64>) -> Vec<u32> {
        let mut parent = NO_BLOCK;
        hashes
            .map(|hash| {
                parent = self.child(parent, hash);
                parent
            })
            .collect()
    }

    fn child(&mut self, parent: u32, hash: u64) -> u32 {
        let Self { names, parents } = self;
        *names.entry((parent, hash)).or_insert_with(|| {
            parents.push(parent);
            (parents.len() - 1) as u32
        })
    }
}

impl TraceRequest {
    /// Blocks of the prompt that are full.
    pub(crate) fn full_blocks(&self, block_tokens: u32) -> usize {
        ((self.input_tokens / block_tokens) as usize).min(self.blocks.len())
    }

    /// The full blocks of prompt and answer, as far as they are known.
    pub(crate) fn path(&self, block_tokens: u32) -> impl Iterator<Item = u32> + Clone + '_ {
        let known = self.made.iter().copied().take_while(|&block| block != NO_BLOCK);
        self.blocks.iter().copied().take(self.full_blocks(block_tokens)).chain(known)
    }
}

impl Trace {
    /// A trace that grows while it runs.
    pub(crate) fn growing(block_tokens: u32) -> Self {
        Self { block_tokens, ..Self::default() }
    }

    /// A request by its id: its position among all requests.
    pub(crate) fn request(&self, id: u32) -> &TraceRequest {
        &self.requests[self.place(id)]
    }

    /// Position of a request in lists without the forgotten requests; no list reaches as far for a
    /// forgotten request.
    pub(crate) const fn place(&self, id: u32) -> usize {
        id.wrapping_sub(self.forgotten) as usize
    }

    /// Removes requests from the front. The ids of the other requests stay.
    pub(crate) fn forget(&mut self, count: usize) {
        self.requests.drain(..count);
        self.forgotten += count as u32;
    }

    /// The mean length of the prompts, at least 1 token.
    pub(crate) fn mean_input_tokens(&self) -> u32 {
        let tokens: u64 = self.requests.iter().map(|request| u64::from(request.input_tokens)).sum();
        tokens.checked_div(self.requests.len() as u64).map_or(1, |mean| mean.max(1) as u32)
    }

    /// A trace of these requests. Adds the blocks of answers, and sessions where a request extends
    /// another request.
    pub(crate) fn new(block_tokens: u32, requests: Vec<TraceRequest>, names: BlockNames) -> Self {
        let mut trace = Self { block_tokens, requests, parents: names.parents, ..Self::default() };
        trace.continue_sessions();
        trace
    }

    /// A request continues an earlier request if its prompt begins with the full blocks of the
    /// earlier prompt, and the earlier request was the first with the last of these blocks. The
    /// next blocks then contain the earlier answer.
    fn continue_sessions(&mut self) {
        let block_tokens = self.block_tokens;
        // By last full block: the first request with the block.
        let mut brought: AHashMap<u32, u32> = AHashMap::new();
        let mut seen = vec![false; self.parents.len()];
        for at in 0..self.requests.len() {
            let full = self.requests[at].full_blocks(block_tokens);
            let blocks = self.requests[at].blocks[..full].to_vec();
            let earlier = blocks.iter().rev().find_map(|block| brought.get(block).copied());
            if let Some(earlier) = earlier {
                self.continues(at, earlier as usize, &blocks);
            }
            if let Some(&last) = blocks.last()
                && !seen[last as usize]
            {
                brought.insert(last, at as u32);
            }
            for block in blocks {
                seen[block as usize] = true;
            }
        }
    }

    fn continues(&mut self, at: usize, earlier: usize, blocks: &[u32]) {
        let session = self.requests[earlier].session;
        self.requests[at].session = session;
        let before = &mut self.requests[earlier];
        if !before.made.is_empty() {
            return;
        }
        let full = before.full_blocks(self.block_tokens);
        let all = ((before.input_tokens + before.output_tokens - 1) / self.block_tokens) as usize;
        before.made = blocks.iter().copied().take(all).skip(full).collect();
    }

    /// The least distinct blocks that hold all prompts.
    #[must_use]
    pub fn distinct_blocks(&self) -> usize {
        self.parents.len()
    }

    /// Blocks of the longest prompt with its answer.
    #[must_use]
    pub fn longest_blocks(&self) -> usize {
        let tokens = |request: &TraceRequest| request.input_tokens + request.output_tokens;
        let longest = self.requests.iter().map(tokens).max().unwrap_or(0);
        (longest / self.block_tokens.max(1)) as usize + 1
    }

    /// The first requests of the trace.
    #[must_use]
    pub fn first(mut self, requests: usize) -> Self {
        self.requests.truncate(requests);
        self
    }

    /// How the router observes the first token of the request.
    pub(crate) fn first_token(&self, id: u32) -> FirstTokenKind {
        let is_single = |request: &TraceRequest| request.output_tokens <= 1;
        let chance = id.wrapping_mul(CHANCE_FACTOR) >> 8;
        let is_stream = chance % 100 >= self.whole_percent;
        let shows = is_stream || self.requests.get(self.place(id)).is_some_and(is_single);
        FirstTokenKind { shows, is_stream }
    }

    /// The requests repeated `times` times, with prompts that share no block between repetitions.
    #[must_use]
    pub fn repeated(&self, times: u32) -> Self {
        let Self { block_tokens, whole_percent, .. } = *self;
        let mut all = Self { block_tokens, whole_percent, ..Self::default() };
        let span = self.requests.iter().map(|request| match request.turn {
            TurnStart::At { ns } => ns,
            TurnStart::After { .. } => 0,
        });
        let span = span.max().unwrap_or(0) + 1;
        let sessions = self.requests.iter().map(|request| request.session + 1).max().unwrap_or(0);
        for time in 0..times {
            let first = all.requests.len() as u32;
            let blocks = all.parents.len() as u32;
            let moved = |block: &u32| if *block == NO_BLOCK { NO_BLOCK } else { block + blocks };
            all.parents.extend(self.parents.iter().map(moved));
            all.requests.extend(self.requests.iter().map(|request| TraceRequest {
                turn: match request.turn {
                    TurnStart::At { ns } => TurnStart::At { ns: ns + span * u64::from(time) },
                    TurnStart::After { request, think_ns } => {
                        TurnStart::After { request: request + first, think_ns }
                    }
                },
                blocks: request.blocks.iter().map(moved).collect(),
                made: request.made.iter().map(moved).collect(),
                session: request.session + sessions * time,
                ..*request
            }));
        }
        all
    }
}

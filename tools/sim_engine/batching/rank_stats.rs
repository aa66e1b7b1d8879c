//! Statistics of a rank.

/// Counters and gauges of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankStats {
    /// Requests by state and outcome.
    pub requests: RequestCounts,
    /// Tokens by the source of their KV.
    pub tokens: TokenCounts,
    /// Times of its requests.
    pub times: RequestTimes,
    /// Blocks held by running requests.
    pub used_blocks: usize,
    /// All blocks of the cache.
    pub capacity_blocks: usize,
    /// Batches of KV events handed to the publisher.
    pub kv_batches: u64,
}

/// Requests of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests in the batch.
    pub running: usize,
    /// Requests that wait for a place in the batch.
    pub waiting: usize,
    /// Finished prefills that hold their blocks for a decode.
    pub held: usize,
    /// Most requests that were running or waiting at the same time.
    pub in_flight_peak: usize,
    /// Received requests, with refused requests.
    pub received: u64,
    /// Requests that were refused because too many waited.
    pub refused: u64,
    /// Requests that ran to their end.
    pub finished: u64,
    /// Requests that ended because their client left.
    pub aborted: u64,
}

/// Times of a rank's requests, in sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// Count of prefills that ended.
    pub prefills: u64,
    /// Time of these prefills.
    pub prefill_ns: u64,
    /// Time that their requests waited before.
    pub queued_ns: u64,
    /// Tokens behind the first token of a request.
    pub later_tokens: u64,
    /// Time from the token before to these tokens.
    pub between_tokens_ns: u64,
}

/// Tokens of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Prompt tokens of requests with a first token.
    pub prompt: u64,
    /// Prompt tokens looked up in the cache.
    pub queried: u64,
    /// Prompt tokens found in the cache.
    pub hit: u64,
    /// Prompt tokens with KV from another engine.
    pub external: u64,
    /// Tokens that were generated.
    pub generated: u64,
}

//! Events of a request, and the trait of their observers.

use super::facts::Facts;
use crate::ingress::ConnectedClient;
use crate::state::shard::{SendParts, Shard};
use crate::state::workers::Workers;
use forebay_base::{NanosSinceStart, RankIndex, TenantIndex};
use forebay_fleet::mailbox::{RequestFacts, ResponsePlace};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::NoteSink;
use forebay_http1::{RequestHead, ResponseHead};
use forebay_json::UsageScan;
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_router::dispatch::RelayError;
use forebay_router::request;
use forebay_router::request::Stop;
use forebay_select::{ChoiceReason, MatchRequest, Prompt};
use std::net::IpAddr;

/// Observer of one request. Events that it has no use for keep their empty default.
pub(crate) trait Observer {
    fn began(&mut self, _: &RoutedHead<'_>) {}
    fn queued(&mut self, _from: NanosSinceStart, _until: NanosSinceStart) {}
    fn chosen(&mut self, _: &RankChoice<'_>) {}
    fn sent(&mut self, _: &AttemptStart) {}
    fn failed(&mut self, _: &AttemptFailure) {}
    fn lost(&mut self, _: &AttemptLoss<'_>) {}
    fn answer_began(&mut self, _: &AnswerHead<'_>) {}
    fn passed(&mut self, _: &[u8]) {}
    fn answered(&mut self, _: &AnswerEnd<'_>) {}
    fn ended(&mut self, _: &StoryEnd<'_>) {}
}

/// The head is read, and its path routed.
pub(crate) struct RoutedHead<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) head: &'a RequestHead,
    /// Bytes that the spans of the head point into.
    pub(crate) input: &'a [u8],
    pub(crate) request_id: &'a [u8],
    pub(crate) client: IpAddr,
    /// `None` for pages of the router and for paths without an endpoint.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) at: NanosSinceStart,
}

/// An attempt begins: a rank is chosen, or a pair of ranks.
pub(crate) struct RankChoice<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) chosen: &'a request::ChosenRanks,
    pub(crate) arrived_at: NanosSinceStart,
    pub(crate) because: Option<ChoiceReason>,
    /// Overlap of the rank that computes the prompt.
    pub(crate) overlap: OverlapFacts,
    /// Where somebody records: sink of notes, and the prompt as it was matched.
    pub(crate) notes: Option<(&'a NoteSink, MatchRequest<'a>, &'a Prompt)>,
    pub(crate) now: NanosSinceStart,
}

/// Overlap of a prompt with the rank that computes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverlapFacts {
    pub(crate) bytes: u32,
    /// `None` unless the rank's KV events show the tokens.
    pub(crate) tokens: Option<u32>,
}

/// The request leaves for the rank that answers.
pub(crate) struct AttemptStart {
    pub(crate) rank: RankIndex,
    /// Another rank has computed the prompt.
    pub(crate) is_prefilled: bool,
    pub(crate) now: NanosSinceStart,
}

/// An attempt ends before its answer began.
pub(crate) struct AttemptFailure {
    pub(crate) error: RelayError,
    /// The prefill leg of a pair has not done its part.
    pub(crate) is_unprefilled: bool,
    pub(crate) now: NanosSinceStart,
}

/// An attempt has no answer for the client.
pub(crate) struct AttemptLoss<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) failed: &'a request::Failed,
    pub(crate) now: NanosSinceStart,
}

/// The head of an answer, which is passed on.
pub(crate) struct AnswerHead<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) head: &'a ResponseHead,
    pub(crate) status: u16,
    pub(crate) endpoint: Endpoint,
    /// An answer of the same request is counted already.
    pub(crate) is_counted: bool,
    pub(crate) place: ResponsePlace,
}

/// End of the answer of an attempt.
pub(crate) struct AnswerEnd<'a> {
    pub(crate) sending: SendParts<'a>,
    pub(crate) facts: &'a RequestFacts,
    pub(crate) rank: RankIndex,
    pub(crate) head: &'a ResponseHead,
    pub(crate) times: StreamTimes,
    pub(crate) usage: AnswerUsage<'a>,
    /// Bytes of the body, if that is whole.
    pub(crate) relayed: Result<u64, RelayError>,
    pub(crate) part: AnswerPart,
}

/// Times of an answer as it passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamTimes {
    /// First byte of a stream.
    pub(crate) first_at: Option<NanosSinceStart>,
    /// Last event that may have a token, where these are counted.
    pub(crate) last_at: Option<NanosSinceStart>,
    pub(crate) ended_at: NanosSinceStart,
}

/// Usage of an answer.
#[derive(Clone, Copy, Default)]
pub(crate) struct AnswerUsage<'a> {
    /// As the engine reports it.
    pub(crate) reported: Option<TokenUsage>,
    /// Counts of the answer; `None` where it has no `usage`, or its tenant is not counted.
    pub(crate) scan: Option<&'a UsageScan>,
    /// By the ids of the stream, where these are kept.
    pub(crate) by_ids: Option<TokenUsage>,
}

/// Part of the request that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Whole,
    /// The decode leg of a pair: its rank has not computed the prompt.
    DecodeLeg,
    /// The remainder of a stream: its client has had the first byte for a while.
    Remainder,
}

/// End of the request, as its path sees it.
pub(crate) struct ExchangeEnd<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) client: &'a ConnectedClient,
    pub(crate) message: MessageParts<'a>,
    pub(crate) tenant: TenantIndex,
    /// `None`: answered.
    pub(crate) stop: Option<&'a Stop>,
    pub(crate) now: NanosSinceStart,
}

/// Message of the client, as far as it is read.
#[derive(Clone, Copy)]
pub(crate) struct MessageParts<'a> {
    pub(crate) head: &'a RequestHead,
    pub(crate) api: &'a ApiRequest,
    pub(crate) request_id: &'a [u8],
}

/// End of the request, for observers.
pub(crate) struct StoryEnd<'a> {
    pub(crate) end: &'a ExchangeEnd<'a>,
    pub(crate) facts: &'a Facts,
    /// Number of the trace, as logs show it.
    pub(crate) trace: Option<u128>,
}

impl StoryEnd<'_> {
    /// Status that the client received, and the word for how the request ended.
    pub(crate) fn outcome(&self) -> (u16, &'static str) {
        self.facts.outcome(self.end.stop)
    }
}

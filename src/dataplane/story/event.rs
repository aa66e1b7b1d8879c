//! Events of a request, and the trait of their observers.

use super::facts::{AnswerFault, Facts};
use crate::ingress::ConnectedClient;
use crate::state::env::Env;
use crate::state::shard::{SendParts, Shard};
use crate::state::workers::Workers;
use forebay_base::{NanosSinceStart, RankIndex, TenantIndex};
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::NoteSink;
use forebay_http1::{RequestHead, ResponseHead};
use forebay_json::UsageScan;
use forebay_mailbox::{RequestFacts, ResponsePlace};
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_router::dispatch::RelayError;
use forebay_router::request;
use forebay_router::request::Stop;
use forebay_select::{ChoiceReason, MatchRequest, Prompt};
use std::net::IpAddr;

/// Observer of a request. Unused events keep the empty default. Times that few observers need are
/// not in the events: an observer reads the clock of its shard.
pub(crate) trait Observer {
    /// Once, for each request with a readable head. The bytes of the head are here, and gone at the
    /// end: copy what a record needs.
    fn began(&mut self, _: &RoutedHead<'_>) {}
    /// After each wait in a queue.
    fn queued(&mut self, _from: NanosSinceStart, _until: NanosSinceStart) {}
    /// Before each attempt, with its ranks.
    fn chosen(&mut self, _: &RankChoice<'_>) {}
    /// Each time that head and body leave, also again on a fresh connection.
    fn sent(&mut self, _: &AttemptStart<'_>) {}
    /// After an attempt that failed before its answer began, and where a stream breaks off.
    fn failed(&mut self, _: &AttemptFailure) {}
    /// After an attempt that has no answer for the client.
    fn lost(&mut self, _: &AttemptLoss<'_>) {}
    /// Once an attempt: its answer is passed on.
    fn answer_began(&mut self, _: &AnswerHead<'_>) {}
    /// For the bytes of each read of a body that is relayed.
    fn passed(&mut self, _: &[u8]) {}
    /// Once an attempt, after [`Observer::answer_began`]: the answer has ended, or was cut.
    fn answered(&mut self, _: &AnswerEnd<'_>) {}
    /// Once, after [`Observer::began`]: refused, answered, cut, or its client left.
    fn ended(&mut self, _: &StoryEnd<'_>) {}
}

/// The head is read and the path routed.
pub(crate) struct RoutedHead<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) head: &'a RequestHead,
    /// Bytes that the spans of the head point into.
    pub(crate) input: &'a [u8],
    pub(crate) request_id: &'a [u8],
    pub(crate) client: IpAddr,
    /// Scheme of the URL: `http` or `https`.
    pub(crate) scheme: &'static str,
    /// `None` for pages of the router and for paths without an endpoint.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) at: NanosSinceStart,
}

/// An attempt begins: a rank or a pair of ranks is chosen.
pub(crate) struct RankChoice<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) chosen: &'a request::ChosenRanks,
    pub(crate) arrived_at: NanosSinceStart,
    pub(crate) choice_reason: Option<ChoiceReason>,
    /// Overlap of the rank that computes the prompt.
    pub(crate) overlap: OverlapFacts,
    /// If a recorder is attached: the sink of notes, and the matched prompt.
    pub(crate) notes: Option<(&'a NoteSink, MatchRequest<'a>, &'a Prompt)>,
}

/// Overlap of a prompt with the rank that computes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverlapFacts {
    pub(crate) bytes: u32,
    /// `None` unless the rank sends KV events.
    pub(crate) tokens: Option<u32>,
}

/// The request is sent to the answering rank.
pub(crate) struct AttemptStart<'a> {
    pub(crate) env: &'a Env,
    pub(crate) rank: RankIndex,
    /// Another rank has computed the prompt.
    pub(crate) is_prefilled: bool,
}

/// An attempt ends before its answer began.
pub(crate) struct AttemptFailure {
    pub(crate) error: RelayError,
    /// The prefill leg of a pair did not succeed.
    pub(crate) is_unprefilled: bool,
    pub(crate) now: NanosSinceStart,
}

/// An attempt ended without an answer for the client.
pub(crate) struct AttemptLoss<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) failed: &'a request::FailedAttempt,
    pub(crate) now: NanosSinceStart,
}

/// The head of an answer that is relayed.
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
    /// Length of the body, if complete.
    pub(crate) relayed: Result<u64, RelayError>,
    pub(crate) part: AnswerPart,
}

/// Times of a relayed answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamTimes {
    /// First byte of a stream.
    pub(crate) first_at: Option<NanosSinceStart>,
    /// Last event that may carry a token, where tokens are counted.
    pub(crate) last_at: Option<NanosSinceStart>,
}

/// Usage of an answer.
#[derive(Clone, Copy, Default)]
pub(crate) struct AnswerUsage<'a> {
    /// As the engine reports it.
    pub(crate) reported: Option<TokenUsage>,
    /// Usage scan; `None` if the answer has no `usage`, or its tenant is not counted.
    pub(crate) scan: Option<&'a UsageScan>,
    /// By the token ids of a recorded stream.
    pub(crate) by_ids: Option<TokenUsage>,
}

/// Part of the request that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Whole,
    /// Decode leg of a pair: its rank has not computed the prompt.
    DecodeLeg,
    /// Remainder of a stream: the client already has the first byte.
    Remainder,
}

/// End of a request, for the story.
pub(crate) struct ExchangeEnd<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) client: &'a ConnectedClient,
    pub(crate) message: MessageParts<'a>,
    pub(crate) tenant: TenantIndex,
    /// `None` if the request was answered.
    pub(crate) stop: Option<&'a Stop>,
    pub(crate) now: NanosSinceStart,
}

/// The received part of the client's message.
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
    /// Trace id, as in logs.
    pub(crate) trace: Option<u128>,
}

impl StoryEnd<'_> {
    /// Status that the client received, and the outcome as a word of a fixed list.
    pub(crate) fn outcome(&self) -> (u16, &'static str) {
        self.facts.outcome(self.end.stop)
    }

    /// Why the router refused the request, why the answer was cut, which worker failed and how, or
    /// why a 2xx counts as a failure. Empty for another answer of an engine.
    pub(crate) fn cause(&self) -> &str {
        match self.end.stop {
            Some(Stop::Cut(error)) => error.describe(),
            Some(Stop::Refused(refusal) | Stop::BeforeBody(refusal) | Stop::InBody(refusal)) => {
                refusal.message()
            }
            Some(Stop::Drained) => "the drain of the router ended first",
            None => self.facts.answer.fault.map_or("", AnswerFault::describe),
            Some(Stop::Engine(_) | Stop::ClientGone) => "",
        }
    }
}

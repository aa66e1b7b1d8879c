//! Request counters: status of answers, time to first byte, outcome of requests.

use super::event::{AnswerEnd, AnswerHead, AnswerPart, Observer, StoryEnd};
use super::facts::{CLIENT_GONE, DRAINED};
use crate::state::env::Env;
use forebay_board::account::{Count, NO_ENDPOINT, RankCount, Stage, TenantResult};
use forebay_router::request::Stop;

/// Stateless: the shard holds the counters.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters;

impl Observer for RequestCounters {
    fn answer_began(&mut self, event: &AnswerHead<'_>) {
        if !event.is_counted {
            event.shard.env.counters.answered(event.endpoint as usize, event.head.status);
        }
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        // A remainder is not the first byte for its client.
        if let Some(first_at) = event.times.first_at
            && event.part != AnswerPart::Remainder
        {
            let waited = first_at.since(event.facts.arrived_at);
            let choices = event.sending.env.counters.choices();
            choices.first_byte(event.facts.model, event.rank, waited);
        }
    }

    fn ended(&mut self, event: &StoryEnd<'_>) {
        let env = &event.end.shard.env;
        // The duration of a tunnel is no answer time.
        if event.facts.answer.status != 101 {
            let total_ns = event.end.now.since(event.facts.times.started);
            env.histograms.borrow_mut().record(Stage::Total, total_ns);
        }
        let result = match event.end.stop {
            Some(stop) if stop.is_by_client() => {
                env.count(Count::ClientGone);
                count_unanswered(env, event, CLIENT_GONE);
                TenantResult::Left
            }
            Some(Stop::Drained) => {
                env.count(Count::CutByDrain);
                count_unanswered(env, event, DRAINED);
                TenantResult::Failed
            }
            Some(Stop::Cut(_)) => {
                env.count(Count::CutMidStream);
                if let Some(rank) = event.facts.rank {
                    env.counters.choices().add(rank, RankCount::CutAnswers, 1);
                }
                TenantResult::Failed
            }
            _ if event.outcome().0 >= FAULTS_FROM => TenantResult::Failed,
            // The engine refused what the router asked before the request itself.
            Some(Stop::Engine(_)) => TenantResult::Answered,
            Some(stop) if is_invalid(stop) => TenantResult::Invalid,
            Some(_) => TenantResult::Refused,
            _ => TenantResult::Answered,
        };
        if event.facts.asked.is_some() {
            env.counters.ended(event.end.tenant, result);
        }
    }
}

/// Has the request a fault, for which the router refused it? A tenant past a limit has none.
fn is_invalid(stop: &Stop) -> bool {
    match stop {
        Stop::BeforeBody(refusal) | Stop::InBody(refusal) | Stop::Refused(refusal) => {
            refusal.status() != TOO_MANY && !refusal.reason().is_shortage()
        }
        Stop::Engine(_) | Stop::ClientGone | Stop::Cut(_) | Stop::Drained => false,
    }
}

/// Status of refusals for want of room, and for limits of tenants.
const TOO_MANY: u16 = 429;
/// First status that is no fault of the client.
const FAULTS_FROM: u16 = 500;

/// Counts a request under that status, unless its answer has begun.
fn count_unanswered(env: &Env, event: &StoryEnd<'_>, status: u16) {
    if event.facts.answer.counted.is_none() {
        let endpoint = event.facts.endpoint().map_or(NO_ENDPOINT, |endpoint| endpoint as usize);
        env.counters.answered(endpoint, status);
    }
}

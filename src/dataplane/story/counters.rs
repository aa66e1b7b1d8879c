//! Counters of requests: status of answers, time of the first byte, how requests ended.

use super::event::{AnswerEnd, AnswerHead, AnswerPart, Observer, StoryEnd};
use super::facts::CLIENT_GONE;
use crate::state::env::Env;
use forebay_fleet::account::{Count, NO_ENDPOINT, Stage};
use forebay_router::dispatch::RelayError;
use forebay_router::request::Stop;

/// Counters have no state of a request: the shard holds them.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters;

impl Observer for RequestCounters {
    fn answer_began(&mut self, event: &AnswerHead<'_>) {
        if !event.is_counted {
            event.shard.env.counters.answered(event.endpoint as usize, event.head.status);
        }
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        // The client of a remainder has had its first byte for a while.
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
        // The time for which a tunnel was open is no time of an answer.
        if event.facts.answer.status != 101 {
            env.time(Stage::Total, event.facts.times.started);
        }
        match event.end.stop {
            Some(
                Stop::ClientGone | Stop::Cut(RelayError::ClientGone | RelayError::ClientStalled),
            ) => count_gone(env, event),
            Some(Stop::Cut(_)) => env.count(Count::CutMidStream),
            _ => {}
        }
    }
}

/// Counts a request whose client has left.
fn count_gone(env: &Env, event: &StoryEnd<'_>) {
    env.count(Count::ClientGone);
    if event.facts.answer.counted.is_none() {
        let endpoint = event.facts.endpoint().map_or(NO_ENDPOINT, |endpoint| endpoint as usize);
        env.counters.answered(endpoint, CLIENT_GONE);
    }
}

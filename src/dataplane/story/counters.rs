//! Request counters: status of answers, time to first byte, outcome of requests.

use super::event::{AnswerEnd, AnswerHead, AnswerPart, Observer, StoryEnd};
use super::facts::CLIENT_GONE;
use crate::state::env::Env;
use forebay_fleet::account::{Count, NO_ENDPOINT, Stage};
use forebay_router::dispatch::RelayError;
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

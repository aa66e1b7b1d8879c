//! Notes of requests for `forebay record`, while a recorder is attached: a note when the request is
//! sent for the first time, and a note when it has ended.

use super::event::{AnswerEnd, AnswerPart, Observer, RankChoice, StoryEnd};
use crate::state::env::Env;
use forebay_base::RankIndex;
use forebay_board::account::Count;
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::{NoteSink, SentNote, ShardNote};
use forebay_select::prompt_part_keys;

/// Notes of a request.
#[derive(Debug, Default)]
pub(crate) struct RequestNotes {
    /// First note, if the recorder has it.
    sent: Option<FirstNote>,
    /// Usage that the engine reports.
    usage: Option<TokenUsage>,
}

/// First note of a request.
#[derive(Clone, Copy, Debug)]
struct FirstNote {
    id: u64,
    /// Prefill rank of the last attempt.
    rank: RankIndex,
}

impl Observer for RequestNotes {
    /// Only the first attempt has the text of the prompt.
    fn chosen(&mut self, event: &RankChoice<'_>) {
        let Some((sink, ask, prompt)) = &event.notes else { return };
        let rank = event.chosen.prefill_rank();
        if let Some(first) = &mut self.sent {
            first.rank = rank;
            return;
        }
        let prompt_bytes = prompt.prompt_bytes();
        if prompt_bytes == 0 {
            return;
        }
        let id = event.shard.routing.stages.borrow_mut().random.u64(..);
        let keys = prompt_part_keys(ask, prompt);
        let note = SentNote { id, rank, arrived_at: event.arrived_at, prompt_bytes, keys };
        put(&event.shard.env, sink, ShardNote::Sent(Box::new(note)));
        self.sent = Some(FirstNote { id, rank });
    }

    fn answered(&mut self, event: &AnswerEnd<'_>) {
        // In a pair, the answering rank has not computed the prompt.
        if event.part == AnswerPart::Whole && event.relayed.is_ok() {
            self.usage = event.usage.reported;
        }
    }

    fn ended(&mut self, event: &StoryEnd<'_>) {
        let Some(FirstNote { id, rank }) = self.sent.take() else { return };
        let shard = event.end.shard;
        if let Some(sink) = &shard.workers.fleet().serving.notes {
            put(&shard.env, sink, ShardNote::Ended { id, rank, told: self.usage });
        }
    }
}

fn put(env: &Env, sink: &NoteSink, note: ShardNote) {
    if !sink.put(note) {
        env.count(Count::NotesLost);
    }
}

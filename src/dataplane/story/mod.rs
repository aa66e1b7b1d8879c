//! Story of a request: its events and their observers. A new observer is a file here and a line in
//! `observers!`, the list of all. No phase of a request depends on an observer, except for the
//! limits of its tenant.
//!
//! An observer is made for each request and dropped with it. State that outlives a request belongs
//! to `state` ([`Env`](crate::state::env::Env)) or to the counters of the shard
//! (`forebay_board::account`). Observers run on the shard for each request: `tools/stages` and
//! `tools/instructions` show their cost. `tests/it` tests them; pure parts have tests here.

pub(crate) mod access_record;
pub(crate) mod bill;
mod counters;
pub(crate) mod event;
pub(crate) mod facts;
mod notes;
mod open_trace;
pub(crate) mod quota;
mod quota_hold;
mod response_search;
pub(crate) mod trace;
mod work_meter;

use bill::Bill;
use event::{
    AnswerEnd, AnswerHead, AttemptFailure, AttemptLoss, AttemptStart, ExchangeEnd, Observer,
    RankChoice, RoutedHead, StoryEnd,
};
use facts::{Facts, RequestedApi};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::tenant::TokenUsage;
use forebay_mailbox::LegTrace;

/// Makes the struct of all observers. They receive each event in the order of the list.
macro_rules! observers {
    ($($name:ident: $observer:ty,)*) => {
        #[derive(Debug, Default)]
        struct Observers {
            $($name: $observer,)*
        }

        impl Observer for Observers {
            fn began(&mut self, event: &RoutedHead<'_>) {
                $(self.$name.began(event);)*
            }

            fn queued(&mut self, from: NanosSinceStart, until: NanosSinceStart) {
                $(self.$name.queued(from, until);)*
            }

            fn chosen(&mut self, event: &RankChoice<'_>) {
                $(self.$name.chosen(event);)*
            }

            fn sent(&mut self, event: &AttemptStart<'_>) {
                $(self.$name.sent(event);)*
            }

            fn failed(&mut self, event: &AttemptFailure) {
                $(self.$name.failed(event);)*
            }

            fn lost(&mut self, event: &AttemptLoss<'_>) {
                $(self.$name.lost(event);)*
            }

            fn answer_began(&mut self, event: &AnswerHead<'_>) {
                $(self.$name.answer_began(event);)*
            }

            fn passed(&mut self, data: &[u8]) {
                $(self.$name.passed(data);)*
            }

            fn answered(&mut self, event: &AnswerEnd<'_>) {
                $(self.$name.answered(event);)*
            }

            fn ended(&mut self, event: &StoryEnd<'_>) {
                $(self.$name.ended(event);)*
            }
        }
    };
}

observers! {
    counters: counters::RequestCounters,
    bill: Bill,
    responses: response_search::ResponseSearch,
    notes: notes::RequestNotes,
    record: access_record::AccessRecord,
    trace: trace::TraceObserver,
}

/// Story of a request.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) facts: Facts,
    observers: Observers,
}

impl Story {
    pub(crate) fn new(started: NanosSinceStart) -> Self {
        let mut story = Self::default();
        story.facts.times.started = started;
        story
    }

    /// The path is routed. `asked` is `None` if the path has no endpoint.
    pub(crate) fn began(&mut self, asked: Option<RequestedApi>, event: &RoutedHead<'_>) {
        self.facts.asked = asked;
        self.observers.began(event);
    }

    /// Head and body are read and scanned.
    pub(crate) fn read(&mut self, at: NanosSinceStart, is_stream: bool) {
        self.facts.times.read_ns = Some(at.since(self.facts.times.started));
        self.facts.stream = Some(is_stream);
    }

    /// The request has waited in a queue.
    pub(crate) fn queued(&mut self, from: NanosSinceStart, until: NanosSinceStart) {
        self.facts.times.queued_ns += until.since(from);
        self.observers.queued(from, until);
    }

    /// A rank is chosen, and an attempt begins.
    pub(crate) fn chosen(&mut self, event: &RankChoice<'_>) {
        self.facts.rank = Some(event.chosen.lease.rank());
        self.facts.choice_reason = event.choice_reason.or(self.facts.choice_reason);
        self.observers.chosen(event);
    }

    /// The request is sent to the answering rank.
    pub(crate) fn sent(&mut self, event: &AttemptStart<'_>) {
        self.observers.sent(event);
    }

    /// The attempt has ended before its answer began.
    pub(crate) fn failed(&mut self, event: &AttemptFailure) {
        self.observers.failed(event);
    }

    /// No byte of the attempt reaches the client.
    pub(crate) fn lost(&mut self, event: &AttemptLoss<'_>) {
        self.observers.lost(event);
    }

    /// The head of an answer is received and relayed.
    pub(crate) fn answer_began(&mut self, event: &AnswerHead<'_>) {
        self.observers.answer_began(event);
        self.facts.answer.counted.get_or_insert(event.status);
    }

    /// Bytes of the answer's body.
    pub(crate) fn passed(&mut self, data: &[u8]) {
        self.observers.passed(data);
    }

    /// The answer of an attempt has ended, or was cut.
    pub(crate) fn answered(&mut self, event: &AnswerEnd<'_>) {
        self.observers.answered(event);
    }

    /// The request has ended. The bill goes first, because other observers report the usage.
    pub(crate) fn ended(&mut self, end: &ExchangeEnd<'_>) {
        self.facts.answer.usage = self.observers.bill.settle();
        let trace = self.observers.trace.number();
        self.observers.ended(&StoryEnd { end, facts: &self.facts, trace });
    }

    /// Bill of the request, for the limits of its tenant.
    pub(crate) const fn bill(&self) -> &Bill {
        &self.observers.bill
    }

    pub(crate) const fn bill_mut(&mut self) -> &mut Bill {
        &mut self.observers.bill
    }

    /// The router has completed the stream in place of an engine.
    pub(crate) const fn ended_here(&mut self, usage: TokenUsage) {
        self.observers.bill.ended_here(usage);
    }

    /// Trace of a prefill leg for this rank. From here on workers receive the leg's context.
    pub(crate) fn leg(&mut self, rank: RankIndex) -> Option<Box<LegTrace>> {
        self.observers.trace.leg(rank)
    }

    /// `traceparent` and `tracestate` for workers, if the request has a trace.
    pub(crate) fn trace_fields(&self) -> [Option<(&'static str, &[u8])>; 2] {
        self.observers.trace.fields()
    }
}

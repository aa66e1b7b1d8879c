//! A thread that applies events while prompts are looked up: sessions come and go, a million blocks
//! a second.

use crate::byte_keyed::Feeds;
use crate::dynamo::{Dynamo, router_event};
use crate::history::{Event, Fleet, Kind, Prompt};
use crate::token_keyed::TokenFeeds;
use forebay::base::RankIndex;
use forebay::index::{KvOp, SliceWriter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Events of 64 blocks that are applied in one go, and how often: 1.024 million blocks a second.
const BURST: usize = 16;
const PERIOD: Duration = Duration::from_millis(1);
/// Sessions that are there at any time.
const STAY: usize = 1_000;

/// What the events go to.
pub(crate) enum Target<'a> {
    /// The operations of each event, and the slice that takes them: what a shard does.
    Bytes(Vec<Vec<(RankIndex, KvOp)>>, &'a mut SliceWriter),
    Tokens(&'a mut TokenFeeds),
    Dynamo(&'a Dynamo),
}

/// Events to come, and where they go.
pub(crate) struct Paced<'a> {
    prompts: &'a [Prompt],
    events: Vec<Event>,
    target: Target<'a>,
}

/// The first sessions come; then for each that comes one goes; then all that are left go. Ends as
/// it began.
fn schedule(churn: &[Event]) -> Vec<Event> {
    let mut events = Vec::new();
    let gone = |event: &Event| Event { kind: Kind::Remove, ..event.clone() };
    for (at, event) in churn.iter().enumerate() {
        events.push(event.clone());
        if let Some(old) = at.checked_sub(STAY.min(churn.len() / 2)) {
            events.push(gone(&churn[old]));
        }
    }
    events.extend(churn[churn.len() - STAY.min(churn.len() / 2)..].iter().map(gone));
    events
}

impl<'a> Target<'a> {
    pub(crate) fn bytes(fleet: &Fleet, feeds: &mut Feeds, slice: &'a mut SliceWriter) -> Self {
        let events = schedule(&fleet.churn);
        let ops = events.iter().map(|event| {
            let mut ops = Vec::new();
            feeds.take(&fleet.history.prompts, event, |rank, op| ops.push((rank, op)));
            ops
        });
        Self::Bytes(ops.collect(), slice)
    }

    fn apply(&mut self, at: usize, event: &Event, prompts: &[Prompt]) {
        match self {
            Self::Bytes(ops, slice) => {
                ops[at].iter().for_each(|(rank, op)| slice.apply(*rank, *op));
            }
            Self::Tokens(feeds) => feeds.take(prompts, event),
            Self::Dynamo(dynamo) => dynamo.send(router_event(prompts, event)),
        }
    }
}

impl<'a> Paced<'a> {
    pub(crate) fn new(fleet: &'a Fleet, target: Target<'a>) -> Self {
        Self { prompts: &fleet.history.prompts, events: schedule(&fleet.churn), target }
    }

    /// Applies the events again and again, if there are any, while `work` is done.
    pub(crate) fn beside(paced: Option<Self>, work: impl FnOnce()) {
        let Some(paced) = paced else { return work() };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| paced.run(&done));
            work();
            done.store(true, Ordering::Relaxed);
        });
    }

    fn run(mut self, done: &AtomicBool) {
        let mut due = Instant::now();
        // Whole schedules: the index is then as it was.
        while !done.load(Ordering::Relaxed) {
            for (at, event) in self.events.iter().enumerate() {
                if at % BURST == 0 && !done.load(Ordering::Relaxed) {
                    due += PERIOD;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                self.target.apply(at, event, self.prompts);
            }
        }
        if let Target::Dynamo(dynamo) = &self.target {
            dynamo.flush();
        }
    }
}

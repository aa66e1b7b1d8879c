//! Blocks per second that one thread stores and removes.

use crate::byte_keyed::{Feeds, byte_index};
use crate::dynamo::{Dynamo, router_event};
use crate::history::{Event, History, removal, shared};
use crate::report::{Cell, row, three_digits, title};
use crate::token_keyed::TokenFeeds;
use crate::words::Words;
use std::time::{Duration, Instant};

/// Everything is stored and removed twice: the first time memory is new.
const PHASES: [(&str, bool); 4] = [
    ("store, memory new", true),
    ("remove, first", false),
    ("store, memory used before", true),
    ("remove", false),
];
const COLUMNS: [&str; 6] = [
    "M blocks/s",
    "blocks an event",
    "Forebay, slice",
    "Forebay, feed and slice",
    "tokens, feed and table",
    "Dynamo",
];

pub(crate) fn measure(words: &Words, rounds: usize, quick: bool) {
    title("Apply: million blocks per second, one thread", &COLUMNS);
    for batch in [64, 1] {
        let pairs = if quick { 50_000 } else { 1_000_000 };
        let history = shared(words, pairs / 2, 2, batch);
        let removes = removal(&history, batch);
        let pairs = history.stored_blocks();
        assert_eq!(pairs, removes.iter().map(|event| event.blocks.len()).sum::<usize>());
        let phases: Vec<&[Event]> = PHASES
            .iter()
            .map(|(_, store)| if *store { &history.events[..] } else { &removes })
            .collect();
        let mut cells: [[Cell; 4]; 4] = Default::default();
        for _ in 0..rounds {
            for (subject, cells) in SUBJECTS.iter().zip(&mut cells) {
                for (time, cell) in subject(words, &history, &phases).into_iter().zip(cells) {
                    cell.add(pairs as f64 / time.as_secs_f64() / 1e6);
                }
            }
        }
        for (phase, (name, _)) in PHASES.iter().enumerate() {
            let figures = cells.iter().map(|subject| three_digits(subject[phase].median()));
            row([(*name).to_owned(), batch.to_string()].into_iter().chain(figures));
        }
    }
}

type Subject = fn(&Words, &History, &[&[Event]]) -> Vec<Duration>;
const SUBJECTS: [Subject; 4] = [slice_alone, feed_and_slice, tokens, dynamo];

/// What the shard does: the operations are there.
fn slice_alone(words: &Words, history: &History, phases: &[&[Event]]) -> Vec<Duration> {
    let (_reader, mut writer) = byte_index(64);
    let mut feeds = Feeds::new(&words.vocabulary);
    let times = phases.iter().map(|events| {
        let mut ops = Vec::new();
        for event in *events {
            feeds.take(&history.prompts, event, |rank, op| ops.push((rank, op)));
        }
        let start = Instant::now();
        ops.iter().for_each(|(rank, op)| writer.apply(*rank, *op));
        start.elapsed()
    });
    times.collect()
}

/// What the control plane's thread and the shard do together, from decoded events on.
fn feed_and_slice(words: &Words, history: &History, phases: &[&[Event]]) -> Vec<Duration> {
    let (_reader, mut writer) = byte_index(64);
    let mut feeds = Feeds::new(&words.vocabulary);
    let mut apply = |event| feeds.take(&history.prompts, event, |rank, op| writer.apply(rank, op));
    phases.iter().map(|events| timed(events, &mut apply)).collect()
}

fn tokens(_: &Words, history: &History, phases: &[&[Event]]) -> Vec<Duration> {
    let mut feeds = TokenFeeds::default();
    let mut apply = |event| feeds.take(&history.prompts, event);
    phases.iter().map(|events| timed(events, &mut apply)).collect()
}

fn dynamo(_: &Words, history: &History, phases: &[&[Event]]) -> Vec<Duration> {
    let phases = phases
        .iter()
        .map(|events| events.iter().map(|event| router_event(&history.prompts, event)).collect());
    Dynamo::time_phases(phases.collect())
}

fn timed<'a>(events: &'a [Event], mut apply: impl FnMut(&'a Event)) -> Duration {
    let start = Instant::now();
    events.iter().for_each(&mut apply);
    start.elapsed()
}

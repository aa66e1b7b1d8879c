//! Compares prefix indexes on the same histories. See the package's README.

mod byte_keyed;
mod counting;
mod dynamo;
mod history;
mod words;

use byte_keyed::{Feeds, byte_index};
use counting::{Counting, bytes_in_use};
use dynamo::{Dynamo, locals_of, router_event};
use history::{History, fleet, removal, shared};
use std::hint::black_box;
use std::time::Instant;
use words::Words;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn quantiles(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    format!(
        "{:.2}/{:.2}",
        times[times.len() / 2] as f64 / 1e3,
        times[times.len() * 99 / 100] as f64 / 1e3
    )
}

fn memory(words: &Words) {
    for sharing in [1, 4, 16] {
        let history = shared(words, 1_000_000 / usize::from(sharing), sharing, 64);
        let pairs = history.stored_blocks();
        let before = bytes_in_use();
        let (reader, mut writer) = byte_index(64);
        let mut feeds = Feeds::new(&words.vocabulary);
        for event in &history.events {
            feeds.take(&history.prompts, event, |rank, op| writer.apply(rank, op));
        }
        assert_eq!(reader.refused(), 0);
        let both = bytes_in_use() - before;
        drop(feeds);
        let index = bytes_in_use() - before;
        drop((reader, writer));
        let before = bytes_in_use();
        let dynamo = Dynamo::new();
        history.events.iter().for_each(|event| dynamo.send(router_event(&history.prompts, event)));
        dynamo.flush();
        let theirs = bytes_in_use() - before;
        let each = |bytes: usize| bytes as f64 / pairs as f64;
        println!(
            "memory sharing {sharing}: pairs {pairs} index {:.1} index+feeds {:.1} dynamo {:.1}",
            each(index),
            each(both),
            each(theirs)
        );
    }
}

fn throughput(words: &Words) {
    for (name, batch) in [("64", 64), ("1", 1)] {
        let history = shared(words, 500_000, 2, batch);
        let removes = removal(&history, batch);
        let pairs = history.stored_blocks();
        let removed: usize = removes.iter().map(|event| event.blocks.len()).sum();
        assert_eq!(pairs, removed);
        let rate = |time: std::time::Duration| pairs as f64 / time.as_secs_f64() / 1e6;
        let phases = [&history.events, &removes];
        // Whole ingest.
        let (_reader, mut writer) = byte_index(64);
        let mut feeds = Feeds::new(&words.vocabulary);
        let mut ops: [Vec<_>; 2] = Default::default();
        for (events, ops) in phases.iter().zip(&mut ops) {
            for event in *events {
                feeds.take(&history.prompts, event, |rank, op| ops.push((rank, op)));
            }
        }
        for (phase, ops) in ops.into_iter().enumerate() {
            let start = Instant::now();
            for (rank, op) in ops {
                writer.apply(rank, op);
            }
            println!(
                "batch {name} phase {phase}: forebay slice {:.2} M blocks/s",
                rate(start.elapsed())
            );
        }
        let (_reader, mut writer) = byte_index(64);
        let mut feeds = Feeds::new(&words.vocabulary);
        for (phase, events) in phases.iter().enumerate() {
            let start = Instant::now();
            for event in *events {
                feeds.take(&history.prompts, event, |rank, op| writer.apply(rank, op));
            }
            println!(
                "batch {name} phase {phase}: forebay feed+slice {:.2} M blocks/s",
                rate(start.elapsed())
            );
        }
        let theirs = phases
            .iter()
            .map(|events| {
                events.iter().map(|event| router_event(&history.prompts, event)).collect()
            })
            .collect();
        for (phase, time) in Dynamo::time_phases(theirs).into_iter().enumerate() {
            println!("batch {name} phase {phase}: dynamo {:.2} M blocks/s", rate(time));
        }
    }
}

fn check(history: &History, reader: &mut byte_keyed::ByteReader, theirs: &dynamo::DynamoReader) {
    let (mut same, mut differ) = (0, 0);
    for prompt in &history.prompts {
        let ours = reader.found(&prompt.text);
        let dynamo = theirs.found(&locals_of(prompt));
        if ours == dynamo {
            same += 1
        } else {
            differ += 1;
            if differ < 4 {
                let only: Vec<_> =
                    ours.iter().zip(&dynamo).filter(|(a, b)| a != b).take(5).collect();
                println!("differ: {} {} {only:?}", ours.len(), dynamo.len());
            }
        }
    }
    println!("check: same {same} differ {differ}");
}

fn lookups(words: &Words) {
    for ranks in [8, 64, 256, 1_000] {
        let (history, depths) = fleet(words, ranks, 1.0);
        let (mut reader, mut writer) = byte_index(usize::from(ranks));
        let mut feeds = Feeds::new(&words.vocabulary);
        let dynamo = Dynamo::new();
        for event in &history.events {
            feeds.take(&history.prompts, event, |rank, op| writer.apply(rank, op));
            dynamo.send(router_event(&history.prompts, event));
        }
        dynamo.flush();
        println!(
            "ranks {ranks}: {} pairs, {} events",
            history.stored_blocks(),
            history.events.len()
        );
        let theirs = dynamo.reader();
        check(&history, &mut reader, &theirs);
        let mut rng = fastrand::Rng::with_seed(1);
        let locals: Vec<_> = history.prompts.iter().map(locals_of).collect();
        for hot in [true, false] {
            let mut times: [[Vec<u64>; 2]; 4] = Default::default();
            for _ in 0..if hot { 1_500 } else { 1_500 } {
                for (depth, prompts) in depths.iter().enumerate() {
                    let at = if hot { prompts.start + 20 } else { rng.usize(prompts.clone()) };
                    let prompt = history.prompts[at].text.clone();
                    if hot {
                        black_box(reader.find(&prompt));
                    }
                    let start = Instant::now();
                    black_box(reader.find(black_box(&prompt)));
                    times[depth][0].push(start.elapsed().as_nanos() as u64);
                    let locals = locals[at].clone();
                    if hot {
                        black_box(theirs.find(&locals));
                    }
                    let start = Instant::now();
                    black_box(theirs.find(black_box(&locals)));
                    times[depth][1].push(start.elapsed().as_nanos() as u64);
                }
            }
            for ((depth, ..), [ours, theirs]) in history::DEPTHS.iter().zip(times) {
                println!(
                    "ranks {ranks} depth {depth} hot {hot}: forebay {} dynamo {} us",
                    quantiles(ours),
                    quantiles(theirs)
                );
            }
        }
    }
}

fn main() {
    let words = Words::new();
    let which = std::env::args().nth(1);
    let wants = |name: &str| which.as_deref().is_none_or(|which| which == name);
    if wants("memory") {
        memory(&words);
    }
    if wants("apply") {
        throughput(&words);
    }
    if wants("lookup") {
        lookups(&words);
    }
}

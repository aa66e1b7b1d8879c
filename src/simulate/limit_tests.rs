//! Tenfold load on engines that do not declare their limit: requests that wait in an engine, and
//! use of its capacity.

use crate::traces::trace_file::parse;
use crate::*;
use forebay_config::{Config, Policy};
use std::fmt::Write;
use std::time::Duration;

/// Engines and their traffic.
#[derive(Clone)]
struct LimitCase {
    name: &'static str,
    sequences_max: u32,
    kv_blocks: usize,
    requests: u32,
    input: (u32, u32),
    output: (u32, u32),
    /// Requests that wait in an engine: the mean of its reports, and 99 of 100 have no more.
    waiting: (f64, u32),
}

const CASES: [LimitCase; 6] = [
    LimitCase {
        name: "8 sequences",
        sequences_max: 8,
        kv_blocks: 1_000,
        requests: 3_000,
        input: (100, 400),
        output: (50, 200),
        waiting: (2.0, 3),
    },
    LimitCase {
        name: "32 sequences, long prompts",
        sequences_max: 32,
        kv_blocks: 1_000,
        requests: 1_500,
        input: (2_000, 12_000),
        output: (50, 400),
        waiting: (2.0, 2),
    },
    LimitCase {
        name: "256 sequences",
        sequences_max: 256,
        kv_blocks: 1_000,
        requests: 8_000,
        input: (100, 400),
        output: (50, 200),
        // Some requests end with each step.
        waiting: (2.0, 5),
    },
    LimitCase {
        name: "a small cache, long prompts",
        sequences_max: 256,
        kv_blocks: 250,
        requests: 600,
        input: (2_000, 12_000),
        output: (50, 400),
        waiting: (2.0, 2),
    },
    LimitCase {
        name: "a small cache, long answers",
        sequences_max: 256,
        kv_blocks: 150,
        requests: 1_200,
        input: (200, 1_200),
        output: (300, 1_500),
        // Answers are longer than expected, so the engine preempts requests.
        waiting: (2.5, 15),
    },
    LimitCase {
        name: "prompts alone",
        sequences_max: 256,
        kv_blocks: 1_000,
        requests: 800,
        input: (2_000, 12_000),
        output: (1, 2),
        waiting: (2.0, 3),
    },
];

/// Outcome of a case.
struct LimitOutcome {
    ended_ns: u64,
    waiting_mean: f64,
    waiting_p99: u32,
}

fn trace_of(case: &LimitCase) -> Trace {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = String::new();
    let mut block = 0_u32;
    for at in 0..case.requests {
        let input = random.u32(case.input.0..=case.input.1);
        let output = random.u32(case.output.0..=case.output.1);
        let next = block + input.div_ceil(512);
        let hashes: Vec<u32> = (block..next).collect();
        block = next;
        let _infallible = writeln!(
            text,
            "{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": {output}, \
             \"hash_ids\": {hashes:?}}}"
        );
    }
    parse(&text).unwrap()
}

/// Serves the whole trace, with its arrivals spread over `arrival_ns`.
fn outcome(case: &LimitCase, trace: &Trace, declares_limit: bool, arrival_ns: f64) -> LimitOutcome {
    let speed =
        ModelSpeed { sequences_max: case.sequences_max, declares_limit, ..ModelSpeed::default() };
    let alone = trace.requests.iter().map(|request| speed.prefill_ns(request.input_tokens));
    let work: u64 = alone.sum();
    let mut config = Config::default();
    config.flow.queue.depth_max = u32::MAX;
    config.flow.queue.wait_max = Duration::from_secs(1_000_000);
    let plan = SimPlan {
        ranks: 2,
        load_percent: work as f64 / 2.0 / arrival_ns * 100.0,
        blocks: BlockRoom { device: Some(case.kv_blocks), ..BlockRoom::default() },
        engines: vec![speed],
        config,
        ..SimPlan::default()
    };
    let onlooker = RunObserver { ended: &mut |_| (), clock: &|| 0 };
    let run = run(trace, &plan, Rule::Own(Policy::Kv), onlooker);
    assert_eq!(run.summary.refused, 0, "{}", case.name);
    // Leaves out the start, before the first reports, and the end, when the engines run empty.
    let warm = (run.ended_ns / 3)..(run.ended_ns / 10 * 9);
    let settled = run.loads.iter().filter(|load| warm.contains(&load.at_ns));
    let mut waiting: Vec<u32> = settled.map(|load| load.waiting).collect();
    waiting.sort_unstable();
    let sum: f64 = waiting.iter().copied().map(f64::from).sum();
    LimitOutcome {
        ended_ns: run.ended_ns,
        waiting_mean: sum / waiting.len() as f64,
        waiting_p99: waiting[waiting.len() * 99 / 100],
    }
}

/// K3. `cargo test -p forebay-simulate ten_times -- --nocapture` prints the table of
/// `docs/decisions/0115-limits-are-learned.md`.
#[test]
fn at_ten_times_the_load_two_requests_wait_in_an_engine_and_none_of_it_idles() {
    println!("| engines | capacity used | waiting: mean | p99 |\n|---|---|---|---|");
    for case in &CASES {
        let trace = trace_of(case);
        let declared = outcome(case, &trace, true, 1.0);
        let tenth = declared.ended_ns as f64 / 10.0;
        let declared = outcome(case, &trace, true, tenth);
        let learned = outcome(case, &trace, false, tenth);
        let used = declared.ended_ns as f64 / learned.ended_ns as f64;
        let LimitOutcome { waiting_mean, waiting_p99, .. } = learned;
        println!("| {} | {used:.3} | {waiting_mean:.2} | {waiting_p99} |", case.name);
        assert!(used >= 0.98, "{}: {used} of the capacity", case.name);
        let (mean_max, p99_max) = case.waiting;
        assert!(waiting_mean <= mean_max && waiting_p99 <= p99_max, "{}", case.name);
    }
}

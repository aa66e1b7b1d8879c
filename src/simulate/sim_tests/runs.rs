//! Whole runs, which repeat.

use super::*;

#[test]
fn a_seed_is_one_run_and_every_rule_serves_everything() {
    let trace = Scenario::Shared.trace(3).first(400);
    for (name, rule) in Rule::all() {
        let plan = SimPlan { ranks: 4, load_percent: 60.0, seed: 7, ..SimPlan::default() };
        let run = simulate(&trace, &plan, rule);
        assert_eq!(run, simulate(&trace, &plan, rule), "{name}");
        assert_eq!((run.requests, run.refused), (400, 0), "{name}");
        assert!(run.times.ttft_ms_p50 > 1.0 && run.goodput > 0.05, "{name}: {run:?}");
    }
}

#[test]
fn replicas_serve_everything_and_know_of_each_other_later() {
    let trace = Scenario::Shared.trace(2).first(400);
    let plan = SimPlan { ranks: 4, load_percent: 120.0, ..SimPlan::default() };
    let many = SimPlan { replicas: 3, ..plan.clone() };
    let kv = || "kv".parse().unwrap();
    let alone = simulate(&trace, &plan, kv());
    let shared = simulate(&trace, &many, kv());
    assert_eq!((alone.requests, shared.requests, shared.refused), (400, 400, 0));
    assert!(shared.times.ttft_ms_mean > alone.times.ttft_ms_mean, "{shared:?} {alone:?}");
    let mut ended = |_| ();
    let ticks = std::cell::Cell::new(0);
    let clock = || ticks.replace(ticks.get() + 1);
    let used = run(&trace, &many, kv(), RunObserver { ended: &mut ended, clock: &clock }).used;
    assert!(used.decisions >= 400 && used.decision_ns >= 400, "{used:?}");
    assert!(used.events > 3 * 400 && used.index_bytes > 0, "{used:?}");
}

#[test]
fn replicas_with_messages_serve_nearly_as_soon_as_one_router() {
    let trace = Scenario::Documents.trace(1).first(800);
    let plan = SimPlan { load_percent: 80.0, ..SimPlan::default() };
    let mean = |replicas, url: Option<&str>| {
        let mut plan = SimPlan { replicas, ..plan.clone() };
        plan.config.nats.url = url.map(str::to_owned);
        simulate(&trace, &plan, "kv".parse().unwrap()).times.ttft_ms_mean
    };
    let one = mean(1, None);
    let apart = mean(2, None);
    let together = mean(2, Some("nats://127.0.0.1:4222"));
    assert!(together < 1.12 * one && together < 0.9 * apart, "{one} {together} {apart}");
}

#[test]
fn routing_by_prefix_finds_more_than_routing_in_turn() {
    let trace = Scenario::Documents.trace(1).first(600);
    let plan = SimPlan::default();
    let run = |name: &str| simulate(&trace, &plan, name.parse().unwrap());
    let kv = run("kv");
    let turn = run("round_robin");
    assert!(kv.hits.hit_rate > 1.5 * turn.hits.hit_rate, "{kv:?} {turn:?}");
    assert!(kv.times.ttft_ms_mean < turn.times.ttft_ms_mean, "{kv:?} {turn:?}");
}

#[test]
fn requests_without_a_stream_cost_little() {
    let mean = |whole_percent| {
        let trace = Trace { whole_percent, ..Scenario::Documents.trace(1).first(800) };
        let plan = SimPlan { load_percent: 85.0, ..SimPlan::default() };
        simulate(&trace, &plan, "kv".parse().unwrap()).times.ttft_ms_mean
    };
    let streams = mean(0);
    assert!(mean(50) < 1.12 * streams, "{} and {streams}: their prompts pass by time", mean(50));
    assert!(mean(100) < 1.12 * streams, "{} and {streams}: by the engine's count", mean(100));
}

#[test]
fn slow_ranks_get_what_they_can_compute() {
    let trace = Scenario::Documents.trace(1).first(1_600);
    let engines = [20_000.0, 5_000.0].map(ModelSpeed::of_prompts).to_vec();
    let plan = SimPlan { ranks: 4, engines, ..SimPlan::default() };
    let run = |name: &str| simulate(&trace, &plan, name.parse().unwrap());
    let kv = run("kv");
    let lmetric = run("lmetric");
    assert!(kv.times.ttft_ms_mean < 0.9 * lmetric.times.ttft_ms_mean, "{kv:?} {lmetric:?}");
}

/// The trace with starts that offer the load, in percent, for the first `until` requests, and 70 %
/// from then on. Also returns the time of the change.
fn paced(trace: &Trace, plan: &mut SimPlan, load_percent: f64, until: usize) -> (Trace, u64) {
    let mut trace = trace.clone();
    let mut at_ns = 0.0;
    let mut begins = 0;
    let mut work = 0.0;
    for (id, request) in trace.requests.iter_mut().enumerate() {
        request.turn = TurnStart::At { ns: at_ns as u64 };
        if id == until {
            begins = at_ns as u64;
        }
        let load = if id < until { load_percent } else { 70.0 };
        let alone = plan.alone_ns(request.input_tokens) as f64;
        work += alone;
        at_ns += alone / (plan.ranks as f64 * load / 100.0);
    }
    let Some(TurnStart::At { ns: span }) = trace.requests.last().map(|request| request.turn) else {
        panic!("the last request has a start");
    };
    // The time of the trace is the time of the run.
    plan.load_percent = 100.0 * work / (plan.ranks as f64 * span as f64);
    (trace, begins)
}

/// After an overload, the backlog, the emptied caches and the wrong predictions recover without
/// help.
#[test]
fn a_full_queue_empties_by_itself_within_a_minute() {
    const MINUTE_NS: u64 = 60_000_000_000;
    for scenario in [Scenario::Documents, Scenario::Shared] {
        let all = scenario.trace(1).first(6_000);
        let until = all.requests.len() / 3;
        let goodput = |load_percent: f64| {
            let mut plan = SimPlan { ranks: 4, ..SimPlan::default() };
            let (trace, begins) = paced(&all, &mut plan, load_percent, until);
            let outcomes = crate::world::outcomes(&trace, &plan, "kv".parse().unwrap());
            let part = |from: u64, to: u64| {
                let of = outcomes.iter().filter(|(at, _)| (from..to).contains(at));
                let good = of.clone().filter(|(_, outcome)| outcome.is_good()).count();
                (good as f64 / of.clone().count().max(1) as f64, of.count())
            };
            (part(0, begins).0, part(begins + MINUTE_NS, u64::MAX))
        };
        let (_, usual) = goodput(70.0);
        let (overload, after) = goodput(400.0);
        assert!(usual.1 > 300 && after.1 > 300, "{usual:?} {after:?}");
        assert!(overload < usual.0 - 0.1, "{scenario:?}: {overload} is no overload");
        assert!((usual.0 - after.0).abs() <= 0.02, "{scenario:?}: {usual:?} {after:?}");
    }
}

/// Without waiting requests, the queue changes nothing: mean TTFT in ms of the router that served
/// in order of arrival, with caches of a quarter of all blocks.
#[test]
fn light_load_costs_no_more_than_in_the_order_of_arrival() {
    let figures = [("chats", 20.6), ("shared", 25.8), ("agents", 468.3), ("documents", 587.1)];
    for (name, usual_ms) in figures {
        let trace = name.parse::<Scenario>().unwrap().trace(1);
        let device = (trace.distinct_blocks() / 4 / 4).max(trace.longest_blocks() + 1);
        let blocks = BlockRoom { device: Some(device), ..BlockRoom::default() };
        let plan = SimPlan { ranks: 4, load_percent: 30.0, blocks, ..SimPlan::default() };
        let run = simulate(&trace, &plan, "kv".parse().unwrap());
        assert!(run.times.ttft_ms_mean < 1.04 * usual_ms, "{name}: {run:?}");
        assert_eq!(run.refused, 0, "{name}");
    }
}

/// A change of these figures is a change of the policy. `FOREBAY_WRITE_SUMMARIES=1` rewrites the
/// figures.
#[test]
fn fixed_seeds_have_the_figures_of_the_file() {
    let mut found = String::new();
    let unequal = [40_000.0, 10_000.0].map(ModelSpeed::of_prompts);
    for name in ["chats", "shared", "agents", "documents"] {
        let trace = name.parse::<Scenario>().unwrap().trace(1).first(400);
        let cases: [(f64, &[ModelSpeed], &str); 3] =
            [(30.0, &[], ""), (120.0, &[], ""), (80.0, &unequal, ", unequal ranks")];
        for (load_percent, engines, of) in cases {
            let engines = engines.to_vec();
            let plan = SimPlan { ranks: 4, load_percent, engines, ..SimPlan::default() };
            let run = simulate(&trace, &plan, "kv".parse().unwrap());
            let ttft = run.times;
            let hits = run.hits.hit_rate;
            found += &format!(
                "{name} {load_percent} %{of}: hits {hits:.3}, TTFT mean {:.0} ms, p99 {:.0} ms, \
                 goodput {:.3}, max/mean {:.2}, refused {}\n",
                ttft.ttft_ms_mean,
                ttft.ttft_ms_p99,
                run.goodput,
                run.load_max_over_mean,
                run.refused
            );
        }
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/simulate/summaries.txt");
    if std::env::var_os("FOREBAY_WRITE_SUMMARIES").is_some() {
        std::fs::write(file, found).unwrap();
        return;
    }
    assert_eq!(found, std::fs::read_to_string(file).unwrap_or_default());
}

//! Engines by hand, traces by hand, and runs that repeat.

use super::*;
use crate::production_router::{ProductionRouter, TraceArrival};
use crate::ranks::engine::{EngineNews, EngineRequest, EngineTotals, ModelEngine};
use crate::ranks::host_tier::HostTier;
use crate::ranks::kv_cache::{CacheChange, KvCache, PoolHandle};
use crate::traces::trace_file::parse;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_config::{Config, Policy, QueueMode};
use std::cell::RefCell;
use std::rc::Rc;

fn trace(text: &str) -> Trace {
    parse(text).unwrap()
}

fn mooncake(timestamp: u64, input: u32, output: u32, hashes: &[u64]) -> String {
    format!(
        "{{\"timestamp\": {timestamp}, \"input_length\": {input}, \"output_length\": {output}, \
         \"hash_ids\": {hashes:?}}}\n"
    )
}

/// Runs an engine alone until it is idle; returns the ends by request, and the hits.
fn run_alone(trace: &Trace, blocks: usize, at: &[u64]) -> (Vec<(u32, u64)>, u64, u64) {
    let (ended, totals) = run_with(KvCache::new(blocks, 0), trace, at);
    (ended, totals.cached_tokens, totals.preempted)
}

fn run_with(cache: KvCache, trace: &Trace, at: &[u64]) -> (Vec<(u32, u64)>, EngineTotals) {
    let mut engine = ModelEngine::new(ModelSpeed::default(), cache);
    let mut ended = Vec::new();
    let mut news = Vec::new();
    let mut next = 0;
    loop {
        let arrival = at.get(next).copied().unwrap_or(u64::MAX);
        match engine.ends_at().filter(|&end| end <= arrival) {
            Some(end) => {
                engine.end_steps(trace, end, &mut news);
                ended.extend(news.drain(..).filter_map(|news| match news {
                    EngineNews::Ended(id) => Some((id, end)),
                    EngineNews::First(_) => None,
                }));
            }
            None if arrival < u64::MAX => {
                let request = EngineRequest { id: next as u32, ..EngineRequest::default() };
                engine.arrive(request, trace, arrival);
                next += 1;
            }
            None => return (ended, *engine.totals()),
        }
    }
}

#[test]
fn a_prompt_alone_takes_its_own_time_and_its_steps() {
    let text = mooncake(0, 1_000, 11, &[1, 2]);
    let trace = trace(&text);
    let rules = ModelSpeed::default();
    let (ended, ..) = run_alone(&trace, 10, &[0]);
    let prefill = rules.prefill_ns(1_000);
    let step = rules.step.weights_ns + 1_005.5 * rules.step.kv_read_ns;
    let expected = prefill as f64 + 10.0 * step;
    assert!((ended[0].1 as f64 - expected).abs() < 0.01 * expected, "{ended:?} {expected}");
}

#[test]
fn what_is_held_is_not_computed_and_answers_are_held_too() {
    // The second request extends the first with its answer; the third shares a block.
    let text = mooncake(0, 1_024, 513, &[1, 2])
        + &mooncake(1, 2_000, 1, &[1, 2, 3, 4])
        + &mooncake(2, 1_024, 1, &[1, 9]);
    let trace = trace(&text);
    let far = 1_000_000_000_000;
    let (ended, cached, _) = run_alone(&trace, 20, &[0, far, 2 * far]);
    assert_eq!((ended.len(), cached), (3, 1_536 + 512));
    let (_, cached, _) = run_alone(&trace, 5, &[0, far, 2 * far]);
    assert_eq!(cached, 1_536 + 512, "the oldest goes first");
}

#[test]
fn what_left_the_device_comes_back_from_the_host() {
    let text = mooncake(0, 2_048, 1, &[1, 2, 3, 4])
        + &mooncake(1, 2_048, 1, &[5, 6, 7, 8])
        + &mooncake(2, 2_100, 1, &[1, 2, 3, 4, 9])
        + &mooncake(3, 400, 1, &[20]);
    let trace = trace(&text);
    let far = 1_000_000_000_000;
    // The last request comes while the third waits for its blocks.
    let at = [0, far, 2 * far, 2 * far + 1];
    let rules = ModelSpeed::default();
    let (ended, totals) = run_with(KvCache::new(6, 20), &trace, &at);
    // The first block of the first request is still on the device.
    assert_eq!((totals.cached_tokens, totals.loaded_tokens), (2_048, 1_536), "{totals:?}");
    let first = ended[2];
    let third = ended[3];
    assert_eq!((first.0, third.0), (3, 2), "nobody waits for the blocks of another");
    let load_ns = third.1 - 2 * far;
    assert!(load_ns >= rules.load_ns(1_536), "{load_ns}");
    assert!(load_ns < rules.load_ns(1_536) + 2 * rules.prefill_ns(512), "{load_ns}");
    assert!(load_ns < rules.prefill_ns(2_048) / 2, "{load_ns}");
    let (_, totals) = run_with(KvCache::new(6, 2), &trace, &at);
    assert_eq!(totals.loaded_tokens, 0, "the host has room for two blocks only");
}

#[test]
fn a_block_is_lost_when_neither_tier_has_it() {
    let mut cache = KvCache::new(2, 2);
    for block in 1..=4 {
        assert!(cache.admit(&[], 1));
        let slot = cache.commit(block);
        cache.release(&[slot], 0);
    }
    use CacheChange::{Evicted, Lost, Reached, Stored};
    let expected = [
        [Stored(1), Reached(1)].as_slice(),
        &[Stored(2), Reached(2)],
        // The host drops block 1, which the device has dropped before.
        &[Evicted(1), Stored(3), Reached(3), Lost(1)],
        &[Evicted(2), Stored(4), Reached(4), Lost(2)],
    ];
    assert_eq!(cache.take_changes(), expected.concat());
    assert_eq!(cache.host_prefix([3, 4, 1].into_iter()), 2);
}

#[test]
fn a_rank_is_chosen_for_what_its_host_has() {
    let trace = Scenario::Documents.trace(1).first(500);
    let run = |host: usize, credit_percent: u32| {
        // No more on the device than the longest prompt.
        let blocks = BlockRoom { device: Some(1), host, pool: 0 };
        let mut plan = SimPlan { ranks: 4, blocks, ..SimPlan::default() };
        plan.config.kv.host_credit_percent = credit_percent;
        simulate(&trace, &plan, "kv".parse().unwrap())
    };
    let without = run(0, 80);
    let worthless = run(10_000, 0);
    let with = run(10_000, 80);
    assert_eq!(without.hits.host_hit_rate, 0.0, "{without:?}");
    assert!(
        with.hits.host_hit_rate > worthless.hits.host_hit_rate + 0.05,
        "{with:?} {worthless:?}"
    );
    assert!(with.times.ttft_ms_mean < without.times.ttft_ms_mean, "{with:?} {without:?}");
}

#[test]
fn what_one_rank_wrote_to_the_pool_another_loads() {
    let text = mooncake(0, 2_048, 1, &[1, 2, 3, 4]);
    let trace = trace(&(text.clone() + &text));
    let pool: PoolHandle = Rc::new(RefCell::new(HostTier::new(3)));
    let cache = || KvCache::new(6, 0).with_pool(Some(Rc::clone(&pool)));
    let mut writer = cache();
    assert!(writer.admit(&[], 4));
    for block in 1..=4 {
        writer.commit(block);
    }
    use CacheChange::{Pooled, Stored};
    let stores = (1..=4).flat_map(|block| [Stored(block), Pooled(block)]);
    assert_eq!(writer.take_changes(), stores.collect::<Vec<_>>());
    assert_eq!(writer.pool_prefix([1, 2].into_iter()), 0, "the pool has room for three");
    assert_eq!(writer.pool_prefix([2, 3, 1].into_iter()), 2);
    let rules = ModelSpeed::default();
    let run = |blocks: usize| {
        pool.replace(HostTier::new(blocks));
        run_with(cache(), &trace, &[0]);
        run_with(cache(), &trace, &[0])
    };
    let (_, alone) = run(0);
    let (ended, totals) = run(10);
    assert_eq!((alone.cached_tokens, alone.pooled_tokens), (0, 0));
    // The last token is always computed, and with it its block.
    assert_eq!((totals.cached_tokens, totals.pooled_tokens), (1_536, 1_536));
    assert!(ended[0].1 >= rules.send_ns(1_536), "{ended:?}");
    assert!(ended[0].1 < rules.prefill_ns(2_048) / 2, "{ended:?}");
}

#[test]
fn what_is_in_the_pool_counts_for_each_rank_until_it_is_too_old() {
    let trace = trace(&mooncake(0, 2_048, 1, &[1, 2, 3, 4]));
    let worth = |credit_percent: u32, minutes: u64| {
        let blocks = BlockRoom { pool: 10, ..BlockRoom::default() };
        let mut plan = SimPlan { ranks: 2, blocks, ..SimPlan::default() };
        plan.config.kv.pool_credit_percent = credit_percent;
        let mut router = ProductionRouter::new(&trace, &plan, plan.config.clone(), 1);
        let changes = trace.requests[0].blocks.iter().take(3).map(|&block| Pooled(block));
        router.apply_events(RankIndex(0), &changes.collect::<Vec<_>>(), NanosSinceStart(0));
        let now = NanosSinceStart(minutes * 60_000_000_000);
        router.fade(now);
        router.look(TraceArrival { id: 0, request: &trace.requests[0], now });
        [0, 1].map(|rank| router.reported_tokens(RankIndex(rank)))
    };
    use CacheChange::Pooled;
    assert_eq!([worth(50, 1), worth(80, 1)], [[768; 2], [1_228; 2]]);
    assert_eq!(worth(0, 1), [0; 2], "the router follows no pool");
    assert_eq!(worth(50, 31), [0; 2], "`kv.tier_ttl` has passed");
}

#[test]
fn a_pool_saves_time() {
    let trace = Scenario::Documents.trace(1).first(300);
    let run = |pool: usize| {
        let blocks = BlockRoom { device: Some(1), host: 0, pool };
        let plan = SimPlan { ranks: 4, blocks, ..SimPlan::default() };
        simulate(&trace, &plan, "kv".parse().unwrap())
    };
    let without = run(0);
    let with = run(100_000);
    assert_eq!(without.hits.pool_hit_rate, 0.0, "{without:?}");
    assert!(with.hits.pool_hit_rate > 0.1, "{with:?}");
    assert!(with.times.ttft_ms_mean < without.times.ttft_ms_mean, "{with:?} {without:?}");
}

#[test]
fn one_rank_computes_and_another_answers() {
    let text = mooncake(0, 2_048, 11, &[1, 2, 3, 4]) + &mooncake(60_000, 100, 1, &[9]);
    let trace = trace(&text);
    let rules = ModelSpeed::default();
    let mut config = Config::default();
    config.flow.disaggregation.uncached_tokens_min = 0;
    let plan = SimPlan { ranks: 2, prefill_ranks: 1, config, ..SimPlan::default() };
    let run = simulate(&trace, &plan, "kv".parse().unwrap());
    assert_eq!((run.requests, run.refused), (2, 0));
    // The prompt, its KV on the network, and a step of the decode rank.
    let expected = rules.prefill_ns(2_048) + rules.send_ns(2_047) + rules.step.weights_ns as u64;
    let slowest = run.times.ttft_ms_p99 * 1e6;
    assert!((slowest - expected as f64).abs() < 0.02 * expected as f64, "{run:?} {expected}");
    let step_ms = (rules.step.weights_ns + 2_053.5 * rules.step.kv_read_ns) / 1e6;
    assert!((run.times.tpot_ms_p99 - step_ms).abs() < 0.01 * step_ms, "{run:?} {step_ms}");
}

#[test]
fn ranks_have_their_speeds_in_turn() {
    let engines = [2_000.0, 1_000.0].map(ModelSpeed::of_prompts).to_vec();
    let plan = SimPlan { ranks: 3, engines, load_percent: 50.0, ..SimPlan::default() };
    assert_eq!(
        [0, 1, 2].map(|rank| plan.speed(rank).prefill_ns(1_600)),
        [800_000_000, 1_600_000_000, 800_000_000]
    );
    assert_eq!(plan.alone_ns(1_600), 960_000_000, "5,000 tokens a second in all");
    assert_eq!(SimPlan { ranks: 1, ..plan.clone() }.alone_ns(1_600), 800_000_000);
    let trace = Scenario::Shared.trace(2).first(400);
    // Round robin, whatever the ranks have to compute.
    let mut plan = plan;
    plan.config.flow.queue.prefill_tokens_max = Some(0);
    let in_turn = simulate(&trace, &plan, "round_robin".parse().unwrap());
    // Equal tokens each: the slow rank has half of all work.
    assert!((1.4..1.6).contains(&in_turn.load_max_over_mean), "{in_turn:?}");
}

#[test]
fn pairs_serve_everything_and_prompts_stay_on_the_prefill_ranks() {
    let trace = Scenario::Shared.trace(2).first(400);
    let both = SimPlan { ranks: 4, load_percent: 60.0, ..SimPlan::default() };
    let pairs = SimPlan { prefill_ranks: 2, ..both.clone() };
    let kv = || "kv".parse().unwrap();
    let both = simulate(&trace, &both, kv());
    let pairs = simulate(&trace, &pairs, kv());
    assert_eq!((pairs.requests, pairs.refused), (400, 0));
    assert!(pairs.hits.hit_rate > 0.8 * both.hits.hit_rate, "{pairs:?} {both:?}");
    let turn = SimPlan { ranks: 4, prefill_ranks: 2, load_percent: 60.0, ..SimPlan::default() };
    let turn = simulate(&trace, &turn, "round_robin".parse().unwrap());
    assert!(pairs.hits.hit_rate > turn.hits.hit_rate + 0.02, "{pairs:?} {turn:?}");
}

#[test]
fn sequences_that_outgrow_the_cache_are_computed_again() {
    let text = mooncake(0, 1_024, 1_600, &[1, 2]) + &mooncake(0, 1_024, 1_600, &[3, 4]);
    let trace = trace(&text);
    let (ended, _, preempted) = run_alone(&trace, 7, &[0, 0]);
    assert_eq!(ended.len(), 2, "both end");
    assert_eq!(preempted, 1);
    assert_eq!(ended[0].0, 0, "the last to arrive is preempted");
}

#[test]
fn an_engine_with_numbers_serves_the_lowest_first() {
    let text: String = (0..4).map(|at| mooncake(at, 1_000, 2, &[at, 10 + at])).collect();
    let trace = trace(&text);
    let ended = |priority_scheduling: bool| {
        let rules = ModelSpeed { sequences_max: 1, priority_scheduling, ..ModelSpeed::default() };
        let mut engine = ModelEngine::new(rules, KvCache::new(20, 0));
        for (id, priority) in [(0, 9), (1, 5), (2, -3), (3, 5)] {
            let request = EngineRequest { id, priority, ..EngineRequest::default() };
            engine.arrive(request, &trace, 0);
        }
        let mut ids = Vec::new();
        let mut news = Vec::new();
        while let Some(end) = engine.ends_at() {
            engine.end_steps(&trace, end, &mut news);
            ids.extend(news.drain(..).filter_map(|news| match news {
                EngineNews::Ended(id) => Some(id),
                EngineNews::First(_) => None,
            }));
        }
        ids
    };
    assert_eq!(
        ended(true),
        [0, 2, 1, 3],
        "the first runs; of equal priorities the first to arrive"
    );
    assert_eq!(ended(false), [0, 1, 2, 3]);
}

/// 0120: where all requests wait in the engine, short prompts need not wait for long prompts.
#[test]
fn an_order_for_engines_helps_where_requests_wait_in_engines() {
    let prompt = |at: u64| if at.is_multiple_of(4) { 16_000 } else { 400 };
    let line = |at: u64| {
        mooncake(at * 100, prompt(at), 4, &(0..40).map(|b| at * 40 + b).collect::<Vec<_>>())
    };
    let text: String = (0..800).map(line).collect();
    let trace = trace(&text);
    let mean = |priority_scheduling: bool, engine_priority: bool, mode: QueueMode| {
        let engines = vec![ModelSpeed { priority_scheduling, ..ModelSpeed::default() }];
        let mut plan = SimPlan { ranks: 2, engines, load_percent: 110.0, ..SimPlan::default() };
        let queue = &mut plan.config.flow.queue;
        queue.mode = mode;
        queue.engine_priority = engine_priority;
        queue.kv_use_percent = 0;
        simulate(&trace, &plan, Rule::Own(Policy::Kv)).times.ttft_ms_mean
    };
    let off = mean(true, false, QueueMode::Off);
    let on = mean(true, true, QueueMode::Off);
    assert!(on < 0.7 * off, "{on} {off}");
    assert!(same(mean(false, true, QueueMode::Off), off), "an engine that does not listen");
    let pool = [false, true].map(|is_on| mean(true, is_on, QueueMode::Pool));
    assert!((pool[1] / pool[0] - 1.0).abs() < 0.1, "the router's queue has the order: {pool:?}");
}

fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < f64::EPSILON
}

#[test]
fn turns_of_a_session_follow_each_other() {
    let session = |requests: &str| {
        let fields = r#""hash_id_scope":"local","tool_tokens":64,"system_tokens":0"#;
        format!("{{\"id\":\"a\",\"block_size\":64,{fields},\"requests\":[{requests}]}}\n")
    };
    let first = r#"{"t":0,"type":"n","model":"m","in":128,"out":5,"hash_ids":[1,2]}"#;
    let branch = r#"{"t":9,"requests":[{"t":0,"in":64,"out":1,"hash_ids":[7]}]}"#;
    let last = r#"{"t":12,"think_time":2.5,"in":192,"out":5,"hash_ids":[1,2,3]}"#;
    let trace = trace(&(session(&[first, branch, last].join(",")) + &session(first)));
    let turns: Vec<TurnStart> = trace.requests.iter().map(|request| request.turn).collect();
    assert_eq!(turns[1], TurnStart::After { request: 0, think_ns: 0 });
    assert_eq!(turns[2], TurnStart::After { request: 1, think_ns: 2_500_000_000 });
    assert!(matches!(turns[3], TurnStart::At { .. }));
    let blocks = |at: usize| trace.requests[at].blocks.clone();
    assert_eq!(blocks(0)[0], blocks(3)[0], "the same tools");
    assert_ne!(blocks(0)[1], blocks(3)[1], "hashes of one session");
    assert_eq!(blocks(2)[..2], blocks(0)[..]);
}

#[test]
fn sessions_start_when_they_say() {
    let session = |start: &str| {
        let turn = format!("{{\"t\":{start},\"in\":64,\"out\":1,\"hash_ids\":[1]}}");
        format!("{{\"id\":\"a\",\"block_size\":64,\"requests\":[{turn},{turn}]}}\n")
    };
    let trace = trace(&[session("0"), session("7.5"), session("0")].concat());
    let starts = [0, 2, 4].map(|at: usize| trace.requests[at].turn);
    let expected = [0, 7_500_000_000, 2_000_000_000];
    assert_eq!(starts, expected.map(|ns| TurnStart::At { ns }));
    // The second turn of a session follows the first at once: they start together.
    assert_eq!(trace.requests[3].turn, TurnStart::After { request: 2, think_ns: 0 });
}

#[test]
fn faults_of_a_trace_name_their_line() {
    assert_eq!(parse("").map(|_| ()), Err(None));
    let fault = parse(&(mooncake(0, 9, 1, &[1]) + "{\n")).map(|_| ()).unwrap_err();
    assert_eq!(fault.unwrap().0, 1);
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n";
    assert_eq!(trace(azure).requests[0].input_tokens, 374);
    assert!(parse(&azure.replace("374", "x")).is_err());
}

#[test]
fn an_engine_file_says_what_requests_and_steps_take() {
    let text = "request_ns = 2e6\n[step]\nfixed_ns = 3e6\ntoken_ns = 1000\nattention_ns = 0\n\
                weights_ns = 0\nkv_read_ns = 0\n";
    let engine = ModelSpeed::from_toml(text).unwrap();
    assert_eq!(engine.transfer, ModelSpeed::default().transfer);
    assert_eq!(engine.prefill_ns(1_000), 4_000_000);
    let trace = trace(&mooncake(0, 1_000, 3, &[1, 2]));
    let plan = SimPlan { ranks: 1, engines: vec![engine], ..SimPlan::default() };
    let times = simulate(&trace, &plan, Rule::all()[0].1).times;
    assert_eq!(times.ttft_ms_mean, 6.0, "the prompt's step, and the time beside steps");
    assert_eq!(times.tpot_ms_mean, 3.001);
}

#[test]
fn a_rank_holds_what_the_memory_of_its_engine_holds() {
    let trace = trace(&mooncake(0, 1_000, 3, &[1, 2]));
    let engines = vec![ModelSpeed::default(), ModelSpeed::from_toml("kv_tokens = 5121").unwrap()];
    let plan = SimPlan { ranks: 2, engines, ..SimPlan::default() };
    assert_eq!(plan.speed(0).kv_tokens, 427_000);
    assert_eq!([0, 1].map(plan.device_blocks(&trace)), [834, 11]);
    let blocks = BlockRoom { device: Some(20), ..BlockRoom::default() };
    assert_eq!(SimPlan { blocks, ..plan.clone() }.device_blocks(&trace)(1), 20);
    let long = self::trace(&mooncake(0, 6_000, 200, &[1]));
    let plan = SimPlan { engines: vec![plan.speed(1)], ..SimPlan::default() };
    assert_eq!(plan.device_blocks(&long)(0), 14, "the longest request, and a block");
}

#[test]
fn faults_of_an_engine_file_name_their_key() {
    for (text, reason) in [
        ("[step]\ntoken_ns = -1", "step.token_ns"),
        ("request_ns = nan", "request_ns"),
        ("[transfer]\nhost_token_ns = inf", "transfer.host_token_ns"),
        ("sequences_max = 0", "sequences_max"),
        ("sequences_max = 4294967295", "give 1 to 1048576"),
        ("step_tokens_max = 0", "step_tokens_max"),
        ("kv_tokens = 0", "kv_tokens: give 1 to 1073741824"),
        ("[step]\ntokens_ns = 1", "tokens_ns"),
        ("[step]\nfixed_ns = 0\ntoken_ns = 0\nweights_ns = 0", "fixed_ns"),
        ("[step", "line 1"),
    ] {
        let error = ModelSpeed::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    // The slowest valid figures end too.
    let engine = ModelSpeed::from_toml("[step]\nattention_ns = 1e12").unwrap();
    let trace = trace(&mooncake(0, 100_000, 300, &[1, 2]));
    let plan = SimPlan { ranks: 1, engines: vec![engine], ..SimPlan::default() };
    assert_eq!(simulate(&trace, &plan, Rule::all()[0].1).requests, 1);
}

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

//! Engines with traces by hand.

use super::*;

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

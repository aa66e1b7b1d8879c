//! Files of traces and of engines.

use super::*;

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

//! Answers of engines, whole and broken.

use super::readings::{ReadFault, Readings};
use super::{read_load_stat, read_loads, read_metrics};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LearnedLimits, LoadBoard, LoadReading, OwnLoad, TokenProgress};
use forebay_fleet::worker::test_support::{rank, worker};
use forebay_fleet::worker::{FleetSnapshot, LimitSource, Rank};
use proptest::prelude::*;

/// Recorded message of SGLang 0.5.19.
const LOAD_STAT: &[u8] = b"\x96\xa8LoadStat\x0c\x03\xcd\xa0\x00\xce\x00\x04\x00\x00\x01";
/// Recorded message of 0.5.23, with five more elements.
const LOAD_STAT_LONG: &[u8] =
    b"\x9b\xa8LoadStat\x0c\x03\xcd\xa0\x00\xce\x00\x04\x00\x00\xc0\xcd\x02\x00\x00\x00\x00\x00";

type Read = fn(&str, &mut Readings);

fn read(read: Read, text: &str, ranks: usize) -> (Vec<(usize, LoadReading)>, Vec<ReadFault>) {
    let mut readings = Readings::default();
    readings.begin(ranks);
    read(text, &mut readings);
    (readings.iter().collect(), faults(&readings))
}

#[test]
fn ranks_are_those_of_the_deployment_not_of_the_url() {
    let mut readings = Readings::default();
    readings.begin_at(4, 2);
    let text = ["3", "4", "5", "6", "-1"].map(|engine| {
        format!("vllm:num_requests_running{{engine=\"{engine}\"}} {engine}\nvllm:num_requests_waiting{{engine=\"{engine}\"}} 0\n")
    });
    read_metrics(&text.concat(), &mut readings);
    let running: Vec<_> = readings.iter().map(|(rank, reading)| (rank, reading.running)).collect();
    assert_eq!(running, [(0, 4), (1, 5)]);
    assert_eq!(readings.fault_count(ReadFault::Rank), 6, "two figures of each of the others");
}

fn faults(readings: &Readings) -> Vec<ReadFault> {
    let happened = |(fault, _): &(ReadFault, &str)| {
        let count = usize::try_from(readings.fault_count(*fault)).unwrap();
        std::iter::repeat_n(*fault, count)
    };
    ReadFault::ALL.iter().flat_map(happened).collect()
}

fn reading(running: u32, waiting: u32) -> LoadReading {
    LoadReading { running, waiting, ..LoadReading::default() }
}

#[test]
fn the_start_of_the_process_is_read_where_it_is_a_time() {
    for (value, wanted) in [
        ("1.7960000005e+09", Some(1_796_000_000_500)),
        ("1796000001", Some(1_796_000_001_000)),
        ("0", None),
        ("-1", None),
        ("NaN", None),
        ("soon", None),
        ("1e300", None),
    ] {
        let mut readings = Readings::default();
        readings.begin(1);
        read_metrics(&format!("process_start_time_seconds {value}\n"), &mut readings);
        assert_eq!(readings.started_ms, wanted, "{value}");
    }
}

#[test]
fn recorded_metrics_of_vllm_are_read() {
    let python = include_str!("../../tests/data/workers/vllm-0.32.0/metrics.txt");
    let (ranks, faults) = read(read_metrics, python, 1);
    let idle = LoadReading {
        capacity_tokens: Some(2_048),
        kv_permille: Some(0),
        progress: counting(1, Some(53)),
        ..LoadReading::default()
    };
    assert!(idle.is_idle());
    assert_eq!((ranks, faults), (vec![(0, idle)], vec![]));
    let rust = include_str!("../../tests/data/workers/vllm-rs-0.33.0/metrics.txt");
    let (ranks, faults) = read(read_metrics, rust, 2);
    assert_eq!((ranks.len(), faults), (2, vec![]));
}

/// K3: the figures of a full engine in the format of four versions. 8 requests run, and 492 wait
/// for a place.
#[test]
fn the_limit_of_vllm_is_learned_from_the_words_of_each_version() {
    let all = "vllm:num_requests_running{L} 8\nvllm:num_requests_waiting{L} 492\n";
    let versions = [
        (r#"model_name="m""#, "vllm:gpu_cache_usage_perc{L} 0.5\n"),
        (r#"engine="0",model_name="m""#, "vllm:gpu_cache_usage_perc{L} 0.5\n"),
        (r#"engine="0",model_name="m""#, "vllm:kv_cache_usage_perc{L} 0.5\n"),
        (
            r#"model_name="m",engine="0""#,
            "vllm:num_requests_waiting_by_reason{L,reason=\"capacity\"} 492\n\
             vllm:num_requests_waiting_by_reason{L,reason=\"deferred\"} 0\n",
        ),
    ];
    for (labels, more) in versions {
        let text = format!("{all}{more}").replace('L', labels);
        let (ranks, faults) = read(read_metrics, &text, 1);
        assert_eq!((ranks.len(), faults), (1, vec![]), "{text}");
        assert_eq!(learned(&ranks[0].1), Some(9), "{text}");
    }
    // Requests that wait for a KV transfer wait for no place.
    let text = format!("{all}{}", versions[3].1.replace(" 0", " 492")).replace('L', versions[3].0);
    let (ranks, _) = read(read_metrics, &text, 1);
    assert_eq!((ranks[0].1.deferred, learned(&ranks[0].1)), (492, None));
}

/// The learned limit after several such reports.
fn learned(reading: &LoadReading) -> Option<u32> {
    let mut limits = LearnedLimits::default();
    let board = LoadBoard::new();
    let mut fleet = FleetSnapshot { workers: vec![worker()], ..FleetSnapshot::default() };
    fleet.ranks.push(Rank { limit_source: LimitSource::Learned, ..rank(0) });
    limits.follow(&fleet, &board);
    for second in 1..=3 {
        let own = OwnLoad { in_flight: 500, ..OwnLoad::default() };
        let now = NanosSinceStart(second * 1_000_000_000);
        limits.observe(RankIndex(0), reading, own, &board, now);
    }
    let places = board.rank(RankIndex(0))?.learned_places();
    fleet.ranks[0].limit_source = LimitSource::Declared;
    limits.follow(&fleet, &board);
    assert_eq!(board.rank(RankIndex(0))?.learned_places(), 0, "forgotten");
    (places > 0).then_some(places)
}

#[test]
fn busy_ranks_and_old_names_are_read() {
    let text = "\
        # HELP vllm:num_requests_running Number.\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"a\\\"b\"} 7.0 1700000000\n\
        vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 1e1\n\
        vllm:num_requests_waiting{engine=\"0\"} 3\n\
        vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 99\n\
        vllm:num_requests_waiting{engine=\"1\"} 0\n\
        vllm:prompt_tokens_total{engine=\"1\"} 500\n\
        vllm:generation_tokens_total{engine=\"1\"} 7\n\
        vllm:gpu_cache_usage_perc{engine=\"0\"} 0.25\n\
        vllm:kv_cache_usage_perc{engine=\"1\"} 1.0\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"None\"} 1.0\n";
    let (ranks, faults) = read(read_metrics, text, 2);
    let first =
        LoadReading { kv_permille: Some(250), capacity_tokens: Some(1_600), ..reading(10, 3) };
    let second = LoadReading {
        kv_permille: Some(1_000),
        progress: TokenProgress { all: Some(507), generated: Some(7), ..TokenProgress::default() },
        ..reading(7, 0)
    };
    assert_eq!((ranks, faults), (vec![(0, first), (1, second)], vec![]));
    let sglang = "\
        sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 4.0\n\
        sglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 2.0\n\
        sglang:num_used_tokens{model_name=\"m\"} 500.0\n\
        sglang:token_usage{model_name=\"m\"} 0.5\n\
        sglang:max_total_num_tokens{model_name=\"m\"} 1000\n";
    let only = LoadReading {
        used_tokens: Some(500),
        capacity_tokens: Some(1_000),
        kv_permille: Some(500),
        ..reading(4, 2)
    };
    assert_eq!(read(read_metrics, sglang, 1), (vec![(0, only)], vec![]));
    assert_eq!(read(read_metrics, sglang, 2).1.len(), 5 + 2, "whose is it?");
}

fn counting(first_tokens: u64, first_token_wait_ms: Option<u64>) -> TokenProgress {
    let first_tokens = Some(first_tokens);
    TokenProgress { first_tokens, first_token_wait_ms, ..TokenProgress::default() }
}

#[test]
fn first_tokens_are_counted_by_rank_over_all_models() {
    let text = "\
        vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 0\n\
        vllm:num_requests_running{engine=\"1\"} 1\nvllm:num_requests_waiting{engine=\"1\"} 0\n\
        vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.1\",model_name=\"m\"} 3.0\n\
        vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 7.0\n\
        vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"lora\"} 2.0\n\
        vllm:time_to_first_token_seconds_sum{engine=\"0\",model_name=\"m\"} 1.25\n\
        vllm:time_to_first_token_seconds_created{engine=\"0\",model_name=\"m\"} 1.7e9\n";
    let counted = LoadReading { progress: counting(9, Some(1_250)), ..reading(1, 0) };
    assert_eq!(read(read_metrics, text, 2), (vec![(0, counted), (1, reading(1, 0))], vec![]));
    // SGLang counts first tokens of all ranks together.
    let sglang = |rank: &str| {
        format!(
            "sglang:num_running_reqs{{{rank}}} 1\nsglang:num_queue_reqs{{{rank}}} 0\n\
             sglang:time_to_first_token_seconds_count{{model_name=\"m\"}} 5\n"
        )
    };
    let one = LoadReading { progress: counting(5, None), ..reading(1, 0) };
    assert_eq!(read(read_metrics, &sglang("model_name=\"m\""), 1), (vec![(0, one)], vec![]));
    let two = format!("{}{}", sglang("dp_rank=\"0\""), sglang("dp_rank=\"1\""));
    let both = vec![(0, reading(1, 0)), (1, reading(1, 0))];
    assert_eq!(read(read_metrics, &two, 2), (both, vec![]));
}

#[test]
fn a_count_of_first_tokens_that_cannot_be_leaves_the_load() {
    let text = |name: &str, value: &str| {
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} 5\n\
             vllm:num_requests_waiting{{engine=\"0\"}} 1\n\
             vllm:time_to_first_token_seconds_count{{engine=\"0\",model_name=\"m\"}} 7.0\n\
             vllm:time_to_first_token_seconds_{name}{{engine=\"0\",model_name=\"lora\"}} {value}\n"
        )
    };
    for value in ["NaN", "+Inf", "-5", "18446744073709551616", "many"] {
        for name in ["count", "sum"] {
            let found = read(read_metrics, &text(name, value), 1);
            assert_eq!(found, (vec![(0, reading(5, 1))], vec![ReadFault::Value]), "{name} {value}");
        }
    }
    let sound = LoadReading { progress: counting(9, None), ..reading(5, 1) };
    assert_eq!(read(read_metrics, &text("count", "2"), 1), (vec![(0, sound)], vec![]));
}

#[test]
fn a_fault_of_a_rank_does_not_affect_other_ranks() {
    use ReadFault::{Rank, RankMissing, Value};
    let text = |rank: &str, running: &str| {
        format!(
            "vllm:num_requests_running{{engine=\"{rank}\"}} {running}\n\
             vllm:num_requests_waiting{{engine=\"{rank}\"}} 0\n\
             vllm:num_requests_running{{engine=\"0\"}} 5\nvllm:num_requests_waiting{{engine=\"0\"}} 1\n"
        )
    };
    let good = vec![(0, reading(5, 1))];
    for running in ["NaN", "+Inf", "-1", "1e9", "", "many"] {
        let read = read(read_metrics, &text("1", running), 2);
        assert_eq!(read, (good.clone(), vec![Value]), "{running:?}");
    }
    for rank in ["-1", "2", "1.5", "", "x", "99999999999999999999"] {
        let read = read(read_metrics, &text(rank, "1"), 2);
        assert_eq!(read, (good.clone(), vec![Rank, Rank, RankMissing]), "{rank:?}");
    }
    let half = "vllm:num_requests_running{engine=\"0\"} 5\n";
    assert_eq!(read(read_metrics, half, 1), (vec![], vec![Value]));
    let percent = format!("{}vllm:kv_cache_usage_perc{{engine=\"0\"}} 55.0\n", text("1", "1"));
    assert_eq!(read(read_metrics, &percent, 2), (vec![(1, reading(1, 0))], vec![Value]));
    for page in ["", "<html>", "up 1\n", "vllm:\nvllm:num_requests_running\nvllm:x{a=\""] {
        assert_eq!(read(read_metrics, page, 1), (vec![], vec![ReadFault::Malformed]), "{page}");
    }
}

#[test]
fn both_json_forms_of_sglang_are_read() {
    let now = r#"{"timestamp":"t","version":"0.5.23","loads":[
        {"dp_rank":1,"num_running_reqs":4,"num_waiting_reqs":2,"num_waiting_uncached_tokens":900,
         "num_used_tokens":250,"max_total_num_tokens":1000,"token_usage":0.25,"gen_throughput":0.0},
        {"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"num_used_tokens":0,"token_usage":null}]}"#;
    let busy = LoadReading {
        waiting_tokens: Some(900),
        used_tokens: Some(250),
        capacity_tokens: Some(1_000),
        kv_permille: Some(250),
        ..reading(4, 2)
    };
    let idle = LoadReading { used_tokens: Some(0), ..reading(0, 0) };
    assert_eq!(read(read_loads, now, 2), (vec![(0, idle), (1, busy)], vec![]));
    let before = r#"[{"dp_rank":null,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":70}]"#;
    let all = LoadReading { used_tokens: Some(70), ..reading(3, 2) };
    assert_eq!(read(read_loads, before, 1), (vec![(0, all)], vec![]));
}

#[test]
fn odd_json_is_counted() {
    use ReadFault::{Malformed, Rank, RankMissing, Value};
    let cases: [(&str, &[ReadFault]); 12] = [
        ("", &[Malformed]),
        ("{}", &[Malformed]),
        ("7", &[Malformed]),
        (r#"{"loads":{}}"#, &[Malformed]),
        (r#"{"loads":[]}"#, &[RankMissing]),
        (r#"{"loads":[3]}"#, &[Malformed, RankMissing]),
        (r#"[{"dp_rank":-1,"num_running_reqs":1,"num_waiting_reqs":1}]"#, &[Rank, RankMissing]),
        (r#"[{"dp_rank":9,"num_running_reqs":1,"num_waiting_reqs":1}]"#, &[Rank, RankMissing]),
        (r#"[{"dp_rank":"0","num_running_reqs":1,"num_waiting_reqs":1}]"#, &[Rank, RankMissing]),
        (r#"[{"dp_rank":0,"num_running_reqs":-1,"num_waiting_reqs":1}]"#, &[Value]),
        (r#"[{"dp_rank":0,"num_running_reqs":1}]"#, &[Value]),
        (r#"[{"num_running_reqs":1,"num_waiting_reqs":0,"token_usage":55}]"#, &[Value]),
    ];
    for (body, expected) in cases {
        assert_eq!(read(read_loads, body, 1), (vec![], expected.to_vec()), "{body}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(read(read_loads, &deep, 1).1, [Malformed]);
}

fn read_stat(payload: &[u8], ranks: usize) -> (Vec<(usize, LoadReading)>, Vec<ReadFault>) {
    let mut readings = Readings::default();
    readings.begin(ranks);
    read_load_stat(payload, 1, &mut readings);
    (readings.iter().collect(), faults(&readings))
}

#[test]
fn recorded_messages_of_sglang_are_read() {
    let short =
        LoadReading { used_tokens: Some(40_960), capacity_tokens: Some(262_144), ..reading(12, 3) };
    assert_eq!(read_stat(LOAD_STAT, 2), (vec![(1, short)], vec![]));
    let long = LoadReading { waiting_tokens: Some(512), ..short };
    assert_eq!(read_stat(LOAD_STAT_LONG, 2), (vec![(1, long)], vec![]));
    assert_eq!(read_stat(LOAD_STAT, 1).1, [ReadFault::Rank], "the worker has one rank");
    let mut negative = LOAD_STAT.to_vec();
    *negative.last_mut().unwrap() = 0xff;
    assert_eq!(read_stat(&negative, 2), (vec![], vec![ReadFault::Rank]));
    negative[10] = 0xff;
    *negative.last_mut().unwrap() = 1;
    assert_eq!(read_stat(&negative, 2), (vec![], vec![ReadFault::Value]));
    for cut in 0..LOAD_STAT.len() {
        assert_eq!(read_stat(&LOAD_STAT[..cut], 2), (vec![], vec![ReadFault::Malformed]), "{cut}");
    }
}

proptest! {
    #[test]
    fn no_answer_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        words in proptest::collection::vec(prop::sample::select(vec![
            "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "sglang:token_usage", "{engine=\"0\"}",
            "{engine=\"", "} ", "NaN", "1e999", "-0", "\n", " ", "\\", "\"", "[", "{", "\"loads\":",
            "\"dp_rank\":",
        ]), 0..40),
        ranks in 0_usize..4,
    ) {
        let text = words.concat();
        let mixed = format!("{text}{}", String::from_utf8_lossy(&bytes));
        for text in [&text, &mixed] {
            for form in [read_metrics as Read, read_loads] {
                let (readings, faults) = read(form, text, ranks);
                prop_assert!(readings.len() <= ranks);
                prop_assert!(ranks == 0 || readings.len() == ranks || !faults.is_empty());
            }
        }
        let _ = read_stat(&bytes, ranks);
        let _ = read_stat(&[b"\x96\xa8LoadStat", &*bytes].concat(), ranks);
    }
}

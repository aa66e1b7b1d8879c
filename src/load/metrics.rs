//! Load from an engine's Prometheus text, in a single pass over its lines.

use super::exposition::{Sample, sample};
use super::readings::{RankNumber, ReadFault, Readings, permille, requests, tokens};

/// Metric that Prometheus clients export of their process.
const PROCESS_START: &str = "process_start_time_seconds";

/// Meaning of a sample, by the metric names of vLLM 0.9 to 0.33 and SGLang 0.5.
#[derive(Clone, Copy)]
enum Figure {
    Running,
    Waiting,
    Deferred,
    KvShare,
    CacheConfig,
    UsedTokens,
    CapacityTokens,
    Progress,
    Generated,
    FirstTokens,
    FirstTokenWait,
}

/// Reads `GET /metrics` of vLLM (label `engine`) or SGLang (label `dp_rank`) into readings that
/// have begun.
pub fn read_metrics(text: &str, readings: &mut Readings) {
    let mut any = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix(PROCESS_START) {
            let started = sample(rest).and_then(|sample| tokens(sample.value() * 1e3));
            readings.started_ms = started.filter(|&ms| ms > 0);
            continue;
        }
        let Some((figure, label, sample)) = figure(line) else { continue };
        any = true;
        let rank = rank(&sample, label);
        match figure {
            Figure::Running => {
                readings.put(rank, requests(sample.value()), |d, n| d.running = Some(n));
            }
            Figure::Waiting => {
                readings.put(rank, requests(sample.value()), |d, n| d.waiting = Some(n));
            }
            Figure::Deferred => {
                readings.put(rank, requests(sample.value()), |d, n| d.rest.deferred = n);
            }
            Figure::KvShare => {
                readings.put(rank, permille(sample.value()), |d, n| d.rest.kv_permille = Some(n));
            }
            Figure::UsedTokens => {
                readings.put(rank, tokens(sample.value()), |d, n| d.rest.used_tokens = Some(n));
            }
            Figure::CapacityTokens => {
                readings.put(rank, tokens(sample.value()), |d, n| d.rest.capacity_tokens = Some(n));
            }
            Figure::Progress | Figure::Generated => {
                readings.put(rank, tokens(sample.value()), |d, n| {
                    let more = |sum: Option<u64>| Some(sum.unwrap_or(0).saturating_add(n));
                    d.rest.progress.all = more(d.rest.progress.all);
                    if matches!(figure, Figure::Generated) {
                        d.rest.progress.generated = more(d.rest.progress.generated);
                    }
                });
            }
            Figure::FirstTokens | Figure::FirstTokenWait => {
                first_tokens(rank, figure, &sample, readings);
            }
            Figure::CacheConfig => capacity(rank, &sample, readings),
        }
    }
    if any {
        readings.end();
    } else {
        readings.fault(ReadFault::Malformed);
    }
}

/// Sums first tokens over the models of a rank. SGLang counts first tokens of all ranks together.
fn first_tokens(rank: RankNumber, figure: Figure, sample: &Sample, readings: &mut Readings) {
    if rank == RankNumber::Missing && readings.rank_count() > 1 {
        return;
    }
    let is_wait = matches!(figure, Figure::FirstTokenWait);
    let value = if is_wait { sample.value() * 1e3 } else { sample.value() };
    let Some(value) = tokens(value) else { return readings.refuse_first_tokens(rank) };
    if let Some(draft) = readings.at(rank) {
        let progress = &mut draft.rest.progress;
        let sum =
            if is_wait { &mut progress.first_token_wait_ms } else { &mut progress.first_tokens };
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }
}

/// Capacity from the labels of a configuration metric. Some versions report it once for all
/// engines, and some report `None`: then the capacity is known only by discovery, if at all.
fn capacity(rank: RankNumber, sample: &Sample, readings: &mut Readings) {
    if rank == RankNumber::Missing {
        return;
    }
    let blocks = sample.number("num_gpu_blocks").map(u64::from);
    let block_size = sample.number("block_size").map(u64::from);
    if let (Some(blocks), Some(block_size)) = (blocks, block_size)
        && let Some(draft) = readings.at(rank)
    {
        draft.rest.capacity_tokens = blocks.checked_mul(block_size).filter(|&tokens| tokens > 0);
    }
}

fn rank(sample: &Sample, label: &str) -> RankNumber {
    match sample.label(label) {
        None => RankNumber::Missing,
        Some(text) => text.parse().map_or(RankNumber::Invalid, RankNumber::Is),
    }
}

fn figure(line: &str) -> Option<(Figure, &'static str, Sample)> {
    let (label, rest) = if let Some(rest) = line.strip_prefix("vllm:") {
        ("engine", rest)
    } else {
        ("dp_rank", line.strip_prefix("sglang:")?)
    };
    let name = rest.get(..rest.find(['{', ' '])?)?;
    if name == "num_requests_waiting_by_reason" {
        let sample = sample(rest.get(name.len()..)?)?;
        return (sample.label("reason") == Some("deferred")).then_some((
            Figure::Deferred,
            label,
            sample,
        ));
    }
    let figure = match (label, name) {
        ("engine", "num_requests_running") | ("dp_rank", "num_running_reqs") => Figure::Running,
        ("engine", "num_requests_waiting") | ("dp_rank", "num_queue_reqs") => Figure::Waiting,
        ("engine", "kv_cache_usage_perc" | "gpu_cache_usage_perc") | ("dp_rank", "token_usage") => {
            Figure::KvShare
        }
        ("engine", "cache_config_info") => Figure::CacheConfig,
        // SGLang's counters of the same meaning include only finished requests.
        ("engine", "prompt_tokens_total") => Figure::Progress,
        ("engine", "generation_tokens_total") => Figure::Generated,
        ("dp_rank", "num_used_tokens") => Figure::UsedTokens,
        ("dp_rank", "max_total_num_tokens") => Figure::CapacityTokens,
        (_, "time_to_first_token_seconds_count") => Figure::FirstTokens,
        (_, "time_to_first_token_seconds_sum") => Figure::FirstTokenWait,
        _ => return None,
    };
    Some((figure, label, sample(rest.get(name.len()..)?)?))
}

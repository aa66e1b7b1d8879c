//! `forebay simulate`: replays a trace under several policies, in virtual time.

use crate::cli::findings;
use crate::cli::process::failed;
use crate::cli::progress::ProgressLine;
use clap::Args;
use clap::builder::RangedI64ValueParser;
use forebay_base::limits::{ENGINE_FILE_BYTES_MAX, RANKS_MAX};
use forebay_base::{Clock, NanosSinceStart, read_text};
use forebay_config::{Config, ConfigSource, Flags};
use forebay_simulate::{
    self as sim, BlockRoom, ModelSpeed, PolicyRun, Rule, RunObserver, Scenario, SegmentBound,
    SimPlan, Trace, TraceSegment, read,
};
use serde_json::{Map, json};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Placeholder worker: a configuration must have a worker.
const NO_WORKER: &str = "http://127.0.0.1:1";
/// Prefix of a generated trace's name.
const GENERATED: &str = "generate:";

/// Flags of `forebay simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay simulate --trace conversation_trace.jsonl --workers 8 --policy kv,round_robin\n  \
    forebay simulate --trace generate:agents --workers 16 --policy kv,dynamo --load 120\n\n\
    The router's code chooses ranks, as in `forebay serve`. The ranks model an H100 with vLLM.\n\
    Policies of `forebay serve`: kv, least_loaded, power_of_two, round_robin, random,\n\
    session.\n\
    Rules of others: longest_prefix, session_fixed, session_bounded, lmetric, dynamo,\n\
    dynamo_agentic, sglang_cache_aware, vllm_kv_aware, llm_d, llm_d_legacy. `all` stands for all\n\
    of them.")]
pub(crate) struct SimulateArgs {
    /// Mooncake JSONL, Azure CSV, sessions JSONL, or generate:chats|shared|agents|documents
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Policies to compare, by name
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "kv,round_robin")]
    policy: Vec<String>,
    /// Prompt work offered, in percent of the fleet's prefill capacity without any cache
    #[arg(long, value_name = "PERCENT", default_value_t = 80.0)]
    load: f64,
    /// Seed of ties, of generated traces, and of arrivals that a trace gives in coarse steps
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    bound: BoundArgs,
}

/// Number and form of the requests sent.
#[derive(Debug, Args)]
struct TrafficArgs {
    /// Replay the trace so often, each time with prompts that share nothing with the others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = times())]
    repeat: u32,
    /// Requests that ask for no stream, in percent: routers do not see their first tokens
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    whole: u32,
}

/// A segment with a clairvoyant assignment.
#[derive(Debug, Args)]
struct BoundArgs {
    /// Compare the policy with the best assignment to ranks that is found for so many requests,
    /// behind the first FROM requests
    #[arg(long = "bound", value_name = "FROM,COUNT", value_parser = segment)]
    segment: Option<TraceSegment>,
    /// Assignments that `--bound` tries
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "segment")]
    tries: u32,
}

/// The routers and their ranks.
#[derive(Debug, Args)]
struct FleetArgs {
    /// Simulated ranks of the fleet
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = ranks())]
    workers: u16,
    /// Ranks among these that compute prompts for the others, which answer [default: each rank does
    /// both]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    prefill_workers: Option<u16>,
    /// Routers in front of the ranks; they share load by messages with `replicas.peers` or
    /// `nats.url` in `--config`, else by engines' reports
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = replicas())]
    replicas: u16,
    /// KV blocks of one rank [default: `kv_tokens` of its engine, 427000 for the default engine; at
    /// least the longest prompt]
    #[arg(long, value_name = "N")]
    kv_blocks: Option<usize>,
    /// Limits, queues and costs as in that file of `forebay serve`; workers and policy are not read
    #[arg(short = 'c', long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    tiers: TierArgs,
    /// Speed of a rank, from `tools/fit_engine`; of several files each rank has one, in turn
    /// [default: an H100 with an 8B model]
    #[arg(long, value_name = "FILE", conflicts_with = "prefill_tokens_per_s")]
    engine: Vec<PathBuf>,
    /// Prompt tokens that a rank computes per second, as of `forebay engine`, instead of an H100;
    /// decoding takes no time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prefill_tokens_per_s: Option<u32>,
}

/// Blocks in tiers behind the devices.
#[derive(Debug, Args)]
struct TierArgs {
    /// Blocks that the host of one rank keeps beside those; for at most 512 ranks
    #[arg(long, value_name = "N", default_value_t = 0)]
    host_blocks: usize,
    /// Blocks of a KV pool that all ranks write to, and load from at network speed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pool_blocks: usize,
}

/// Destinations of the figures beside the table.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Write the figures as JSON there, `-` for standard output; tools/plot draws them
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

fn ranks() -> RangedI64ValueParser<u16> {
    let most = i64::try_from(RANKS_MAX).unwrap_or(i64::MAX);
    clap::value_parser!(u16).range(1..=most)
}

fn replicas() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=32)
}

fn times() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1_000)
}

fn segment(text: &str) -> Result<TraceSegment, String> {
    let numbers = text.split_once(',').map(|(first, count)| (first.parse(), count.parse()));
    match numbers {
        Some((Ok(first), Ok(count))) => Ok(TraceSegment { first, count }),
        _ => Err("give two numbers, such as 4000,400".to_owned()),
    }
}

pub(crate) fn run(args: &SimulateArgs) -> ExitCode {
    match simulated(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

fn simulated(args: &SimulateArgs, out: &mut impl Write) -> Result<(), String> {
    if !(args.load.is_finite() && args.load > 0.0) {
        return Err(format!("--load {}: give percents above 0", args.load));
    }
    check_numbers(&args.fleet)?;
    let kinds = args.fleet.engine.len();
    let workers = args.fleet.workers;
    if kinds > usize::from(workers) {
        return Err(format!("--engine: {kinds} files for --workers {workers}. Leave some out"));
    }
    let rules = rules(&args.policy)?;
    check_pairs(&args.fleet, &rules)?;
    let mut trace = trace(&args.trace, args.seed)?;
    trace.whole_percent = args.traffic.whole;
    let repeat = args.traffic.repeat;
    let trace = if repeat > 1 { trace.repeated(repeat) } else { trace };
    let plan = SimPlan {
        ranks: usize::from(args.fleet.workers),
        prefill_ranks: usize::from(args.fleet.prefill_workers.unwrap_or(0)),
        replicas: usize::from(args.fleet.replicas),
        load_percent: args.load,
        blocks: BlockRoom {
            device: args.fleet.kv_blocks,
            host: args.fleet.tiers.host_blocks,
            pool: args.fleet.tiers.pool_blocks,
        },
        seed: args.seed,
        engines: engines(&args.fleet)?,
        config: config(args.fleet.config.as_deref())?,
    };
    if let Some(segment) = args.bound.segment {
        if args.fleet.tiers.pool_blocks > 0 {
            return Err("--bound: leave out --pool-blocks".to_owned());
        }
        let rule = only(&rules)?;
        let found = sim::bound(&trace, &plan, rule.1, segment, args.bound.tries);
        let found = found.map_err(|error| format!("--bound: {error}"))?;
        return print(&json!(found), &args.output, out, |out| bound_table(&rule.0, &found, out));
    }
    let clock = Clock::start();
    let begun = clock.now();
    let runs = all(&trace, &plan, rules);
    let rate = per_second(&runs, clock.now().since(begun));
    print(&as_json(&runs, rate), &args.output, out, |out| table(&runs, rate, out))
}

/// Writes the figures as JSON if a flag asks for it, and the table unless the JSON is printed.
fn print<W: Write>(
    figures: &serde_json::Value,
    output: &OutputArgs,
    out: &mut W,
    table: impl FnOnce(&mut W) -> io::Result<()>,
) -> Result<(), String> {
    let written = |result: io::Result<()>| result.map_err(|error| error.to_string());
    match output.json.as_deref() {
        Some(file) if file == Path::new("-") => written(writeln!(out, "{figures:#}")),
        file => {
            if let Some(file) = file {
                std::fs::write(file, format!("{figures:#}\n"))
                    .map_err(|error| format!("--json {}: {error}", file.display()))?;
            }
            written(table(out))
        }
    }
}

/// The single policy that `--bound` compares.
fn only(rules: &[(String, Rule)]) -> Result<&(String, Rule), String> {
    match rules {
        [rule] => Ok(rule),
        _ => Err("--bound: give one policy, such as --policy kv".to_owned()),
    }
}

/// Table of a policy beside a clairvoyant assignment, see `src/simulate/bound.rs`.
fn bound_table(name: &str, found: &SegmentBound, out: &mut impl Write) -> io::Result<()> {
    let columns = ("assignment", "refused", "TTFT mean", "p99 ms", "goodput");
    let (assignment, refused, mean, p99, goodput) = columns;
    writeln!(out, "{assignment:<19} {refused:>7} {mean:>9} {p99:>9} {goodput:>7}")?;
    let rows =
        [(name, found.policy), ("at once", found.sent_at_once), ("annealed", found.annealed)];
    for (name, row) in rows {
        let mean = row.ttft_ms_mean;
        let p99 = row.ttft_ms_p99;
        let refused = row.refused;
        let goodput = row.goodput;
        writeln!(out, "{name:<19} {refused:>7} {mean:>9.1} {p99:>9.1} {goodput:>7.3}")?;
    }
    writeln!(out, "{name} over annealed, mean: {:.3}", found.policy_over_annealed)
}

/// Checks the fleet's size: in the index, hosts and the pool need numbers beside the ranks'
/// numbers.
fn check_numbers(fleet: &FleetArgs) -> Result<(), String> {
    let hosts = if fleet.tiers.host_blocks > 0 { 2 } else { 1 };
    let pools = usize::from(fleet.tiers.pool_blocks > 0);
    let ranks_max = (RANKS_MAX - pools) / hosts;
    if usize::from(fleet.workers) > ranks_max {
        let what = format!("with --host-blocks or --pool-blocks, give at most {ranks_max}");
        return Err(format!("--workers {}: {what}", fleet.workers));
    }
    Ok(())
}

fn check_pairs(fleet: &FleetArgs, rules: &[(String, Rule)]) -> Result<(), String> {
    let Some(prefill) = fleet.prefill_workers else { return Ok(()) };
    let all = fleet.workers;
    if prefill >= all {
        return Err(format!("--prefill-workers {prefill}: give fewer than --workers {all}"));
    }
    match rules.iter().find(|(_, rule)| matches!(rule, Rule::Rival(_))) {
        Some((name, _)) => {
            let what = "a rule of others has no pairs of ranks. Leave out --prefill-workers";
            Err(format!("--policy {name}: {what}"))
        }
        None => Ok(()),
    }
}

/// Speeds of the ranks, in turn.
fn engines(fleet: &FleetArgs) -> Result<Vec<ModelSpeed>, String> {
    if let Some(speed) = fleet.prefill_tokens_per_s {
        return Ok(vec![ModelSpeed::of_prompts(f64::from(speed))]);
    }
    fleet.engine.iter().map(|file| engine(file)).collect()
}

fn engine(file: &Path) -> Result<ModelSpeed, String> {
    let failed = |reason: &dyn fmt::Display| format!("--engine {}: {reason}", file.display());
    let unread = |error| failed(&format!("{error}; name a file that tools/fit_engine wrote"));
    let read = File::open(file).and_then(|file| read_text(file, ENGINE_FILE_BYTES_MAX));
    let text = read.map_err(unread)?;
    ModelSpeed::from_toml(&text).map_err(|error| failed(&error))
}

/// Reads the settings of a file, without its workers.
fn config(file: Option<&Path>) -> Result<Config, String> {
    let Some(file) = file else { return Ok(Config::default()) };
    let flags = Flags { workers: vec![NO_WORKER.to_owned()], ..Flags::default() };
    let loaded = ConfigSource { file: Some(file.to_owned()), flags }.load()?;
    let mut findings_text = Vec::new();
    findings::write(&loaded.findings, &mut findings_text).map_err(|error| error.to_string())?;
    loaded.usable().map_err(|_| String::from_utf8_lossy(&findings_text).into_owned())
}

/// Runs each policy in turn, with its progress on a terminal.
fn all(trace: &Trace, plan: &SimPlan, rules: Vec<(String, Rule)>) -> Vec<(String, PolicyRun)> {
    let each = trace.requests.len() as u64;
    let mut progress = ProgressLine::new(each * rules.len() as u64);
    let clock = Clock::start();
    let now = || clock.now().since(NanosSinceStart(0));
    let begun = now();
    let simulated = rules.into_iter().enumerate().map(|(place, (name, rule))| {
        let before = each * place as u64;
        let mut ended = |ended: usize| progress.set(&name, before + ended as u64, now() - begun);
        let run = sim::run(trace, plan, rule, RunObserver { ended: &mut ended, clock: &now });
        (name, run)
    });
    simulated.collect()
}

fn trace(path: &Path, seed: u64) -> Result<Trace, String> {
    match path.to_str().and_then(|name| name.strip_prefix(GENERATED)) {
        Some(name) => Ok(name.parse::<Scenario>()?.trace(seed)),
        None => read(path).map_err(|error| error.to_string()),
    }
}

fn rules(names: &[String]) -> Result<Vec<(String, Rule)>, String> {
    if names.iter().any(|name| name == "all") {
        return Ok(Rule::all().into_iter().map(|(name, rule)| (name.to_owned(), rule)).collect());
    }
    names.iter().map(|name| Ok((name.clone(), name.parse()?))).collect()
}

fn per_second(runs: &[(String, PolicyRun)], nanos: u64) -> u64 {
    let requests: u64 = runs.iter().map(|(_, run)| run.summary.requests).sum();
    requests.saturating_mul(1_000_000_000) / nanos.max(1)
}

fn as_json(runs: &[(String, PolicyRun)], rate: u64) -> serde_json::Value {
    let policies: Map<String, serde_json::Value> =
        runs.iter().map(|(name, run)| (name.clone(), figures(run))).collect();
    json!({ "policies": policies, "simulated_requests_per_s": rate })
}

/// Figures of a run as JSON: summary, time series, cost of the routers.
fn figures(run: &PolicyRun) -> serde_json::Value {
    let mut figures = json!(run.summary);
    if let Some(members) = figures.as_object_mut() {
        members.insert("router".to_owned(), json!(run.used));
        members.insert("series".to_owned(), json!(run.series));
    }
    figures
}

fn table(runs: &[(String, PolicyRun)], rate: u64, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<19} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>6}",
        "policy",
        "requests",
        "refused",
        "hits",
        "TTFT mean",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "TPOT p99",
        "goodput",
        "max/mean",
        "busy"
    )?;
    for (name, run) in runs {
        let run = &run.summary;
        let ttft = &run.times;
        writeln!(
            out,
            "{name:<19} {:>8} {:>7} {:>6.3} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>7.3} \
             {:>8.2} {:>6.2}",
            run.requests,
            run.refused,
            run.hits.hit_rate,
            ttft.ttft_ms_mean,
            ttft.ttft_ms_p50,
            ttft.ttft_ms_p90,
            ttft.ttft_ms_p99,
            ttft.tpot_ms_p99,
            run.goodput,
            run.load_max_over_mean,
            run.busy
        )?;
    }
    writeln!(out, "{rate} simulated requests a second")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, CommandLine};
    use clap::Parser;

    #[test]
    fn a_file_gives_the_costs_and_its_faults_name_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("forebay.toml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            config(Some(&file))
        };
        let found = read("policy = \"random\"\n[kv]\nhost_credit_percent = 55\n").unwrap();
        assert_eq!(found.kv.host_credit_percent, 55);
        let fault = read("[kv]\nhost_credit = 55\n").unwrap_err();
        assert!(fault.contains("forebay.toml:2:"), "{fault}");
        assert_eq!(config(None).unwrap(), Config::default());
    }

    #[test]
    fn a_bound_is_of_one_policy_and_of_two_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.csv");
        let requests = "2023-11-16 18:15:46.5,374,44\n".repeat(50);
        std::fs::write(&file, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{requests}"))
            .unwrap();
        let parse = |bound: &str, more: &str| {
            let trace = file.display();
            let words = format!("forebay simulate --trace {trace} --bound {bound} {more}");
            CommandLine::try_parse_from(words.split_whitespace()).map(|parsed| parsed.command)
        };
        for text in ["4000", "4000,", "-1,4", "a,b"] {
            assert!(parse(text, "").is_err(), "{text}");
        }
        let Ok(Command::Simulate(args)) = parse("40,4", "--tries 5") else { panic!() };
        let fault = simulated(&args, &mut Vec::new()).unwrap_err();
        assert_eq!(fault, "--bound: give one policy, such as --policy kv");
        let words = "--policy kv --workers 2 --tries 5";
        let Ok(Command::Simulate(args)) = parse("40,4", words) else { panic!() };
        let mut out = Vec::new();
        simulated(&args, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("annealed") && text.lines().count() == 5, "{text}");
    }

    #[test]
    fn each_engine_file_needs_a_rank() {
        let line = "forebay simulate --trace generate:chats --engine a --engine b --workers 1";
        let parsed = CommandLine::try_parse_from(line.split(' ')).unwrap();
        let Command::Simulate(args) = parsed.command else { panic!("{parsed:?}") };
        let fault = simulated(&args, &mut Vec::new()).unwrap_err();
        assert_eq!(fault, "--engine: 2 files for --workers 1. Leave some out");
    }
}

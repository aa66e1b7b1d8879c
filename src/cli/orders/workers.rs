//! `forebay workers`: the fleet of a running router as a table.

use super::answer_text::{count, is_set, json, line, list, table, unwritten, word, words};
use crate::cli::process::{finish, run_local};
use crate::cli::router_client::RouterArgs;
use clap::Args;
use forebay_base::shown_seconds;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;

const HEADING: [&str; 10] =
    ["WORKER", "STATE", "ROLE", "ENGINE", "RUNS", "LIMIT", "WAITS", "TTFT AVG", "MODELS", "WHY"];

/// Flags of `forebay workers`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay workers\n  \
    forebay workers -c /etc/forebay/forebay.toml\n  \
    forebay workers --json | jq '.workers[] | select(.state != \"up\") | .name'\n\n\
    LIMIT is the sum over the ranks, `-` without a limit. WAITS is what the engine reports.\n\
    TTFT AVG is the mean time to the first token of the last minute, `-` without a stream.\n\
    Exit code 0 also if workers are down; `forebay doctor` looks for the causes.")]
pub(crate) struct WorkersArgs {
    /// Show this worker alone
    #[arg(value_name = "NAME")]
    worker: Option<String>,
    /// Print the answer of the admin API
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    router: RouterArgs,
}

pub(crate) fn run(args: &WorkersArgs) -> ExitCode {
    finish(run_local(report(args, &mut io::stdout().lock())).and_then(|done| done))
}

async fn report(args: &WorkersArgs, out: &mut impl Write) -> Result<(), String> {
    let client = args.router.client()?;
    let answer = match &args.worker {
        Some(name) => client.get(&["workers", name], "name").await?,
        None => client.get(&["workers"], "workers").await?,
    };
    if args.json {
        return json(&answer, out);
    }
    let one = std::slice::from_ref(&answer);
    let workers = if args.worker.is_some() { one } else { list(&answer, "workers") };
    let mut rows = vec![HEADING.map(str::to_owned).to_vec()];
    rows.extend(workers.iter().map(row));
    table(&rows, out).map_err(|error| unwritten(&error))?;
    list(&answer, "sources").iter().filter_map(faulty).try_for_each(|text| line(&text, out))
}

/// A source of workers that cannot be read.
fn faulty(source: &Value) -> Option<String> {
    let error = Some(word(source, "error")).filter(|error| !error.is_empty())?;
    Some(format!("source {} fails: {error}", word(source, "name")))
}

fn row(worker: &Value) -> Vec<String> {
    let ranks = list(worker, "ranks");
    // 0 is no limit.
    let limits = ranks
        .iter()
        .map(|rank| rank.get("concurrency_max").and_then(Value::as_u64).filter(|limit| *limit > 0));
    let limit: Option<u64> = limits.sum();
    let limit = limit.filter(|_| !ranks.is_empty());
    let waiting = ranks.iter().filter_map(|rank| rank.get("report")?.get("waiting")?.as_u64());
    vec![
        word(worker, "name").to_owned(),
        state(worker).to_owned(),
        word(worker, "role").to_owned(),
        word(worker, "engine").to_owned(),
        count(worker, "in_flight").to_string(),
        limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
        waiting.sum::<u64>().to_string(),
        shown_seconds(ttft_mean_s(ranks)),
        words(worker, "models"),
        why(worker),
    ]
}

/// Mean time to the first token over the streams of all ranks; `None` without a stream.
fn ttft_mean_s(ranks: &[Value]) -> Option<f64> {
    let mean = |rank: &Value| {
        let ttft = rank.get("ttft_1m")?;
        Some((ttft.get("streams")?.as_f64()?, ttft.get("mean_seconds")?.as_f64()?))
    };
    let means = ranks.iter().filter_map(mean);
    let sums = means.map(|(streams, seconds)| (streams, streams * seconds));
    let (streams, seconds) = sums.fold((0.0, 0.0), |all, next| (all.0 + next.0, all.1 + next.1));
    (streams > 0.0).then_some(seconds / streams)
}

/// State of a worker in a word: an order counts more than the health. The page and `forebay top`
/// have the same word for a worker that answers and waits.
pub(super) fn state(worker: &Value) -> &str {
    let state = word(worker, "state");
    match word(worker, "sleep") {
        "" if is_set(worker, "draining") => "draining",
        "" if state == "up" && !word(worker, "waits_for").is_empty() => "registering",
        "" => state,
        sleep => sleep,
    }
}

/// Reason why a worker is not used; empty if it is.
pub(super) fn why(worker: &Value) -> String {
    let reasons = ["error", "waits_for"].map(|name| word(worker, name));
    let reason = reasons.into_iter().find(|reason| !reason.is_empty());
    match (reason, word(worker, "help")) {
        (None, _) => fault(worker),
        (Some(reason), "") => reason.to_owned(),
        (Some(reason), help) => format!("{reason}; {help}"),
    }
}

/// Fault of the first rank that has a fault, and how many ranks have faults.
fn fault(worker: &Value) -> String {
    let ranks = list(worker, "ranks");
    let faults = ranks.iter().map(|rank| word(rank, "fault")).filter(|fault| !fault.is_empty());
    let faults: Vec<&str> = faults.collect();
    match (faults.first(), ranks.len()) {
        (None, _) => String::new(),
        (Some(fault), 1) => (*fault).to_owned(),
        (Some(fault), all) => format!("{} of {all} ranks: {fault}", faults.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_mean_of_a_worker_is_over_all_its_streams() {
        let rank = |streams: u64, mean: f64| {
            let ttft = json!({"streams": streams, "mean_seconds": mean});
            json!({ "ttft_1m": ttft })
        };
        let ranks = [rank(1, 0.5), rank(3, 0.1), json!({ "ttft_1m": null })];
        assert_eq!(row(&json!({ "ranks": ranks }))[7], "200 ms");
        assert_eq!(ttft_mean_s(&ranks[2..]), None);
        assert_eq!(ttft_mean_s(&[json!({})]), None, "a router of an older version");
    }

    #[test]
    fn a_row_sums_the_ranks_and_has_the_reason() {
        let rank = |limit: Value| json!({"concurrency_max": limit, "report": {"waiting": 2}});
        let worker = |second: Value| {
            json!({"name": "w", "state": "down", "role": "both", "engine": "vllm", "in_flight": 3,
                   "models": ["a", "b"], "waits_for": "no model list",
                   "ranks": [rank(json!(4)), rank(second)]})
        };
        let wanted = ["w", "down", "both", "vllm", "3", "9", "4", "-", "a, b", "no model list"];
        assert_eq!(row(&worker(json!(5))), wanted);
        assert_eq!(row(&worker(Value::Null))[5], "-", "a rank without a limit");
        assert_eq!(row(&worker(json!(0)))[5], "-", "a rank without a limit");
        assert_eq!(row(&json!({}))[5], "-", "no rank");
        let down = json!({"error": "/health: status 503", "help": "read its log"});
        assert_eq!(why(&down), "/health: status 503; read its log");
        let unused = json!({"state": "unused", "waits_for": "a to leave", "engine_used_by": "a"});
        assert_eq!((state(&unused), &*why(&unused)), ("unused", "a to leave"));
        let rank = |fault: Option<&str>| json!({ "fault": fault });
        let paused = "paused: requests failed with status 404";
        assert_eq!(why(&json!({"ranks": [rank(Some(paused))]})), paused);
        let ranks = [rank(None), rank(Some(paused)), rank(Some(paused))];
        let all = why(&json!({ "ranks": ranks }));
        assert_eq!(all, "2 of 3 ranks: paused: requests failed with status 404");
        assert_eq!(why(&json!({"ranks": [rank(None), rank(None)]})), "");
        let unregistered = json!({"state": "up", "waits_for": "its registry"});
        assert_eq!((state(&unregistered), &*why(&unregistered)), ("registering", "its registry"));
        assert_eq!(state(&json!({"state": "up", "waits_for": null})), "up");
        assert_eq!(state(&json!({"state": "up", "draining": true})), "draining");
        assert_eq!(state(&json!({"state": "up", "draining": true, "sleep": "asleep"})), "asleep");
    }
}

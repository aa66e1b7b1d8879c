//! Ten times what the engines can do, for some seconds: are the limits kept, is no place wasted, is
//! everybody answered?

use crate::client::{Ask, Outcome, Pool};
use crate::load::{Done, Next, Planned, closed_loop, open_loop};
use crate::numbers::{Figures, share};
use crate::options::{BurstOptions, Options};
use crate::places::{PlaceUse, Window, place_use, read_log};
use crate::processes::{Running, Starter, folder_of};
use forebay::base::Clock;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Prompt words that differ between requests, so that nothing is alike but the beginning.
const WORDS: u64 = 12;
/// Places of the engine itself: far more than the router may use, so that going over the limit
/// would show.
const ENGINE_PLACES: &str = "64";
/// Nothing counts before, while connections are opened and queues fill.
const WARM: Duration = Duration::from_millis(1_500);
/// Longest `Retry-After` that may be told.
const RETRY_AFTER_S_MAX: u64 = 60;

/// Everything that was seen.
struct Run {
    done: Vec<Done>,
    window: Window,
    /// Before, with clients of the engines' own.
    alone: PlaceUse,
    places: PlaceUse,
    /// The start of the window by the clients' clock.
    warm_until_ns: u64,
    engine_peaks: Vec<f64>,
    /// Requests per second that the places can answer.
    capacity_per_s: f64,
    /// Time of a request in an engine with its places taken and nothing else going on.
    service_ms: f64,
    sent_per_s: f64,
}

pub(crate) async fn run(options: &Options, burst: &BurstOptions) -> io::Result<bool> {
    let mut starter = Starter::new(options.program(), options.port, folder_of("overload"))?;
    let mut logs = Vec::new();
    let mut engines = Vec::new();
    for number in 0..burst.engines {
        let log = starter.folder.join(format!("engine-{number}.times"));
        engines.push(starter.engine(&engine_flags(burst, &log.display().to_string()))?);
        logs.push(log);
    }
    let mut routers = Vec::new();
    for _ in 0..options.replicas {
        routers.push(starter.router(&engines, &router_flags(options, burst))?);
    }
    let seen = measure(burst, &engines, &routers, &logs).await?;
    let mut out = io::stdout();
    report(&mut out, burst, &seen)?;
    let good = verdict(&mut out, burst, &seen)?;
    Ok(good || burst.report)
}

async fn measure(
    burst: &BurstOptions,
    engines: &[Running],
    routers: &[Running],
    logs: &[PathBuf],
) -> io::Result<Run> {
    let clock = Clock::start();
    let pools = |processes: &[Running]| -> Vec<Rc<Pool>> {
        processes.iter().map(|process| Rc::new(Pool::new(process.address, clock))).collect()
    };
    let next = plan(burst);
    // What the places can do: all of them taken, by clients of the engines themselves.
    let begun_ns = unix_ns();
    closed_loop(&pools(engines), &next, burst.places, WARM * 2).await;
    let alone = place_use(&read_logs(logs)?, burst.places, since(begun_ns));
    let service_ns = alone.service.mean_ns();
    let all_places = (burst.engines * burst.places) as f64;
    let capacity_per_s = share(all_places * 1e9, service_ns);
    tokio::time::sleep(Duration::from_millis(300)).await;

    let rate = capacity_per_s * burst.times;
    let time = WARM + Duration::from_secs(burst.seconds);
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let begun_ns = unix_ns();
    let warm_until_ns = clock.now().0 + ns(WARM);
    let done = open_loop(&pools(routers), &next, rate, time).await;
    let window = Window { from_ns: begun_ns + ns(WARM), until_ns: begun_ns + ns(time) };
    let engine_peaks = engines.iter().map(|engine| engine.metric("forebay_engine_in_flight_peak"));
    Ok(Run {
        sent_per_s: share(done.len() as f64, time.as_secs_f64()),
        done,
        window,
        alone,
        warm_until_ns,
        places: place_use(&read_logs(logs)?, burst.places, window),
        engine_peaks: engine_peaks.collect::<io::Result<_>>()?,
        capacity_per_s,
        service_ms: service_ns / 1e6,
    })
}

fn plan(burst: &BurstOptions) -> Next {
    let tokens = burst.tokens;
    let stream = burst.stream;
    Rc::new(move |number| {
        let words: Vec<String> =
            (0..WORDS).map(|word| format!("w{}", number * 31 + word)).collect();
        let body = serde_json::json!({
            "model": "sim", "prompt": words.join(" "), "max_tokens": tokens, "stream": stream,
        });
        let ask = Ask { bytes: post(&body.to_string(), &[]), stream, patience: None };
        Planned { ask, client: 0 }
    })
}

/// The bytes of a request.
pub(crate) fn post(body: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{head}\r\n{body}").into_bytes()
}

fn engine_flags(burst: &BurstOptions, log: &str) -> Vec<String> {
    let itl_ms = burst.itl_ms.to_string();
    let flags = ["--concurrency", ENGINE_PLACES, "--itl-ms", &itl_ms, "--log-times", log];
    let fast = ["--prefill-tokens-per-s", "1000000"];
    flags.into_iter().chain(fast).map(str::to_owned).collect()
}

fn router_flags(options: &Options, burst: &BurstOptions) -> Vec<String> {
    let mut flags = vec!["--rank-concurrency-max".to_owned(), burst.places.to_string()];
    for (name, value) in [("--queue-mode", &burst.queue_mode), ("--policy", &burst.policy)] {
        if !value.is_empty() {
            flags.extend([name.to_owned(), value.clone()]);
        }
    }
    if let Some(waiting) = burst.waiting {
        let queues = if burst.queue_mode == "endpoint" { burst.engines } else { 1 };
        let each = waiting.div_ceil(queues);
        flags.extend(["--queue-depth-max".to_owned(), each.to_string()]);
    }
    flags.extend_from_slice(&options.router_flags);
    flags
}

fn read_logs(logs: &[PathBuf]) -> io::Result<Vec<Vec<crate::places::Seen>>> {
    logs.iter().map(|log| read_log(log)).collect()
}

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// From the second half of what began then until now.
fn since(begun_ns: u64) -> Window {
    let until_ns = unix_ns();
    Window { from_ns: begun_ns + (until_ns - begun_ns) / 2, until_ns }
}

/// Answers by status and reason.
fn answers(done: &[Done]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for Done { outcome, .. } in done {
        let name = match (&outcome.failure, outcome.reason.as_str()) {
            (Some(failure), _) => format!("no answer: {failure}"),
            (None, "") => outcome.status.to_string(),
            (None, reason) => format!("{} {reason}", outcome.status),
        };
        *counts.entry(name).or_insert(0) += 1;
    }
    counts
}

/// In the window.
fn refused(seen: &Run) -> impl Iterator<Item = &Outcome> {
    let outcomes = seen.done.iter().map(|done| &done.outcome);
    outcomes.filter(|outcome| outcome.status == 429 && outcome.due_ns >= seen.warm_until_ns)
}

/// Answered in full in the window, as a share of what the places can do.
fn goodput(seen: &Run) -> f64 {
    let seconds = (seen.window.until_ns - seen.window.from_ns) as f64 / 1e9;
    share(seen.places.finished as f64 / seconds, seen.capacity_per_s)
}

fn report(out: &mut impl Write, burst: &BurstOptions, seen: &Run) -> io::Result<()> {
    let Run { capacity_per_s, service_ms, sent_per_s, places, .. } = seen;
    writeln!(
        out,
        "{} engines with {} places, {service_ms:.1} ms a request: {capacity_per_s:.0} requests/s; sent {sent_per_s:.0}/s",
        burst.engines, burst.places
    )?;
    for (name, count) in answers(&seen.done) {
        writeln!(out, "  {count:7} x {name}")?;
    }
    let gaps = &places.gaps;
    let alone = &seen.alone.gaps;
    writeln!(
        out,
        "in flight at the engines: peak {:?} by their counters, {} by their logs\n\
         places in use {:.1} % of the time; {} answers = {:.1} % of what they can do; {:.1} ms each in the engine\n\
         freed place to next request: p50 {:.3} ms, p90 {:.3}, p99 {:.3}, max {:.3} ({} gaps)\n\
         past the router, nobody refused: p50 {:.3} ms, p90 {:.3}, p99 {:.3}",
        seen.engine_peaks,
        places.peak,
        places.busy_share * 100.0,
        places.finished,
        goodput(seen) * 100.0,
        places.service.mean_ns() / 1e6,
        gaps.permille_ms(500),
        gaps.permille_ms(900),
        gaps.permille_ms(990),
        gaps.max_ms(),
        gaps.count(),
        alone.permille_ms(500),
        alone.permille_ms(900),
        alone.permille_ms(990),
    )?;
    let waits = Figures::new(refused(seen).map(|outcome| outcome.head_ns - outcome.sent_ns));
    let told = Figures::new(refused(seen).filter_map(|outcome| outcome.retry_after_s));
    writeln!(
        out,
        "429 after p50 {:.3} ms, p99 {:.3}, max {:.3}; retry-after {} to {} s on {} of {}, with retry-after-ms on {}",
        waits.permille_ms(500),
        waits.permille_ms(990),
        waits.max_ms(),
        told.permille_ns(0),
        told.permille_ns(1_000),
        told.count(),
        waits.count(),
        refused(seen).filter(|outcome| outcome.retry_after_ms.is_some()).count(),
    )
}

fn verdict(out: &mut impl Write, burst: &BurstOptions, seen: &Run) -> io::Result<bool> {
    let unanswered = seen.done.iter().filter(|done| done.outcome.failure.is_some()).count();
    let other =
        seen.done.iter().filter(|done| !matches!(done.outcome.status, 0 | 200 | 429)).count();
    let longest = refused(seen).filter_map(|outcome| outcome.retry_after_s).max().unwrap_or(0);
    let untold = refused(seen).filter(|outcome| outcome.retry_after_s.is_none()).count();
    let peak = seen.engine_peaks.iter().fold(0.0_f64, |peak, engine| peak.max(*engine));
    let gaps = &seen.places.gaps;
    let alone = &seen.alone.gaps;
    let added_ms = gaps.permille_ms(990) - alone.permille_ms(990);
    let mut all_good = true;
    for (good, what) in [
        (peak <= burst.places as f64, "no engine had more in flight than its places"),
        (goodput(seen) >= 0.98, "98 % of what the engines can do was done"),
        (added_ms < 1.0, "p99 of the gap is within 1 ms of what it is past the router"),
        (unanswered == 0, "every request was answered"),
        (other == 0, "with 200 or 429"),
        (longest <= RETRY_AFTER_S_MAX, "retry-after is bounded"),
        (untold * 100 <= refused(seen).count(), "and told on 99 % of the refusals"),
    ] {
        all_good &= good;
        writeln!(out, "{} {what}", if good { "ok  " } else { "FAIL" })?;
    }
    Ok(all_good)
}

//! `forebay replay`: replays a recording into an index of this process, or to sockets.

use crate::cli::logging;
use crate::cli::process::{failed, run_local, signalled};
use clap::Args;
use forebay_base::Clock;
use forebay_config::LogConfig;
use forebay_index::KeySeed;
use forebay_kv_events::{BatchOutcome, BatchResult, EventKind, ResetReason};
use forebay_record::{
    FileReader, PublishTotals, Publisher, RebuiltIndex, RecordedMessage, RecordingEnd, Speed,
    Summary, TokenText, inspect,
};
use forebay_text::chat::{load_model_text, strftime};
use forebay_zmq::ZmqEndpoint;
use std::future::pending;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// A moment as RFC 3339 writes it.
const RFC_3339: &str = "%Y-%m-%dT%H:%M:%SZ";

/// Memory for the index of an in-process replay.
const INDEX_BYTES_MAX: usize = 4 << 30;

/// Flags of `forebay replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay replay gpu1.kvrec\n  \
    forebay replay gpu1.kvrec --model-dir ~/models/Qwen3-8B\n  \
    forebay replay gpu1.kvrec --publish tcp://127.0.0.1:5557 --speed 10\n\n\
    Without --publish the events go into an index of this process, and what came out is printed.\n\
    With --publish each recorded stream gets a port, from that one upwards. It starts once every port has its\n\
    subscribers, waits for slow ones, and keeps the sockets open afterwards: a router forgets a rank whose events end.\n\
    The whole file is checked first; a damaged one is refused. One that ends early is used up to there.")]
pub(crate) struct ReplayArgs {
    /// A file of `forebay record`
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Times as fast as recorded, or `max` [default: 1 with --publish, else max]
    #[arg(long, value_name = "X|max")]
    pub(crate) speed: Option<Speed>,
    /// Publish there instead, for example tcp://127.0.0.1:5557
    #[arg(long, value_name = "ENDPOINT", help_heading = "Publishing")]
    pub(crate) publish: Option<String>,
    /// Subscribers to wait for on every port; 0 starts at once
    #[arg(
        long,
        value_name = "N",
        help_heading = "Publishing",
        default_value_t = 1,
        requires = "publish"
    )]
    pub(crate) subscribers: usize,
    /// Time to keep the sockets open after the last message [default: until a signal]
    #[arg(long, value_name = "SECONDS", help_heading = "Publishing", requires = "publish")]
    pub(crate) linger: Option<u64>,
    /// Model whose tokenizer turns tokens into text; without it tokens count as four bytes
    #[arg(long, value_name = "DIR", conflicts_with = "publish")]
    pub(crate) model_dir: Option<PathBuf>,
}

pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    match replayed(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

/// Replays and writes the report.
pub(crate) fn replayed(args: &ReplayArgs, out: &mut impl Write) -> Result<(), String> {
    let of_file = |error: io::Error| format!("{}: {error}", args.file.display());
    let summary = inspect(&args.file).map_err(of_file)?;
    let written = |result: io::Result<()>| result.map_err(|error| error.to_string());
    written(describe(&args.file, &summary, out))?;
    if summary.header.events_count() == 0 {
        let file = args.file.display();
        return Err(format!(
            "{file} has notes of requests and no KV events: read it by `forebay explain \
             --recording {file}`"
        ));
    }
    match &args.publish {
        Some(base) => {
            let _logging = logging::start(&LogConfig::default())?;
            let base = ZmqEndpoint::parse(base, "127.0.0.1").map_err(|error| error.to_string())?;
            let published = run_local(publish(args, &base, &summary))??;
            let PublishTotals { sent, unheard } = published;
            written(writeln!(out, "published {sent} messages, {unheard} that nobody had asked for"))
        }
        None => {
            let (rebuilt, cost) = run_local(rebuild(args, &summary))??;
            written(show(&rebuilt, &cost, &summary, out))
        }
    }
}

fn describe(path: &Path, summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} messages of {} sources in {:.3} s, {} lost connections, recorded at {}",
        path.display(),
        summary.messages,
        summary.header.sources.len(),
        Duration::from_nanos(summary.duration_ns).as_secs_f64(),
        summary.disconnects,
        strftime(RFC_3339, summary.header.started_unix_ns / 1_000_000_000),
    )?;
    if let RecordingEnd::Cut { at } = summary.end {
        writeln!(out, "the recording ends early, at byte {at}: everything before it is used")?;
    }
    Ok(())
}

async fn publish(
    args: &ReplayArgs,
    base: &ZmqEndpoint,
    summary: &Summary,
) -> Result<PublishTotals, String> {
    let mut publisher = Publisher::bind(base, summary.header.events_count())
        .await
        .map_err(|error| error.to_string())?;
    for (source, endpoint) in summary.header.sources.iter().zip(publisher.endpoints()) {
        tracing::info!(recorded = source.endpoint, %endpoint, "publishing");
    }
    let speed = args.speed.unwrap_or(Speed::Times(1.0));
    let sending = async {
        publisher.wait_for_subscribers(args.subscribers).await;
        send_all(&args.file, &mut publisher, speed).await
    };
    let finished = tokio::select! {
        sent = sending => sent.map(|()| true)?,
        () = signalled() => false,
    };
    if finished {
        tracing::info!("everything is published");
        let linger = async {
            match args.linger {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = linger => {}
            () = signalled() => {}
        }
    }
    Ok(publisher.close().await)
}

async fn send_all(path: &Path, publisher: &mut Publisher, speed: Speed) -> Result<(), String> {
    let of_file = |error: io::Error| format!("{}: {error}", path.display());
    let mut reader = FileReader::open(path).map_err(of_file)?;
    let clock = Clock::start();
    let start = clock.now();
    loop {
        let end = reader.next_chunk().map_err(of_file)?;
        let is_event = |message: &RecordedMessage<'_>| reader.header().has_events(message.source);
        for message in reader.messages().filter(is_event) {
            speed.wait_until_due(message.at_ns, clock, start).await;
            publisher.publish(&message).await;
        }
        if end.is_some() {
            return Ok(());
        }
    }
}

/// Cost of applying the events, without reading and unpacking.
#[derive(Debug, Default)]
struct Cost {
    nanos: u64,
    ops: usize,
    /// Peak of index entries: an ended engine leaves none.
    entries_peak: u64,
}

async fn rebuild(args: &ReplayArgs, summary: &Summary) -> Result<(RebuiltIndex, Cost), String> {
    let of_file = |error: io::Error| format!("{}: {error}", args.file.display());
    let text = match &args.model_dir {
        Some(dir) => {
            let parts = load_model_text(dir).map_err(|error| error.to_string())?;
            TokenText::Vocabulary(Arc::new(parts.vocabulary))
        }
        None => TokenText::Ids,
    };
    let speed = args.speed.unwrap_or(Speed::Max);
    let sources = summary.header.events_count();
    let mut rebuilt = RebuiltIndex::new(KeySeed(0), &text, sources, INDEX_BYTES_MAX);
    let mut cost = Cost::default();
    let mut reader = FileReader::open(&args.file).map_err(of_file)?;
    let clock = Clock::start();
    let start = clock.now();
    loop {
        let end = reader.next_chunk().map_err(of_file)?;
        let is_event = |message: &RecordedMessage<'_>| reader.header().has_events(message.source);
        for message in reader.messages().filter(is_event) {
            speed.wait_until_due(message.at_ns, clock, start).await;
            let begun = clock.now();
            cost.ops += rebuilt.take(&message);
            cost.nanos += clock.now().since(begun);
            cost.entries_peak = cost.entries_peak.max(rebuilt.index().entry_count());
        }
        if end.is_some() {
            return Ok((rebuilt, cost));
        }
    }
}

fn show(
    rebuilt: &RebuiltIndex,
    cost: &Cost,
    summary: &Summary,
    out: &mut impl Write,
) -> io::Result<()> {
    let counters = rebuilt.counters();
    let mut events = 0;
    for (kind, kind_name) in EventKind::ALL {
        for (outcome, outcome_name) in BatchOutcome::ALL {
            let count = counters.event_count(kind, outcome);
            events += count;
            if count > 0 {
                writeln!(out, "events {kind_name} {outcome_name}: {count}")?;
            }
        }
    }
    for (result, name) in BatchResult::ALL {
        writeln!(out, "batches {name}: {}", counters.batch_count(result))?;
    }
    for (reason, name) in ResetReason::ALL {
        let count = counters.reset_count(reason);
        if count > 0 {
            writeln!(out, "ranks reset by {name}: {count}")?;
        }
    }
    for (number, ((blocks, block_size), source)) in
        rebuilt.ranks().zip(&summary.header.sources).enumerate()
    {
        let endpoint = &source.endpoint;
        writeln!(out, "rank {number} {endpoint}: {blocks} blocks of {block_size} tokens")?;
    }
    let index = rebuilt.index();
    writeln!(
        out,
        "index: {} entries ({} at most) in {} bytes, {} stores refused",
        index.entry_count(),
        cost.entries_peak,
        index.memory_bytes(),
        index.refused_count()
    )?;
    let each = |count: u64| cost.nanos.checked_div(count).unwrap_or(0);
    writeln!(
        out,
        "time: {} ns per message, {} ns per event, {} operations on the index",
        each(summary.messages),
        each(events),
        cost.ops
    )
}

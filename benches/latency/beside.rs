//! Answers while the KV events of a fleet come in: the same router, in turn without and with the
//! stream.

use crate::bodies::{chat_bodies, request};
use crate::kv_stream::{KvStream, RANKS};
use crate::load::{UnaryPlan, rig, run_unary};
use crate::options::Options;
use crate::report::{Row, table};
use crate::router::{Router, model_dir};
use core_affinity::CoreId;
use forebay_bench_rig::{CpuMeter, threads_named};
use std::io::{self, Write};
use std::time::Duration;

/// One shard may be so much slower at the 99th percentile under the stream.
const P99_GROWS_MAX: f64 = 1.5;
const BODY_BYTES: usize = 8_192;
/// The stream has filled the index by then.
const SETTLE: Duration = Duration::from_millis(1_500);

/// Priority of the load. Not the highest: it waits awake, and the kernel's own threads have to run
/// on its core too.
const LOAD_NICE: i32 = -5;
/// All feeds are connected by then.
const CONNECT_TIME_MAX_NS: u64 = 30_000_000_000;

/// Cores of the parts, the same one where there are few.
pub(crate) struct Cores {
    pub(crate) router: CoreId,
    pub(crate) load: CoreId,
    /// Of the router's control plane.
    pub(crate) control: CoreId,
    pub(crate) events: CoreId,
}

impl Cores {
    /// First the router's, last the load's, the others between.
    pub(crate) fn of(cores: &[CoreId]) -> Option<Self> {
        let router = *cores.first()?;
        let load = *cores.last()?;
        let control = *cores.get(1)?;
        Some(Self { router, load, control, events: *cores.get(2).unwrap_or(&control) })
    }
}

/// What one run with the stream gave beside its times.
struct Stream {
    blocks_per_s: f64,
    applied_per_s: f64,
    control_busy: Option<f64>,
}

pub(crate) fn run(
    options: &Options,
    rate: u64,
    cores: &Cores,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut rig = rig()?;
    let bodies = chat_bodies(BODY_BYTES, false);
    let requests: Vec<_> = bodies.iter().map(|body| request(body)).collect();
    let before = threads_named("control");
    let stream = KvStream::start(&model_dir(), rate, cores.events)?;
    // The control plane's thread inherits the core.
    core_affinity::set_for_current(cores.control);
    let router = Router::kv(&mut rig, cores.router.id, &bodies, &requests, &stream.endpoints)?;
    core_affinity::set_for_current(cores.load);
    let begin_ns = rig.now_ns();
    while !stream.is_ready() {
        if rig.now_ns() > begin_ns + CONNECT_TIME_MAX_NS {
            return Err(io::Error::other("the router does not follow all ranks"));
        }
        rig.pause(Duration::from_millis(20))?;
    }
    let mut control = threads_named("control");
    control.retain(|thread| !before.contains(thread));
    let control = CpuMeter::of_threads(&control);
    // Not before the other threads are there: they would inherit it.
    if rustix::process::setpriority_process(None, LOAD_NICE).is_err() {
        writeln!(
            out,
            "not root: the load has to share its core with the events' threads on equal terms"
        )?;
    }
    let plan = UnaryPlan {
        requests: &requests,
        rate_per_s: options.rate,
        connections: options.connections,
        warm_count: options.rate * options.warm_ms() / 1_000,
        count: (options.rate * options.measured_ms() / 1_000).max(1),
    };
    let row = |name: String| Row { name, samples: Vec::new() };
    let mut idle = row("forebay kv".into());
    let mut busy = row(format!("with {rate}/s"));
    let mut streams = Vec::new();
    for _ in 0..options.rounds() {
        idle.samples.push(run_unary(&mut rig, &router.target, plan)?);
        stream.set(true);
        rig.pause(SETTLE)?;
        let applied = router.ops_applied()?;
        let begin_ns = rig.now_ns();
        let blocks = stream.blocks();
        let cpu = control.read_ns();
        busy.samples.push(run_unary(&mut rig, &router.target, plan)?);
        let seconds = (rig.now_ns() - begin_ns) as f64 / 1e9;
        let spent = control.read_ns().zip(cpu).map(|(after, before)| (after - before) as f64 / 1e9);
        streams.push(Stream {
            applied_per_s: (router.ops_applied()? - applied) / seconds,
            blocks_per_s: (stream.blocks() - blocks) as f64 / seconds,
            control_busy: spent.map(|spent| spent / seconds),
        });
        stream.set(false);
        // What is in the sockets is taken before the next idle round.
        rig.pause(SETTLE)?;
    }
    let rows = [idle, busy];
    let title = format!(
        "Answers beside KV events: chat bodies of 8 KiB, {} requests/s; {rate} blocks/s from {RANKS} ranks, one shard",
        options.rate
    );
    write!(out, "{}", table(&title, "request", &rows))?;
    verdict(&rows, &streams, rate, out)
}

fn verdict(rows: &[Row; 2], streams: &[Stream], rate: u64, out: &mut impl Write) -> io::Result<()> {
    let [idle, busy] = rows;
    let p99 = |row: &Row| {
        let mut all: Vec<u64> =
            row.samples.iter().map(|sample| sample.latency.value_at_quantile(0.99)).collect();
        all.sort_unstable();
        all.get(all.len() / 2).map_or(f64::NAN, |ns| *ns as f64)
    };
    let grows = p99(busy) / p99(idle);
    let holds = if grows <= P99_GROWS_MAX { "holds" } else { "does not hold" };
    writeln!(out, "p99 with the stream is {grows:.2} times that without: {P99_GROWS_MAX} {holds}")?;
    let count = streams.len().max(1) as f64;
    let sent = streams.iter().map(|stream| stream.blocks_per_s).sum::<f64>() / count;
    let busy: Option<f64> = streams.iter().map(|stream| stream.control_busy).sum();
    let busy = busy.map_or("-".to_owned(), |busy| format!("{:.0} %", busy / count * 100.0));
    let applied = streams.iter().map(|stream| stream.applied_per_s).sum::<f64>() / count;
    // What waits in the sockets counts as sent.
    writeln!(
        out,
        "{sent:.0} blocks/s were sent, {applied:.0} changes/s applied to the index; the control thread was busy {busy} of the time"
    )?;
    if applied < 0.95 * rate as f64 {
        writeln!(out, "that is less than was asked for: the figures are those of the lower rate")?;
    }
    Ok(())
}

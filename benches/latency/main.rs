//! Latency that the router adds on loopback, for answers and for events of streams, and the CPU
//! time it takes for one. What is measured and how to read it: `benches/latency/README.md`.
//!
//! Two cores: the router's shard on one; load, worker and the router's control plane on the other.

mod beside;
mod bodies;
mod client;
mod kv_source;
mod kv_stream;
mod load;
mod nginx;
mod options;
mod report;
mod router;
mod streams;

use bodies::{chat_bodies, request};
use clap::Parser;
use forebay_bench_rig::{Rig, StreamPlan};
use load::{Target, UnaryPlan, run_unary};
use nginx::Nginx;
use options::Options;
use report::{Row, table};
use router::Router;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::rc::Rc;
use streams::{StreamsPlan, run_streams};

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sizes of chat bodies, with the words for them.
const BODY_BYTES: [(usize, &str); 2] = [(1_024, "1 KiB"), (8_192, "8 KiB")];

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_listens = writeln!(io::stderr(), "latency: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let mut out = io::stdout();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (Some(router_core), Some(load_core)) = (cores.first(), cores.last()) else {
        return Err(io::Error::other("the cores of this process are unknown"));
    };
    core_affinity::set_for_current(*load_core);
    // Timers fire when they are due, not 50 us later.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let router = router_core.id;
    let load = load_core.id;
    writeln!(out, "router on core {router}, load and worker on core {load}")?;
    if router == load {
        writeln!(out, "only one core: the figures are those of threads that take turns")?;
    }
    if let Some(rate) = options.kv_blocks {
        let cores = beside::Cores::of(&cores).ok_or_else(|| io::Error::other("only one core"))?;
        return beside::run(options, rate, &cores, &mut out);
    }
    let mut scenarios = Vec::new();
    for (body_bytes, size) in BODY_BYTES {
        scenarios.push(Scenario::answers(options, body_bytes, size));
    }
    scenarios.push(Scenario::streams(options));
    let mut rig = load::rig()?;
    let subjects = Subjects::start(&mut rig, options, router_core.id, &scenarios)?;
    if options.nginx && subjects.nginx.is_none() {
        writeln!(out, "nginx is not installed: no row for it")?;
    }
    for scenario in &scenarios {
        let mut rows: Vec<Row> = Vec::new();
        for target in subjects.targets() {
            rows.push(Row { name: target.name.clone(), samples: Vec::new() });
        }
        for _ in 0..options.rounds() {
            for (target, row) in subjects.targets().zip(&mut rows) {
                row.samples.push(scenario.measure(&mut rig, target, options)?);
            }
        }
        write!(out, "{}", table(&scenario.title, scenario.each, &rows))?;
        out.flush()?;
    }
    Ok(())
}

/// One table.
struct Scenario {
    title: String,
    /// What CPU time is counted for.
    each: &'static str,
    bodies: Vec<Vec<u8>>,
    requests: Vec<Rc<[u8]>>,
    streams: bool,
}

impl Scenario {
    fn answers(options: &Options, body_bytes: usize, size: &str) -> Self {
        let rate = options.rate;
        let connections = options.connections;
        let title = format!(
            "Answers: chat bodies of {size}, {rate} requests/s over {connections} connections"
        );
        Self::new(title, "request", body_bytes, false)
    }

    fn streams(options: &Options) -> Self {
        let streams = options.streams;
        let interval = options.event_interval_ms;
        let rate = u64::from(streams) * 1_000 / interval;
        let title =
            format!("Events: {streams} streams, one event each {interval} ms ({rate} events/s)");
        Self::new(title, "event", 1_024, true)
    }

    fn new(title: String, each: &'static str, body_bytes: usize, streams: bool) -> Self {
        let bodies = chat_bodies(body_bytes, streams);
        let requests = bodies.iter().map(|body| request(body)).collect();
        Self { title, each, bodies, requests, streams }
    }

    fn measure(
        &self,
        rig: &mut Rig,
        target: &Target,
        options: &Options,
    ) -> io::Result<load::Sample> {
        let warm_ms = options.warm_ms();
        let measured_ms = options.measured_ms();
        if !self.streams {
            let plan = UnaryPlan {
                requests: &self.requests,
                rate_per_s: options.rate,
                connections: options.connections,
                warm_count: options.rate * warm_ms / 1_000,
                count: (options.rate * measured_ms / 1_000).max(1),
            };
            return run_unary(rig, target, plan);
        }
        let events = (warm_ms + measured_ms) / options.event_interval_ms;
        let plan = StreamsPlan {
            requests: &self.requests,
            stream_count: options.streams,
            stream: StreamPlan {
                interval_ns: options.event_interval_ms * 1_000_000,
                events: u32::try_from(events).unwrap_or(u32::MAX).max(1),
            },
            warm_ns: warm_ms * 1_000_000,
        };
        run_streams(rig, target, plan)
    }
}

/// What is measured. Everything runs from the start to the end; an idle router costs a wake-up per
/// second.
struct Subjects {
    direct: Target,
    round_robin: Router,
    kv: Router,
    nginx: Option<Nginx>,
}

impl Subjects {
    fn start(
        rig: &mut Rig,
        options: &Options,
        core: usize,
        scenarios: &[Scenario],
    ) -> io::Result<Self> {
        let answers = || scenarios.iter().filter(|scenario| !scenario.streams);
        let requests: Vec<_> = answers().flat_map(|one| one.requests.iter().cloned()).collect();
        let bodies: Vec<_> = answers().flat_map(|one| one.bodies.iter().cloned()).collect();
        let probe = requests.first().map(|request| &**request).unwrap_or_default();
        let address = rig.stub.address()?;
        Ok(Self {
            direct: Target { name: "direct".to_owned(), address, cpu: None },
            round_robin: Router::round_robin(rig, core, probe)?,
            kv: Router::kv(rig, core, &bodies, &requests, &[])?,
            nginx: if options.nginx { Nginx::start(rig, core, probe)? } else { None },
        })
    }

    fn targets(&self) -> impl Iterator<Item = &Target> {
        let routers = [&self.direct, &self.round_robin.target, &self.kv.target];
        routers.into_iter().chain(self.nginx.as_ref().map(|nginx| &nginx.target))
    }
}

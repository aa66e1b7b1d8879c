//! The phases of a shadow: it calibrates, warms up, and counts. Runs on the thread of the command.

use crate::calibration::{Calibration, MirroredSum, block_units};
use crate::engines::{Engines, ShadowRank, ShadowWorker, check};
use crate::intake::{MirrorArrival, MirrorSink, answer, mirror, serve};
use crate::limits::UNIT_BYTES;
use crate::mirrored_prompt::{MirroredPrompt, PromptReader};
use crate::page::page;
use crate::report::{
    FleetSummary, RuleFigures, SampleSeries, ShadowFigures, ShadowPhase, ShadowReport, ShadowSample,
};
use crate::simulation::{ArrivedPrompt, FleetPlan, Simulation};
use axum::body::Body;
use axum::http::{Method, StatusCode};
use forebay_base::{Clock, NanosSinceStart, replaceable_path};
use forebay_config::{Config, Policy};
use forebay_discovery::WorkerClients;
use forebay_simulate::{Rule, SimPlan};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

/// Between two polls of the engines.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Polls between two points of the picture, which are also written to the file.
const POLLS_PER_POINT: u64 = 5;
/// Polls between two lines of the log.
const POLLS_PER_LINE: u64 = 30;

/// Settings of a shadow.
#[derive(Debug)]
pub struct ShadowSettings {
    /// Address that takes mirrored requests.
    pub listen: SocketAddr,
    /// Address of the page.
    pub admin: SocketAddr,
    /// File of the figures, written every ten seconds.
    pub json: Option<PathBuf>,
    /// Limits and queues of the router that would come; the policy is `kv` in any case.
    pub config: Config,
    /// Rule of the present balancer, with its name.
    pub present: (String, Rule),
    pub times: ShadowTimes,
    pub given: GivenFigures,
    /// Seed of the keys of prompts, random for each process.
    pub seed: u64,
}

/// Durations of the phases.
#[derive(Clone, Copy, Debug)]
pub struct ShadowTimes {
    /// Least time of the calibration.
    pub calibrate: Duration,
    /// Longest time of the warm-up; it ends earlier when each simulated cache was filled once.
    pub warm_up: Duration,
}

/// Figures of a rank that the engines do not report.
#[derive(Clone, Copy, Debug, Default)]
pub struct GivenFigures {
    /// Tokens that the cache of a rank holds.
    pub kv_tokens: Option<u32>,
    /// Prompt tokens that a rank computes in a second.
    pub prefill_tokens_per_s: Option<u32>,
}

/// State of a shadow.
struct Shadow {
    settings: ShadowSettings,
    clock: Clock,
    facts: ShadowFacts,
    intake: IntakeState,
    running: Option<RunningFleets>,
    report: ShadowReport,
}

/// Fixed facts of the engines.
struct ShadowFacts {
    models: BTreeSet<Arc<str>>,
    ranks: Vec<ShadowRank>,
}

/// State of the intake.
struct IntakeState {
    reader: PromptReader,
    sum: MirroredSum,
}

/// The simulated fleets, once the calibration has ended.
struct RunningFleets {
    simulation: Simulation,
    calibration: Calibration,
    block_bytes: usize,
    since: NanosSinceStart,
    /// The moment from which the figures count.
    base: Option<ShadowSample>,
    series: SampleSeries,
}

/// The shadow, shared by the tasks of the thread; never borrowed across an await.
struct SharedShadow(RefCell<Shadow>);

impl MirrorSink for SharedShadow {
    fn take(&self, arrival: MirrorArrival<'_>) {
        self.0.borrow_mut().take(arrival);
    }
}

/// Runs a shadow until `stop` ends. `ready` gets the addresses of mirror and page, and `last` the
/// figures at the end, as text.
///
/// # Errors
/// The engines cannot be followed, an address is taken, or the file cannot be written.
pub async fn run(
    settings: ShadowSettings,
    workers: Vec<ShadowWorker>,
    clients: WorkerClients,
    ready: impl FnOnce(SocketAddr, SocketAddr),
    stop: impl Future<Output = ()>,
    last: impl FnOnce(String),
) -> Result<(), String> {
    check(&workers, settings.given.kv_tokens)?;
    let bind = async |address: SocketAddr| {
        let help = "give another address with --listen or --admin";
        let failed = |error| format!("cannot listen on {address}: {error}; {help}");
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok::<_, String>((listener, bound))
    };
    let (mirrored, listen) = bind(settings.listen).await?;
    let (pages, admin) = bind(settings.admin).await?;
    if let Some(file) = &settings.json {
        write(file, &ShadowReport::default())?;
    }
    let facts = ShadowFacts {
        models: workers.iter().flat_map(|worker| worker.models.iter().cloned()).collect(),
        ranks: workers.iter().flat_map(|worker| worker.ranks.iter().copied()).collect(),
    };
    let intake =
        IntakeState { reader: PromptReader::new(settings.seed), sum: MirroredSum::default() };
    let fleet = FleetSummary {
        engines: workers.len(),
        ranks: facts.ranks.len(),
        ..FleetSummary::default()
    };
    let report = ShadowReport { fleet, ..ShadowReport::default() };
    let clock = Clock::start();
    let shadow = Shadow { settings, clock, facts, intake, running: None, report };
    let shadow = Rc::new(SharedShadow(RefCell::new(shadow)));
    let sink = Rc::clone(&shadow);
    let closed = move || sink.take(MirrorArrival::Lost);
    spawn_local(serve(mirrored, mirror(Rc::clone(&shadow)), closed));
    spawn_local(serve(pages, pages_of(Rc::clone(&shadow)), || ()));
    ready(listen, admin);
    tokio::select! {
        () = follow(&shadow, Engines::new(workers, clients)) => {}
        () = stop => {}
    }
    let shadow = shadow.0.borrow();
    shadow.log();
    let written = shadow.write();
    last(shadow.report.summary());
    written
}

async fn follow(shadow: &SharedShadow, mut engines: Engines) {
    let mut polls = interval(POLL_INTERVAL);
    polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 1_u64.. {
        polls.tick().await;
        engines.poll().await;
        let mut shadow = shadow.0.borrow_mut();
        shadow.polled(&engines, count.is_multiple_of(POLLS_PER_POINT));
        if count.is_multiple_of(POLLS_PER_LINE) {
            shadow.log();
        }
        if count.is_multiple_of(POLLS_PER_POINT)
            && let Err(error) = shadow.write()
        {
            warn!(error, "the figures are not written");
        }
    }
}

/// Service of the page.
fn pages_of(
    shadow: Rc<SharedShadow>,
) -> impl Fn(axum::http::Request<hyper::body::Incoming>) -> std::future::Ready<PageAnswer> + Clone {
    move |asked| {
        let shadow = shadow.0.borrow();
        let is_get = *asked.method() == Method::GET;
        std::future::ready(match asked.uri().path() {
            "/" if is_get => {
                let body = Body::from(page(&shadow.report));
                answer(StatusCode::OK, "text/html; charset=utf-8", body)
            }
            "/shadow" if is_get => {
                let body = serde_json::to_vec(&shadow.report).unwrap_or_default();
                answer(StatusCode::OK, "application/json", Body::from(body))
            }
            _ => answer(StatusCode::NOT_FOUND, "text/plain", Body::from("GET / or /shadow\n")),
        })
    }
}

type PageAnswer = axum::http::Response<Body>;

impl Shadow {
    fn take(&mut self, arrival: MirrorArrival<'_>) {
        let counts = &mut self.report.mirrored;
        counts.received += 1;
        let (endpoint, body) = match arrival {
            MirrorArrival::Body(endpoint, body) => (endpoint, body),
            MirrorArrival::Other => return counts.other += 1,
            MirrorArrival::Lost => return counts.lost += 1,
        };
        let block_bytes = self.running.as_ref().map_or(0, |running| running.block_bytes);
        let prompt = self.intake.reader.read(endpoint, body, block_bytes);
        let is_served = |prompt: &MirroredPrompt| {
            self.facts.models.is_empty() || self.facts.models.contains(prompt.model.as_str())
        };
        let Some(prompt) = prompt.filter(is_served) else { return counts.other += 1 };
        counts.prompts += 1;
        let units = prompt.units();
        self.intake.sum.prompts += 1;
        self.intake.sum.units += u64::from(units);
        let Some(running) = &self.running else { return };
        let answer_units = running.calibration.answer_units(prompt.tokens_max);
        let at = self.clock.now();
        let arrived = ArrivedPrompt { at, keys: prompt.keys, units, answer_units };
        if !running.simulation.offer(arrived) {
            counts.lost += 1;
        }
    }

    /// Goes on to the next phase if that is due, and computes the figures.
    fn polled(&mut self, engines: &Engines, is_point: bool) {
        self.report.fleet.silent = engines.silent();
        let now = self.clock.now();
        if self.running.is_none() && now.0 >= nanos(self.settings.times.calibrate) {
            self.calibrate(engines, now);
        }
        let ShadowTimes { calibrate, warm_up } = self.settings.times;
        let Some(running) = &mut self.running else {
            let prompts = Calibration::progress(engines.sum(), self.intake.sum);
            self.report.progress = part(now.0, calibrate).min(prompts).min(1.0);
            return;
        };
        let figures = running.simulation.figures();
        let [kv, control] = figures.rules.as_slice() else { return };
        self.report.mirrored.left_out = figures.left_out;
        let at = Duration::from_nanos(now.0);
        let sample = ShadowSample { at, engines: *engines.sum(), control: *control, kv: *kv };
        let progress = figures.turned_share.max(part(now.since(running.since), warm_up));
        let is_warm = progress >= 1.0;
        self.report.progress = progress.min(1.0);
        let Some(base) = running.base else {
            if is_warm {
                running.base = Some(sample);
                running.series.add(sample);
                self.report.phase = ShadowPhase::Counting;
                info!("the simulated caches are warm: the figures count from now on");
            }
            return;
        };
        if is_point {
            running.series.add(sample);
            self.report.points = running.series.points();
        }
        let growth = sample.since(&base);
        self.report.seconds = growth.at.as_secs_f64();
        self.report.figures = ShadowFigures {
            present: RuleFigures::of_engines(&growth.engines),
            control_rule: self.settings.present.0.clone(),
            control: RuleFigures::of_rule(&growth.control),
            kv: RuleFigures::of_rule(&growth.kv),
            gpu_s_saved_a_day: growth.gpu_s_saved_a_day(running.calibration.prefill_tokens_per_s),
        };
    }

    fn calibrate(&mut self, engines: &Engines, now: NanosSinceStart) {
        let GivenFigures { kv_tokens, prefill_tokens_per_s } = self.settings.given;
        let found = Calibration::of(engines.sum(), self.intake.sum, prefill_tokens_per_s);
        let calibration = match found {
            Ok(calibration) => calibration,
            Err(fault) => {
                if self.report.fault.replace(fault) != Some(fault) {
                    warn!(%fault, "not calibrated yet");
                }
                return;
            }
        };
        let room = |rank: &ShadowRank| kv_tokens.map_or(rank.kv_tokens, u64::from);
        let ranks = &self.facts.ranks;
        let speeds: Vec<_> =
            ranks.iter().map(|rank| calibration.speed(room(rank), rank.running_max)).collect();
        let fleet_units = speeds.iter().map(|speed| u64::from(speed.kv_tokens)).sum();
        let block_units = block_units(fleet_units);
        let config = self.settings.config.clone();
        let plan = SimPlan { ranks: ranks.len(), engines: speeds, config, ..SimPlan::default() };
        let rules = vec![Rule::Own(Policy::Kv), self.settings.present.1];
        let plan = FleetPlan { plan, block_units, rules };
        let simulation = match Simulation::start(plan, self.clock) {
            Ok(simulation) => simulation,
            Err(error) => return warn!(%error, "no thread for the simulation"),
        };
        info!(
            tokens_per_unit = calibration.tokens_per_unit,
            prefill_tokens_per_s = calibration.prefill_tokens_per_s,
            between_tokens_ms = calibration.between_tokens_ms,
            answer_tokens = calibration.answer_tokens,
            mirrored_share = calibration.mirrored_share,
            "calibrated: the simulated caches fill"
        );
        self.report.fault = None;
        self.report.phase = ShadowPhase::WarmingUp;
        self.report.fleet.calibration = Some(calibration);
        let block_bytes = usize::try_from(u64::from(block_units) * UNIT_BYTES).unwrap_or(64);
        self.running = Some(RunningFleets {
            simulation,
            calibration,
            block_bytes,
            since: now,
            base: None,
            series: SampleSeries::default(),
        });
    }

    fn log(&self) {
        let ShadowReport { phase, figures, mirrored, seconds, .. } = &self.report;
        info!(
            ?phase,
            seconds,
            prompts = mirrored.prompts,
            lost = mirrored.lost,
            present_hits = figures.present.hit_rate,
            control_hits = figures.control.hit_rate,
            kv_hits = figures.kv.hit_rate,
            present_ttft_ms = figures.present.ttft_ms_mean,
            kv_ttft_ms = figures.kv.ttft_ms_mean,
            "shadow: present by the engines' counters, control ({}) and kv simulated",
            figures.control_rule
        );
    }

    fn write(&self) -> Result<(), String> {
        self.settings.json.as_deref().map_or(Ok(()), |file| write(file, &self.report))
    }
}

/// Replaces the file at once; only its owner can read it.
fn write(file: &Path, report: &ShadowReport) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("--json {}: {error}", file.display());
    let file = &replaceable_path(file).map_err(|error| failed(&error))?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let mut written = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    serde_json::to_writer_pretty(&mut written, report).map_err(|error| failed(&error))?;
    writeln!(written).map_err(|error| failed(&error))?;
    written.persist(file).map_err(|error| failed(&error))?;
    Ok(())
}

/// Time in parts of the whole; at least 1 at its end.
fn part(time_ns: u64, whole: Duration) -> f64 {
    if time_ns >= nanos(whole) {
        return 1.0;
    }
    Duration::from_nanos(time_ns).as_secs_f64() / whole.as_secs_f64()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root, `--json /dev/full` made a regular file of the device.
    #[test]
    fn the_report_takes_the_place_of_no_link_and_of_no_other_kind_of_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        write(&at("link"), &ShadowReport::default()).unwrap();
        assert!(at("link").is_symlink() && at("real").is_file());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let error = write(&at("socket"), &ShadowReport::default()).unwrap_err();
        assert!(error.ends_with("socket: it is no regular file"), "{error}");
    }
}

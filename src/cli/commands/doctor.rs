//! `forebay doctor`: checks the configuration, the machine, and the features of the workers.

use super::fleet_findings::{FleetFinding, fleet_findings};
use super::machine::MachineFacts;
use super::router_ports::RouterPorts;
use crate::cli::findings;
use crate::cli::process::{failed, plain, run_local};
use clap::Args;
use forebay_base::{Clock, NameFault, WorkerIndex};
use forebay_config::{
    Config, ConfigSource, DiscoveryConfig, EngineAddress, Flags, LoadedConfig, WorkerUrl,
};
use forebay_discovery::{
    Description, EventSubject, Examination, Listing, MissingFeature, ModelTexts, NamedWorkers,
    ProbeFactory, SignsOfLife, SuspectFeed, WorkerClients, is_answer, name_fault, suspect_feeds,
    trouble_help, workers_of_name,
};
use forebay_fleet::worker::{EngineLimits, PlacesLimit};
use forebay_tls::{CertificateFiles, LoadedCertificate, MissingIssuer};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Workers that are queried concurrently.
const WORKERS_QUERIED_MAX: usize = 32;
/// Longest time for all queries of a worker.
const WORKER_TIME_MAX: Duration = Duration::from_secs(60);

/// Flags of `forebay doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay doctor -c /etc/forebay.toml\n  \
    forebay doctor --worker http://gpu1:8000 --worker http://gpu2:8000\n\n\
    Looks at the configuration, at this machine (cores, NUMA, files, io_uring, ports) and at\n\
    each worker (reached, KV events and replay, prefix caching, tokenizer). A finding is a line:\n\
    what. help: what to do. Nothing is changed. Exit code 0: nothing found, 1: findings.")]
pub(crate) struct DoctorArgs {
    /// Configuration file of the router
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A worker; repeat for more
    #[arg(long = "worker", value_name = "URL")]
    workers: Vec<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    match report(args, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => failed(reason),
    }
}

/// Writes the report; true without findings.
pub(crate) fn report(args: &DoctorArgs, out: &mut impl Write) -> Result<bool, String> {
    let flags = Flags { workers: args.workers.clone(), ..Flags::default() };
    let mut loaded = ConfigSource { file: args.config.clone(), flags }.load()?;
    let of_file = loaded.read_workers();
    loaded.findings.extend(findings::of_environment());
    warn_of_servers(&mut loaded)?;
    let mut count = loaded.findings.len();
    let written = |error: io::Error| format!("cannot write the report: {error}");
    findings::write(&loaded.findings, out).map_err(written)?;
    let mut config = loaded.config;
    findings::add_workers(&mut config.workers, of_file);
    let machine = MachineFacts::gather(&config);
    let found = machine.findings(&config, &RouterPorts::of(config.listen));
    count += found.len();
    let cores = machine.cores.len();
    let about = if found.is_empty() { format!("{cores} cores") } else { String::new() };
    section(out, "machine", &about, &found).map_err(written)?;
    for (path, note) in certificate_notes(&config) {
        section(out, &format!("certificate {path}"), &note, &[]).map_err(written)?;
    }
    if findings::are_fatal(&loaded.findings) {
        writeln!(out, "workers: not looked at, mend the configuration first").map_err(written)?;
        return Ok(false);
    }
    for (url, found) in run_local(resolve_all(&config.discovery))? {
        match found {
            Ok(named) => findings::add_workers(&mut config.workers, named.workers),
            Err(fault) => {
                count += 1;
                section(out, &format!("name {url}"), "", &[fault]).map_err(written)?;
            }
        }
    }
    let config = Arc::new(config);
    let for_kv = config.policy.uses_overlap();
    let mut examined = run_local(examine_all(&config, for_kv))??;
    if for_kv {
        add_suspicions(&config, &mut examined);
    }
    for (name, examined) in &examined {
        let (about, lacks) = match examined {
            Ok(examined) => {
                let listing = examined.description.listing;
                let unwell = listing.unwell().map(|fault| unusable(&fault));
                let fault = unwell.or(listing.fault()).filter(|_| config.health.enabled);
                let list =
                    fault.map(|what| MissingFeature { what, help: Listing::HELP.to_owned() });
                let health = examined.health_fault.iter().filter(|_| config.health.enabled);
                let own = health.chain(&examined.lacks).cloned();
                let lacks = list.into_iter().chain(own).collect();
                let places = places_of(&config, name, &examined.description);
                let mut words = vec![examined.description.in_words(), places.in_words()];
                words.extend(examined.chat_notes.iter().cloned());
                (words.join(", "), lacks)
            }
            Err(why) => {
                let help = trouble_help(why).to_owned();
                (String::new(), vec![MissingFeature { what: unusable(why), help }])
            }
        };
        count += lacks.len();
        section(out, &format!("worker {name}"), &about, &lacks).map_err(written)?;
    }
    for FleetFinding { subject, fault } in fleet_findings(&config, &examined) {
        count += 1;
        section(out, &subject, "", &[fault]).map_err(written)?;
    }
    let sum = match count {
        0 => "nothing found".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    writeln!(out, "{sum}").and_then(|()| out.flush()).map_err(written)?;
    Ok(count == 0)
}

/// Certificates of a private authority that are sent without its certificate, by their files. Right
/// where a root has issued them, so no findings.
fn certificate_notes(config: &Config) -> Vec<(String, String)> {
    let of_clients = config.accept_files();
    let all = of_clients.into_iter().chain(config.admin_accept_files());
    let note = |files: CertificateFiles| {
        let missing = LoadedCertificate::read(&files).ok()?.missing_issuer?;
        let MissingIssuer { subject, issuer, is_intermediate } = missing;
        let note = format!("{subject} is sent alone: clients have to trust its issuer {issuer}");
        (!is_intermediate).then(|| (files.cert.display().to_string(), note))
    };
    all.flat_map(|files| files.certificates).filter_map(note).collect()
}

/// Fault of a worker without a description: a worker that answers is reached.
fn unusable(why: &str) -> String {
    if is_answer(why) {
        format!("answers, and is not usable: {why}")
    } else {
        format!("not reached: {why}")
    }
}

/// Adds findings about ranks with KV events that may belong to another rank.
fn add_suspicions(config: &Config, examined: &mut [ExaminedWorker]) {
    let engine = |url: &str| {
        let table = config.workers.iter().find(|worker| worker.url == *url)?;
        Some(EngineAddress::of(&WorkerUrl::parse(url).ok()?, table.tls.tls_name.as_deref()))
    };
    let engines: Vec<Option<EngineAddress>> = examined.iter().map(|(url, _)| engine(url)).collect();
    let mut subjects = Vec::new();
    for (place, ((name, found), engine)) in examined.iter().zip(&engines).enumerate() {
        let worker = WorkerIndex::try_from_index(place);
        let (Some(worker), Ok(found), Some(engine)) = (worker, found, engine) else { continue };
        let Examination { address, description, .. } = found;
        subjects.push(EventSubject { worker, name, engine, address: *address, description });
    }
    for SuspectFeed { worker, suspicion, .. } in suspect_feeds(&subjects) {
        if let Some((_, Ok(found))) = examined.get_mut(worker.index()) {
            let what = format!("suspect KV events: {}", suspicion.cause());
            found.lacks.push(MissingFeature { what, help: suspicion.help() });
        }
    }
}

/// Request limit that each rank of the worker will have.
fn places_of(config: &Config, url: &str, found: &Description) -> PlacesLimit {
    let configured = config.workers.iter().find(|worker| worker.url == url);
    let wanted = configured.map_or(config.load.source, |worker| config.load_source(worker));
    let running_max = found.ranks.first().and_then(|rank| rank.running_max).unwrap_or(0);
    let engine = EngineLimits { running_max, reports_load: found.reports_load(wanted) };
    let usual = config.worker_defaults.concurrency_max;
    let own = configured.and_then(|worker| worker.concurrency_max).or(usual);
    PlacesLimit::of(&config.flow, own, found.role, engine)
}

/// An `ok` line without findings, else a line per finding and the worker's description.
fn section(
    out: &mut impl Write,
    name: &str,
    about: &str,
    found: &[MissingFeature],
) -> io::Result<()> {
    if found.is_empty() {
        return writeln!(out, "{}", plain(&format!("{name}: ok, {about}")));
    }
    found.iter().try_for_each(|MissingFeature { what, help }| {
        let what = what.trim_end_matches(['.', '?']);
        writeln!(out, "{}", plain(&format!("{name}: {what}. help: {help}")))
    })?;
    if about.is_empty() {
        return Ok(());
    }
    writeln!(out, "{}", plain(&format!("{name}: is {about}")))
}

/// Workers of each name of `discovery.dns`, or the fault.
pub(super) async fn resolve_all(
    discovery: &DiscoveryConfig,
) -> Vec<(String, Result<NamedWorkers, MissingFeature>)> {
    let mut found = Vec::new();
    for url in &discovery.dns {
        let Ok(name) = WorkerUrl::parse(url) else { continue };
        let workers = workers_of_name(&name, discovery.name_server_address()).await;
        found.push((url.clone(), workers));
    }
    found
}

/// Adds a warning for each name of a server, beside workers, that does not resolve.
fn warn_of_servers(loaded: &mut LoadedConfig) -> Result<(), String> {
    for (key, fault) in run_local(unresolved_servers(&loaded.config))? {
        loaded.warn(key, format!("`{key}`: {}", fault.what), fault.help);
    }
    Ok(())
}

/// Faults of names of servers beside workers, with their keys. All names are looked up at once.
async fn unresolved_servers(config: &Config) -> Vec<(&'static str, NameFault)> {
    let look_up = |(key, host): (&'static str, String)| {
        let task = tokio::task::spawn_local(async move { name_fault(&host, key).await });
        (key, task)
    };
    let tasks: Vec<_> = config.server_hosts().into_iter().map(look_up).collect();
    let mut faults = Vec::new();
    for (key, task) in tasks {
        faults.extend(task.await.ok().flatten().map(|fault| (key, fault)));
    }
    faults
}

pub(super) type ExaminedWorker = (String, Result<Examination, String>);

/// Examines all configured workers, in their order. Without `for_kv`, only by GET.
pub(super) async fn examine_all(
    config: &Arc<Config>,
    for_kv: bool,
) -> Result<Vec<ExaminedWorker>, String> {
    let clock = Clock::start();
    let connectors = config.connectors().map_err(|error| error.to_string())?;
    let clients = WorkerClients::new(config, &connectors).map_err(|error| error.to_string())?;
    let mut probe_config = (**config).clone();
    // Enabled even if the router itself runs no health checks.
    probe_config.health.enabled = true;
    // The receiver is unused: `examine` returns its result.
    let (notices, _unused) = mpsc::channel(1);
    let probing = ProbeFactory {
        config: Arc::new(probe_config),
        clients,
        texts: ModelTexts::new(clock, config.image_key_file.is_some()),
        notices,
        signs: Rc::new(SignsOfLife::new(clock)),
    };
    let mut all = Vec::new();
    for some in config.workers.chunks(WORKERS_QUERIED_MAX) {
        let tasks: Vec<_> = some
            .iter()
            .filter_map(|worker| {
                let probe = probing.one(WorkerIndex(0), worker)?;
                let late = |_| Err(format!("no answer in {} s", WORKER_TIME_MAX.as_secs()));
                let config = Arc::clone(config);
                let task = async move {
                    let examined = probe.examine(for_kv, &config.adapters);
                    timeout(WORKER_TIME_MAX, examined).await.unwrap_or_else(late)
                };
                Some((worker.url.clone(), tokio::task::spawn_local(task)))
            })
            .collect();
        for (url, task) in tasks {
            all.push((url, task.await.unwrap_or_else(|error| Err(error.to_string()))));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 39: doctor found nothing at a name of NATS or of a collector without an address.
    #[test]
    fn a_server_whose_name_does_not_resolve_is_a_finding_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[nats]\nurl = \"nats://no-such.invalid\"\n[traces]\n\
                    endpoint = \"http://none.invalid:4318\"\n[[worker]]\n\
                    url = \"http://127.0.0.1:1\"\n";
        std::fs::write(file.path(), text).unwrap();
        let config = Some(file.path().to_owned());
        let mut out = Vec::new();
        let mut loaded = ConfigSource { file: config, flags: Flags::default() }.load().unwrap();
        warn_of_servers(&mut loaded).unwrap();
        findings::write(&loaded.findings, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for (line, key, host) in
            [(2, "nats.url", "no-such.invalid"), (4, "traces.endpoint", "none.invalid")]
        {
            let says = format!("`{key}`: resolver of the system, asked for {host}: ");
            let mut lines = text.lines().filter(|found| found.contains(&says));
            let found = lines.next().unwrap_or_default();
            assert!(found.contains(&format!(":{line}:")), "{text}");
            assert!(found.contains(&format!("correct `{key}`")), "{text}");
        }
    }

    #[test]
    fn a_worker_that_answers_is_not_called_unreached() {
        assert!(unusable("/v1/models: status 500").starts_with("answers"));
        assert!(unusable("it refuses the question (401)").starts_with("answers"));
        assert!(unusable("/v1/models: Connection refused").starts_with("not reached"));
    }

    #[test]
    fn a_finding_is_a_single_plain_line_for_any_text_of_a_worker() {
        let found = [MissingFeature { what: "a\n\u{1b}[31m?".to_owned(), help: "b".to_owned() }];
        let mut out = Vec::new();
        section(&mut out, "worker w", "", &found).unwrap();
        section(&mut out, "worker w", "m\r", &[]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "worker w: a\u{fffd}\u{fffd}[31m. help: b\nworker w: ok, m\u{fffd}\n");
    }
}

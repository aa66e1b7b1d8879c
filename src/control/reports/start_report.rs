//! Log report of the workers at start: equal workers together, then missing parts. Sans-IO:
//! descriptions in, lines out.

use super::super::fleet::{Fleet, FoundWorker};
use forebay_base::WorkerIndex;
use forebay_discovery::{MissingFeature, contradictions, is_answer, lacks, trouble_help};
use std::collections::{BTreeMap, HashMap};
use tracing::{info, warn};

/// Lines of the whole report.
const LINES_MAX: usize = 10;
/// Most names of workers in a line.
const NAMES_MAX: usize = 4;

/// Workers that the log has reported.
#[derive(Debug, Default)]
pub(super) struct ReportedWorkers {
    by_worker: HashMap<WorkerIndex, ReportedState>,
}

/// State of a worker in its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReportedState {
    has_answered: bool,
    has_lost_events: bool,
}

impl ReportedWorkers {
    /// Logs workers that are not reported yet, and workers that have answered since, or have lost
    /// their KV events. Without
    /// `for_kv`, missing parts of policy `kv` are left out.
    pub(super) fn log_new(&mut self, fleet: &Fleet, for_kv: bool) {
        let new: Vec<_> =
            fleet.found().filter(|(index, worker)| self.is_new(*index, worker)).collect();
        for (index, worker) in fleet.found().filter(|(_, worker)| !worker.has_lost_events) {
            // A later loss is another loss.
            if let Some(reported) = self.by_worker.get_mut(&index) {
                reported.has_lost_events = worker.has_lost_events;
            }
        }
        if new.is_empty() {
            return;
        }
        let now = new.iter().map(|(index, worker)| (*index, ReportedState::of(worker)));
        self.by_worker.extend(now);
        for line in report(new.into_iter().map(|(_, worker)| worker), for_kv) {
            match line.help {
                None => info!(workers = line.workers, found = line.found, "workers found"),
                Some(help) => {
                    warn!(
                        workers = line.workers,
                        missing = line.found,
                        help,
                        "workers lack something"
                    );
                }
            }
        }
    }

    /// A worker is reported once its first check has ended.
    fn is_new(&self, index: WorkerIndex, worker: &FoundWorker<'_>) -> bool {
        let now = ReportedState::of(worker);
        match self.by_worker.get(&index) {
            None => worker.description.is_some() || worker.trouble.is_some(),
            Some(before) => {
                now.has_answered && !before.has_answered
                    || now.has_lost_events && !before.has_lost_events
            }
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerIndex) {
        self.by_worker.remove(&worker);
    }
}

impl ReportedState {
    fn of(worker: &FoundWorker<'_>) -> Self {
        Self { has_answered: worker.has_answered(), has_lost_events: worker.has_lost_events }
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReportLine {
    /// Names of the workers in the line.
    workers: String,
    /// Kind of the workers, or the part that they lack.
    found: String,
    /// Advice, if a part is missing.
    help: Option<String>,
}

/// The report. Without `for_kv`, parts that policy `kv` needs are left out.
fn report<'a>(workers: impl Iterator<Item = FoundWorker<'a>>, for_kv: bool) -> Vec<ReportLine> {
    let mut kinds = BTreeMap::<String, Vec<&str>>::new();
    let mut missing = BTreeMap::<MissingFeature, Vec<&str>>::new();
    for FoundWorker { name, description, trouble, texts, places, .. } in workers {
        let Some(description) = description else {
            missing.entry(undescribed(trouble)).or_default().push(name);
            continue;
        };
        // Another server than an engine: its kind and its limit are the defaults, and not found.
        if let Some(fault) = description.listing.unwell() {
            missing.entry(undescribed(Some(&fault))).or_default().push(name);
            continue;
        }
        let found = format!("{}, {}", description.in_words(), places.in_words());
        kinds.entry(found).or_default().push(name);
        let of_kv = if for_kv { lacks(description, texts) } else { Vec::new() };
        for lack in contradictions(description).into_iter().chain(of_kv) {
            missing.entry(lack).or_default().push(name);
        }
    }
    let found = kinds.into_iter().map(|(found, workers)| ReportLine {
        workers: some_of(&workers),
        found,
        help: None,
    });
    let lacks = missing.into_iter().map(|(MissingFeature { what, help }, workers)| ReportLine {
        workers: some_of(&workers),
        found: what,
        help: Some(help),
    });
    // Missing parts come first, in case not all lines fit.
    let mut lines: Vec<_> = lacks.chain(found).collect();
    let left_out = lines.len().saturating_sub(LINES_MAX);
    if left_out > 0 {
        lines.truncate(LINES_MAX - 1);
        let found = format!("{} more lines", left_out + 1);
        let help = Some("`forebay doctor` says all".to_owned());
        lines.push(ReportLine { workers: "others".to_owned(), found, help });
    }
    lines.sort_by_key(|line| line.help.is_some());
    lines
}

/// Line of a worker without a description, by the reason of its last failed check.
fn undescribed(trouble: Option<&str>) -> MissingFeature {
    let what = match trouble {
        Some(reason) if is_answer(reason) => format!("not usable, {reason}: it takes no traffic"),
        _ => "not reached yet: it takes no traffic".to_owned(),
    };
    let help = trouble_help(trouble.unwrap_or_default());
    MissingFeature { what, help: format!("{help}; `forebay doctor` says more") }
}

fn some_of(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_MAX).copied().collect();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_discovery::{DescribedRank, Description, EngineReport, Listing, ServerTraits};
    use forebay_fleet::worker::{Dialect, LimitSource, PlacesLimit, Role};

    fn worker(ranks: usize, rank: &DescribedRank) -> Description {
        Description {
            dialect: Dialect::Vllm,
            models: Vec::new(),
            listing: Listing::Any,
            ranks: vec![rank.clone(); ranks],
            role: Role::Both,
            source: None,
            server: ServerTraits::default(),
            reported: EngineReport::default(),
        }
    }

    fn lines(workers: &[(String, Option<Description>)], for_kv: bool) -> Vec<ReportLine> {
        let texts = BTreeMap::new();
        let found = workers.iter().map(|(name, description)| FoundWorker {
            name,
            description: description.as_ref(),
            trouble: None,
            texts: &texts,
            places: PlacesLimit { places_max: 32, source: LimitSource::Declared },
            has_lost_events: false,
        });
        report(found, for_kv)
    }

    #[test]
    fn workers_that_are_alike_share_a_line() {
        let bare = DescribedRank::default();
        let fleet: Vec<_> =
            (0..300).map(|number| (format!("w{number}"), Some(worker(1, &bare)))).collect();
        let report = lines(&fleet, true);
        assert_eq!(report.len(), 2, "{report:?}");
        assert_eq!(report[0].workers, "w0, w1, w2, w3 and 296 more");
        assert_eq!(report[0].found, "vLLM, any model, 1 rank, limit 32 (declared)");
        assert!(report[1].found.contains("no KV events") && report[1].help.is_some(), "{report:?}");
        assert_eq!(lines(&fleet, false).len(), 1, "other policies need none");
    }

    #[test]
    fn a_server_that_is_no_engine_is_not_found_as_an_engine() {
        let bare = DescribedRank::default();
        let of = |is_well| Description {
            dialect: Dialect::Openai,
            listing: Listing::Nothing { status: Some(404), is_well },
            ..worker(1, &bare)
        };
        for for_kv in [false, true] {
            let report = lines(&[("w".to_owned(), Some(of(false)))], for_kv);
            let [line] = &report[..] else { panic!("{report:?}") };
            assert_eq!(line.found, "not usable, /v1/models: status 404: it takes no traffic");
            assert!(line.help.as_ref().is_some_and(|help| help.contains("port")), "{line:?}");
        }
        let report = lines(&[("w".to_owned(), Some(of(true)))], false);
        assert!(report[0].help.is_none() && report[0].found.contains("OpenAI"), "{report:?}");
    }

    /// M1: 40 ms after a worker joins, the log called the worker unreached.
    #[test]
    fn a_worker_is_reported_after_its_first_check() {
        let texts = BTreeMap::new();
        let places = PlacesLimit { places_max: 32, source: LimitSource::Declared };
        let index = WorkerIndex::try_from_index(0).unwrap();
        let mut reported = ReportedWorkers::default();
        let mut found = FoundWorker {
            name: "w",
            description: None,
            trouble: None,
            texts: &texts,
            places,
            has_lost_events: false,
        };
        assert!(!reported.is_new(index, &found), "no check has ended");
        found.trouble = Some("/v1/models: Connection refused");
        assert!(reported.is_new(index, &found));
        reported.by_worker.insert(index, ReportedState::of(&found));
        assert!(!reported.is_new(index, &found), "once");
        let described = worker(1, &DescribedRank::default());
        found.description = Some(&described);
        assert!(reported.is_new(index, &found), "it answers now");
        reported.by_worker.insert(index, ReportedState::of(&found));
        assert!(!reported.is_new(index, &found));
        found.has_lost_events = true;
        assert!(reported.is_new(index, &found), "its KV events are lost");
    }

    /// M1: an engine that refuses the key runs, so no help is to start it.
    #[test]
    fn a_worker_that_answers_is_not_to_be_started() {
        let refuses = undescribed(Some("it refuses the question (401)"));
        assert!(refuses.what.starts_with("not usable, it refuses"), "{refuses:?}");
        assert!(refuses.help.contains("api_key_file"), "{refuses:?}");
        for trouble in [None, Some("/v1/models: Connection refused")] {
            let lost = undescribed(trouble);
            assert!(lost.what.starts_with("not reached"), "{lost:?}");
            assert!(lost.help.starts_with("start it"), "{lost:?}");
        }
    }

    #[test]
    fn a_report_is_bounded_and_lists_missing_parts() {
        let bare = DescribedRank::default();
        let mut fleet: Vec<_> =
            (1..=20).map(|ranks| (format!("w{ranks}"), Some(worker(ranks, &bare)))).collect();
        fleet.push(("late".to_owned(), None));
        let report = lines(&fleet, true);
        assert_eq!(report.len(), LINES_MAX);
        let missing: Vec<_> = report.iter().filter(|line| line.help.is_some()).collect();
        assert!(missing.iter().any(|line| line.workers == "late"), "{report:?}");
        assert!(missing.iter().any(|line| line.found == "13 more lines"), "{report:?}");
        let caching = DescribedRank { reuses_prefixes: Some(true), ..bare };
        let report = lines(&[("w".to_owned(), Some(worker(2, &caching)))], false);
        assert_eq!(
            report[0].found,
            "vLLM, any model, 2 ranks, prefix caching, limit 32 (declared)"
        );
    }
}

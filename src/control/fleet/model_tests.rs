//! The names of workers, over every order of events.

use super::model_state::{Contender, ModelEvent, ModelState, SoleWorker};
use super::*;
use forebay_config::WorkerConfig;
use forebay_discovery::{EngineReport, Listing, ServedModel, ServerTraits, configured_model};
use forebay_fleet::worker::{ANY_MODEL, FleetSnapshot, ModelKind, Rank};
use forebay_prompt::parse::{ApiRequest, Endpoint};
use forebay_select::{NoModel, model};

const STATES: [ModelState; 10] = [
    ModelState::Unasked,
    ModelState::Remembered,
    ModelState::Absent,
    ModelState::Listed,
    ModelState::Kept,
    ModelState::Lost,
    ModelState::Awaited,
    ModelState::Listless,
    ModelState::Configured,
    ModelState::Gone,
];

const fn nothing(status: Option<u16>) -> Listing {
    Listing::Nothing { status, is_well: false }
}

/// The code does what the table in the module doc states.
#[test]
fn every_state_takes_every_event_as_the_table_has_it() {
    let doc = include_str!("model_state.rs");
    let rows = doc.lines().filter_map(|line| line.strip_prefix("//! | "));
    let rows: Vec<Vec<&str>> =
        rows.map(|row| row.trim_end_matches(" |").split('|').map(str::trim).collect()).collect();
    let word = |state: ModelState| format!("{state:?}").to_lowercase();
    for state in STATES {
        let row = rows.iter().find(|row| *row[0] == *word(state)).expect("each state has a row");
        let none = [None, Some(404), Some(501)].map(nothing);
        let none = none.map(ModelEvent::Answer);
        let names = [ModelEvent::Answer(Listing::Listed)];
        let columns: [(usize, &[ModelEvent]); 5] = [
            (1, &names),
            (2, &none),
            (3, &[]),
            (4, &[ModelEvent::Down]),
            (5, &[ModelEvent::Removed]),
        ];
        for (column, events) in columns {
            let wanted = if row[column].is_empty() { word(state) } else { row[column].to_owned() };
            for event in events {
                assert_eq!(word(state.after(*event)), wanted, "{state:?} {event:?}");
            }
        }
        let names = match (state.serves(), state.has_names()) {
            (true, true) => "served",
            (false, true) => "expected",
            _ => "unknown",
        };
        assert_eq!(row[6], names, "{state:?}");
        for listing in [Listing::Configured, Listing::Any] {
            let after = state.after(ModelEvent::Answer(listing));
            assert_eq!(after == ModelState::Configured, state != ModelState::Gone);
        }
    }
}

/// An event of a worker in the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerEvent {
    Lists,
    ListsNothing,
    HasNoList,
    GoesUp,
    GoesDown,
    Leaves,
    Joins,
}

const WORKER_EVENTS: [WorkerEvent; 7] = [
    WorkerEvent::Lists,
    WorkerEvent::ListsNothing,
    WorkerEvent::HasNoList,
    WorkerEvent::GoesUp,
    WorkerEvent::GoesDown,
    WorkerEvent::Leaves,
    WorkerEvent::Joins,
];
const NAMES: [&str; 2] = ["a", "b"];

fn tested_config() -> Arc<Config> {
    let worker =
        |host: &&str| WorkerConfig { url: format!("http://{host}:1"), ..WorkerConfig::default() };
    Arc::new(Config { workers: NAMES.iter().map(worker).collect(), ..Config::default() })
}

fn describe(fleet: &mut Fleet, worker: usize, listing: Listing) {
    let models = match listing {
        Listing::Listed => vec![configured_model(NAMES[worker])],
        _ => Vec::new(),
    };
    describe_by(fleet, worker, models, listing);
}

fn describe_by(fleet: &mut Fleet, worker: usize, models: Vec<ServedModel>, listing: Listing) {
    let description = Description {
        dialect: Dialect::Vllm,
        models,
        listing,
        ranks: vec![DescribedRank::default()],
        role: Role::Both,
        source: None,
        server: ServerTraits::default(),
        reported: EngineReport::default(),
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    let index = WorkerIndex::try_from_index(worker).unwrap();
    fleet.describe(index, address, description, BTreeMap::new());
}

/// Two workers: the first may list `a`, the second `b`.
struct Scene {
    fleet: Fleet,
    config: Arc<Config>,
    /// The worker has listed its name, in its current life.
    listed: [bool; 2],
    described: [bool; 2],
    present: [bool; 2],
}

impl Scene {
    fn new() -> Self {
        let config = tested_config();
        let fleet = Fleet::new(&config, KeySeed(1));
        Self { fleet, config, listed: [false; 2], described: [false; 2], present: [true; 2] }
    }

    fn describe(&mut self, worker: usize, listing: Listing) {
        describe(&mut self.fleet, worker, listing);
        self.described[worker] |= self.present[worker];
        self.listed[worker] |= self.present[worker] && listing == Listing::Listed;
    }

    fn happens(&mut self, worker: usize, what: WorkerEvent) {
        let index = WorkerIndex::try_from_index(worker).unwrap();
        match what {
            WorkerEvent::Lists => self.describe(worker, Listing::Listed),
            WorkerEvent::ListsNothing => self.describe(worker, nothing(None)),
            WorkerEvent::HasNoList => self.describe(worker, nothing(Some(404))),
            WorkerEvent::GoesUp => drop(self.fleet.set_state(index, WorkerState::Up)),
            WorkerEvent::GoesDown => drop(self.fleet.set_state(index, WorkerState::Down)),
            WorkerEvent::Leaves => {
                self.fleet.remove(index);
                self.listed[worker] = false;
                self.described[worker] = false;
                self.present[worker] = false;
            }
            WorkerEvent::Joins => {
                let joined = self.fleet.add(&self.config, &self.config.workers[worker], None);
                assert_eq!(joined.is_ok(), !self.present[worker]);
                self.present[worker] = true;
            }
        }
        // The control plane publishes each change.
        self.fleet.snapshot();
    }

    fn snapshot(&mut self) -> FleetSnapshot {
        self.fleet.snapshot()
    }
}

fn asked(fleet: &FleetSnapshot, name: &str) -> Result<Vec<WorkerIndex>, NoModel> {
    let request =
        ApiRequest { model: name.into(), has_model: !name.is_empty(), ..ApiRequest::default() };
    let (_, model) = model(fleet, Endpoint::Completions, &request)?;
    Ok(model.ranks.iter().map(|rank| fleet.ranks[rank.index()].worker).collect())
}

/// All sequences of `length` events of two workers.
fn sequences(length: usize) -> impl Iterator<Item = Vec<(usize, WorkerEvent)>> {
    let kinds = 2 * WORKER_EVENTS.len();
    (0..kinds.pow(u32::try_from(length).unwrap())).map(move |mut number| {
        let mut next = || {
            let kind = number % kinds;
            number /= kinds;
            (kind % 2, WORKER_EVENTS[kind / 2])
        };
        (0..length).map(|_| next()).collect()
    })
}

/// Every sequence of up to four events of two workers.
#[test]
fn a_worker_serves_what_it_listed_and_nothing_of_others() {
    for sequence in (0..=4).flat_map(sequences) {
        let mut scene = Scene::new();
        sequence.iter().for_each(|(worker, what)| scene.happens(*worker, *what));
        let fleet = scene.snapshot();
        let workers = [WorkerIndex(0), WorkerIndex(1)];
        let awaits = (0..2).any(|worker| scene.present[worker] && !scene.described[worker]);
        for (worker, name) in NAMES.iter().enumerate() {
            let found = asked(&fleet, name);
            if scene.listed[worker] {
                let is_own = found.as_ref().is_ok_and(|of| *of == [workers[worker]]);
                assert!(is_own || found == Err(NoModel::NoneYet), "{name} {found:?} {sequence:?}");
            } else if scene.listed[1 - worker] {
                // Never the worker that listed another name.
                let wanted = if awaits { NoModel::NoneYet } else { NoModel::Unknown };
                assert_eq!(found, Err(wanted), "{name} {sequence:?}");
            }
        }
        let any = fleet.model(ANY_MODEL).map_or(&[][..], |(_, model)| &model.ranks);
        assert!(any.is_empty() || scene.listed == [false; 2], "{sequence:?}");
        assert!(any.len() <= 1, "two unknown workers share no names: {sequence:?}");
        for (name, listed) in NAMES.iter().zip(scene.listed) {
            let ranks = fleet.model(name).map_or(0, |(_, model)| model.ranks.len());
            assert!(ranks == 0 || listed, "{name} {sequence:?}");
        }
        if fleet.can_serve() {
            let served = NAMES.iter().any(|name| asked(&fleet, name).is_ok());
            assert!(served, "ready, and nothing is served: {sequence:?}");
        }
    }
}

/// Whatever the second worker does, a name of the first is answered as without it.
#[test]
fn the_names_of_a_worker_do_not_depend_on_others() {
    for sequence in (0..=4).flat_map(sequences) {
        let mut both = Scene::new();
        sequence.iter().for_each(|(worker, what)| both.happens(*worker, *what));
        if !both.listed[0] {
            continue;
        }
        let mut alone = Scene::new();
        alone.happens(1, WorkerEvent::Leaves);
        let own = sequence.iter().filter(|(worker, _)| *worker == 0);
        own.for_each(|(worker, what)| alone.happens(*worker, *what));
        let found = asked(&both.snapshot(), "a");
        assert_eq!(found, asked(&alone.snapshot(), "a"), "{sequence:?}");
        // The removal of the second worker restores all.
        both.happens(1, WorkerEvent::Leaves);
        for name in ["a", "b", "x", ""] {
            let found = asked(&both.snapshot(), name);
            let wanted = asked(&alone.snapshot(), name);
            assert_eq!(found, wanted, "{name:?} {sequence:?}");
        }
        // The worker recovers as soon as it lists.
        both.happens(0, WorkerEvent::Lists);
        assert_eq!(asked(&both.snapshot(), "a"), Ok(vec![WorkerIndex(0)]), "{sequence:?}");
    }
}

#[test]
fn a_worker_that_came_back_serves_nothing_until_it_lists() {
    let mut scene = Scene::new();
    scene.happens(0, WorkerEvent::Lists);
    for (what, wanted) in [
        (WorkerEvent::Lists, Ok(vec![WorkerIndex(1)])),
        (WorkerEvent::GoesUp, Ok(vec![WorkerIndex(1)])),
        // The worker is up, and only its list is missing.
        (WorkerEvent::HasNoList, Ok(vec![WorkerIndex(1)])),
        (WorkerEvent::GoesDown, Ok(vec![WorkerIndex(1)])),
        (WorkerEvent::ListsNothing, Err(NoModel::NoneYet)),
        (WorkerEvent::GoesUp, Err(NoModel::NoneYet)),
        (WorkerEvent::Lists, Ok(vec![WorkerIndex(1)])),
        (WorkerEvent::Leaves, Err(NoModel::Unknown)),
    ] {
        scene.happens(1, what);
        assert_eq!(asked(&scene.snapshot(), "b"), wanted, "{what:?}");
    }
}

#[test]
fn a_fault_of_a_list_is_logged_once_and_shown() {
    let mut scene = Scene::new();
    let worker = WorkerIndex(1);
    let news = |scene: &mut Scene| {
        let news = scene.fleet.take_list_news(worker);
        (news.lost.is_some(), news.is_back)
    };
    scene.happens(1, WorkerEvent::HasNoList);
    assert_eq!((news(&mut scene), news(&mut scene)), ((true, false), (false, false)));
    assert!(scene.fleet.lacks(worker).unwrap().contains("/v1/models: status 404"));
    scene.happens(1, WorkerEvent::HasNoList);
    assert_eq!(news(&mut scene), (false, false));
    scene.happens(1, WorkerEvent::ListsNothing);
    assert_eq!(news(&mut scene), (true, false), "another reason");
    scene.happens(1, WorkerEvent::Lists);
    assert_eq!((news(&mut scene), scene.fleet.lacks(worker)), ((false, true), None));
}

#[test]
fn configured_names_are_expected_before_the_worker_answers() {
    let mut config = (*tested_config()).clone();
    config.workers[1].models = vec!["b".into()];
    let mut fleet = Fleet::new(&Arc::new(config.clone()), KeySeed(1));
    describe(&mut fleet, 0, Listing::Listed);
    let found = ["a", "b", "x"].map(|name| asked(&fleet.snapshot(), name));
    assert_eq!(found, [Ok(vec![WorkerIndex(0)]), Err(NoModel::NoneYet), Err(NoModel::Unknown)]);
    // Configured names end with their configuration.
    config.workers[1].models.clear();
    fleet.set_config(Arc::new(config));
    assert_eq!(asked(&fleet.snapshot(), "x"), Err(NoModel::NoneYet), "it has to be asked now");
}

#[test]
fn a_worker_of_a_source_holds_up_no_unknown_name() {
    let config = tested_config();
    let mut fleet = Fleet::new(&config, KeySeed(1));
    fleet.remove(WorkerIndex(1));
    describe(&mut fleet, 0, Listing::Listed);
    let worker = WorkerConfig { url: "http://c:1".into(), ..WorkerConfig::default() };
    fleet.add(&config, &worker, None).unwrap();
    assert_eq!(asked(&fleet.snapshot(), "x"), Err(NoModel::Unknown));
}

/// A worker that listed new names each time filled all places of the process for good.
#[test]
fn the_names_of_one_worker_leave_places_for_others() {
    let config = tested_config();
    let mut fleet = Fleet::new(&config, KeySeed(1));
    for life in 0..8 {
        for list in 0..4 {
            let name = |number| configured_model(&format!("{life}-{list}-{number}"));
            let models = (0..256).map(name).collect();
            describe_by(&mut fleet, 0, models, Listing::Listed);
        }
        fleet.remove(WorkerIndex(0));
        fleet.add(&config, &config.workers[0], None).unwrap();
    }
    describe(&mut fleet, 1, Listing::Listed);
    assert_eq!(asked(&fleet.snapshot(), "b"), Ok(vec![WorkerIndex(1)]));
}

/// N7: engines that came back with another model left no trace but an INFO.
#[test]
fn a_model_is_dropped_until_a_worker_lists_it_or_its_worker_goes() {
    let config = tested_config();
    let mut fleet = Fleet::new(&config, KeySeed(1));
    let dropped = |fleet: &mut Fleet| -> Vec<String> {
        let models = fleet.snapshot().models.into_iter();
        let dropped = models.filter(|model| matches!(model.kind, ModelKind::Dropped(_)));
        dropped.map(|model| model.name.to_string()).collect()
    };
    let list = |fleet: &mut Fleet, worker, names: &[&str], listing| {
        let models = names.iter().map(|name| configured_model(name)).collect();
        describe_by(fleet, worker, models, listing);
    };
    list(&mut fleet, 0, &["tiny", "alias"], Listing::Listed);
    list(&mut fleet, 1, &["tiny"], Listing::Listed);
    assert_eq!(dropped(&mut fleet), [""; 0]);
    list(&mut fleet, 0, &["other", "alias"], Listing::Listed);
    assert_eq!(fleet.dropped_by("tiny"), Some(WorkerIndex(0)));
    assert_eq!(dropped(&mut fleet), [""; 0], "the second worker serves it");
    list(&mut fleet, 1, &["other"], Listing::Listed);
    assert_eq!(dropped(&mut fleet), ["tiny"]);
    list(&mut fleet, 0, &["tiny"], Listing::Listed);
    assert_eq!(dropped(&mut fleet), ["alias"], "tiny is back");
    let lost = |fleet: &mut Fleet| -> Vec<usize> {
        let count = |rank: &Rank| rank.losses.as_ref().map_or(0, |losses| losses.models.len());
        fleet.snapshot().ranks.iter().map(count).collect()
    };
    assert_eq!(lost(&mut fleet), [2, 1], "M1: a model that a sibling serves was a loss of none");
    fleet.remove(WorkerIndex(0));
    assert_eq!(dropped(&mut fleet), ["tiny"], "the second worker served it before");
    assert_eq!(lost(&mut fleet), [0, 1], "an operator removed the worker");
    list(&mut fleet, 1, &["adapter"], Listing::Configured);
    assert_eq!(dropped(&mut fleet), [""; 0], "an operator wrote other models");
    list(&mut fleet, 1, &["other"], Listing::Listed);
    assert_eq!(dropped(&mut fleet), [""; 0], "an operator took the models away");
}

#[test]
fn the_next_process_knows_the_names_and_the_sole_worker() {
    let mut scene = Scene::new();
    scene.happens(0, WorkerEvent::Lists);
    scene.happens(1, WorkerEvent::Lists);
    scene.happens(1, WorkerEvent::GoesUp);
    let remembered = scene.fleet.remembered();
    let up: Vec<bool> = remembered.iter().map(|known| known.up).collect();
    assert_eq!(up, [false, true]);
    let mut next = Scene::new();
    next.fleet.remember(remembered);
    assert_eq!(asked(&next.snapshot(), "b"), Err(NoModel::NoneYet));
    assert_eq!(asked(&next.snapshot(), "x"), Err(NoModel::Unknown));
    next.happens(0, WorkerEvent::HasNoList);
    next.happens(1, WorkerEvent::HasNoList);
    assert_eq!(asked(&next.snapshot(), "a"), Err(NoModel::NoneYet), "it was down");
    assert_eq!(asked(&next.snapshot(), "b"), Ok(vec![WorkerIndex(1)]), "it was up");

    let mut scene = Scene::new();
    scene.happens(1, WorkerEvent::Leaves);
    scene.happens(0, WorkerEvent::HasNoList);
    scene.happens(0, WorkerEvent::GoesUp);
    let remembered = scene.fleet.remembered();
    assert!(remembered.len() == 1 && remembered[0].sole, "{remembered:?}");
    let mut next = Scene::new();
    next.fleet.remember(remembered);
    // Another worker without a list answers first.
    next.happens(1, WorkerEvent::HasNoList);
    next.happens(1, WorkerEvent::GoesUp);
    assert_eq!(asked(&next.snapshot(), "x"), Err(NoModel::NoneYet));
    next.happens(0, WorkerEvent::HasNoList);
    next.happens(0, WorkerEvent::GoesUp);
    assert_eq!(asked(&next.snapshot(), "x"), Ok(vec![WorkerIndex(0)]));
}

fn contender(worker: u16, state: ModelState, was_up: bool, is_in_file: bool) -> Contender {
    Contender { worker: WorkerIndex(worker), state, was_up, is_in_file }
}

#[test]
fn the_sole_worker_is_harmed_by_no_odd_one() {
    use ModelState::{Listed, Listless, Unasked};
    let own = contender(0, Listless, true, true);
    let mut sole = SoleWorker::default();
    assert_eq!(sole.among(&[own]), Some(WorkerIndex(0)));
    for odd in [
        contender(1, Listless, false, false),
        contender(1, Listless, true, true),
        contender(1, Unasked, false, true),
    ] {
        assert_eq!(sole.among(&[own, odd]), Some(WorkerIndex(0)), "{odd:?}");
        let is_it = SoleWorker::default().among(&[own, odd]).is_some();
        assert_eq!(is_it, !odd.is_in_file, "at a start: {odd:?}");
    }
    assert_eq!(sole.among(&[own, contender(1, Listed, true, false)]), None);
    assert_eq!(sole.among(&[own]), Some(WorkerIndex(0)), "the other has gone");
    // A worker that never was up makes room for an engine.
    let mut sole = SoleWorker::default();
    let odd = contender(1, Listless, false, true);
    assert_eq!(sole.among(&[odd]), Some(WorkerIndex(1)));
    assert_eq!(sole.among(&[odd, own]), Some(WorkerIndex(0)));
}

//! Decides which LoRA adapters to load, and at which workers. Sans-IO: the fleet, the time and
//! answers of workers in, workers to call out. An adapter that was requested once is kept at
//! `copies` workers from then on: a restarted worker has lost the adapter. An adapter that a
//! running engine unloads is loaded again only after another request.

use forebay_base::limits::{ADAPTER_LISTED_MAX, ADAPTER_REFUSED_TIME, ADAPTER_RETRY_TIME};
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_board::{LoadBoard, RankLoad};
use forebay_config::{AdapterConfig, Config};
use forebay_fleet::worker::{Dialect, FleetSnapshot, Model, WorkerState};
use forebay_mailbox::{AdapterRefusal, AdapterRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time between two descriptions of a worker that should list an adapter.
const DESCRIBE_PERIOD: Duration = Duration::from_secs(1);

/// All adapters that were requested.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    wanted: BTreeMap<Arc<str>, WantedAdapter>,
    /// Generation of the last inspected fleet.
    generation: u64,
    /// Next time at which work may fall due without an event.
    look_at: Option<NanosSinceStart>,
    /// Next time to describe workers that should list an adapter.
    describe_at: NanosSinceStart,
}

#[derive(Debug, Default)]
struct WantedAdapter {
    /// Requests that wait for the first worker.
    waiting: Vec<AdapterRefusal>,
    /// Load state at each called worker.
    at: BTreeMap<WorkerIndex, LoadState>,
    /// Missing copies are loaded. An engine that unloads the adapter resets the flag, until a
    /// request finds no worker with the adapter.
    has_demand: bool,
}

/// Load state of an adapter at a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoadState {
    /// The call is under way.
    Asked,
    /// The engine has loaded the adapter. Its list is to show the adapter soon.
    Loaded { at: NanosSinceStart },
    /// The worker lists the adapter, in this life of its process.
    Listed { life: u32 },
    /// The engine has refused, with this fault.
    Refused { at: NanosSinceStart, fault: String },
}

/// A worker that is to load an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdapterLoad {
    pub(super) adapter: Arc<str>,
    pub(super) worker: WorkerIndex,
    pub(super) target: &'static str,
    pub(super) body: String,
}

/// A worker that could have the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdapterHost {
    worker: WorkerIndex,
    /// Adapters that the worker has loaded.
    adapters: usize,
    in_flight: u32,
    has_it: bool,
    /// Changes when the worker may have been restarted.
    life: u32,
}

impl Adapters {
    /// Adds a request that waits for an adapter.
    pub(super) fn add_request(&mut self, ask: AdapterRequest) {
        let wanted = self.wanted.entry(ask.name).or_default();
        wanted.waiting.push(ask.refused);
        wanted.has_demand = true;
        self.generation = 0;
    }

    /// Takes the result of a load call.
    pub(super) fn take_result(
        &mut self,
        adapter: &str,
        worker: WorkerIndex,
        result: Result<(), String>,
        now: NanosSinceStart,
    ) {
        let Some(wanted) = self.wanted.get_mut(adapter) else { return };
        let state = match result {
            Ok(()) => LoadState::Loaded { at: now },
            Err(fault) => LoadState::Refused { at: now, fault },
        };
        wanted.at.insert(worker, state);
        self.generation = 0;
    }

    /// Workers to describe again now: they have loaded an adapter that they did not list so far.
    pub(super) fn unlisted(&mut self, now: NanosSinceStart) -> Vec<WorkerIndex> {
        if now < self.describe_at {
            return Vec::new();
        }
        self.describe_at = now.plus(DESCRIBE_PERIOD);
        let is_loaded = |state: &LoadState| matches!(state, LoadState::Loaded { .. });
        let at = self.wanted.values().flat_map(|wanted| &wanted.at);
        at.filter(|(_, state)| is_loaded(state)).map(|(worker, _)| *worker).collect()
    }

    /// Workers to call now.
    pub(super) fn due(
        &mut self,
        config: &Config,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Vec<AdapterLoad> {
        let is_late = self.look_at.is_some_and(|at| now >= at);
        if self.generation == fleet.generation && !is_late {
            return Vec::new();
        }
        self.generation = fleet.generation;
        let table = |name: &str| config.adapters.iter().find(|table| table.name == name);
        self.wanted.retain(|name, wanted| {
            wanted.waiting.retain(|waiting| !waiting.is_left());
            let is_known = table(name).is_some();
            if !is_known {
                let why = format!(
                    "The adapter `{name}` is no longer configured. GET /v1/models lists what is \
                     served."
                );
                wanted.refuse(&why.into());
            }
            is_known
        });
        let mut due = Vec::new();
        for (name, wanted) in &mut self.wanted {
            let Some(table) = table(name) else { continue };
            let chosen = wanted.choose(table, fleet, board, now);
            due.extend(chosen.into_iter().filter_map(|worker| load(table, name, worker, fleet)));
        }
        self.look_at = self.wanted.values().filter_map(WantedAdapter::look_at).min();
        due
    }
}

impl WantedAdapter {
    fn refuse(&mut self, why: &Arc<str>) {
        self.waiting.drain(..).for_each(|waiting| waiting.refuse(why));
    }

    /// When the next wait of a worker is over.
    fn look_at(&self) -> Option<NanosSinceStart> {
        let over = self.at.values().filter_map(|state| match state {
            LoadState::Loaded { at } => Some(at.plus(ADAPTER_LISTED_MAX)),
            LoadState::Refused { at, .. } => self.has_demand.then(|| at.plus(ADAPTER_RETRY_TIME)),
            LoadState::Asked | LoadState::Listed { .. } => None,
        });
        over.min()
    }

    /// Compares with the lists of workers, and removes states that are over.
    fn look(&mut self, hosts: &[AdapterHost], now: NanosSinceStart) {
        let host = |worker| hosts.iter().find(|host| host.worker == worker);
        let waits = !self.waiting.is_empty();
        let mut was_unloaded = false;
        self.at.retain(|&worker, state| match state {
            LoadState::Asked => true,
            LoadState::Loaded { at } => now < at.plus(ADAPTER_LISTED_MAX),
            LoadState::Refused { at, .. } => {
                let after = if waits { ADAPTER_REFUSED_TIME } else { ADAPTER_RETRY_TIME };
                now < at.plus(after)
            }
            // A restarted worker has another life, and a worker that is down has none.
            LoadState::Listed { life } => {
                let lost = host(worker).is_some_and(|host| !host.has_it && host.life == *life);
                was_unloaded |= lost;
                host(worker).is_some_and(|host| host.has_it)
            }
        });
        for host in hosts.iter().filter(|host| host.has_it) {
            self.at.insert(host.worker, LoadState::Listed { life: host.life });
            // Waiting requests find the adapter in the next fleet.
            self.waiting.clear();
        }
        self.has_demand &= !was_unloaded || !self.waiting.is_empty();
    }

    /// Orders hosts by the fewest adapters, then by the fewest requests.
    fn choose(
        &mut self,
        table: &AdapterConfig,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Vec<WorkerIndex> {
        let mut hosts = hosts(table, fleet, board);
        self.look(&hosts, now);
        if !self.has_demand {
            return Vec::new();
        }
        let there = hosts.iter().filter(|host| self.may_have(host.worker)).count();
        hosts.retain(|host| !self.at.contains_key(&host.worker));
        if there == 0 && hosts.is_empty() && !self.waiting.is_empty() {
            let why = self.why_not(table);
            self.refuse(&why.into());
        }
        hosts.sort_by_key(|host| (host.adapters, host.in_flight, host.worker.index()));
        let copies = usize::try_from(table.copies).unwrap_or(usize::MAX);
        hosts.truncate(copies.saturating_sub(there));
        self.at.extend(hosts.iter().map(|host| (host.worker, LoadState::Asked)));
        hosts.into_iter().map(|host| host.worker).collect()
    }

    fn may_have(&self, worker: WorkerIndex) -> bool {
        self.at.get(&worker).is_some_and(|state| !matches!(state, LoadState::Refused { .. }))
    }

    /// Message of the refusal when no worker is left to call.
    fn why_not(&self, table: &AdapterConfig) -> String {
        let faults: Vec<&str> = self.at.values().filter_map(LoadState::fault).collect();
        if faults.is_empty() {
            return format!(
                "No worker is up that serves `{}`, which the adapter `{}` is for. Try again later.",
                table.of, table.name
            );
        }
        format!("No worker could load the adapter `{}`: {}", table.name, faults.join("; "))
    }
}

impl LoadState {
    fn fault(&self) -> Option<&str> {
        match self {
            Self::Refused { fault, .. } => Some(fault),
            Self::Asked | Self::Loaded { .. } | Self::Listed { .. } => None,
        }
    }
}

/// The workers that are up and serve the adapter's model, once each.
fn hosts(table: &AdapterConfig, fleet: &FleetSnapshot, board: &LoadBoard) -> Vec<AdapterHost> {
    let mut hosts: Vec<AdapterHost> = Vec::new();
    let Some((_, base)) = fleet.model(&table.of) else { return hosts };
    for &rank in &base.ranks {
        let Some((at, worker)) = fleet.rank(rank) else { continue };
        if worker.state != WorkerState::Up || worker.dialect == Dialect::Openai {
            continue;
        }
        let in_flight = board.rank(rank).map_or(0, RankLoad::in_flight);
        match hosts.iter_mut().find(|host| host.worker == at.worker) {
            Some(host) => host.in_flight += in_flight,
            None => hosts.push(AdapterHost {
                worker: at.worker,
                adapters: adapters_at(fleet, rank).count(),
                in_flight,
                has_it: adapters_at(fleet, rank).any(|model| *model.name == *table.name),
                life: worker.generation.engine,
            }),
        }
    }
    hosts
}

fn adapters_at(fleet: &FleetSnapshot, rank: RankIndex) -> impl Iterator<Item = &Model> {
    fleet.models.iter().filter(move |model| model.is_adapter() && model.ranks.contains(&rank))
}

fn load(
    table: &AdapterConfig,
    name: &Arc<str>,
    worker: WorkerIndex,
    fleet: &FleetSnapshot,
) -> Option<AdapterLoad> {
    let target = match fleet.workers.get(worker.index())?.dialect {
        Dialect::Sglang => "/load_lora_adapter",
        Dialect::Vllm | Dialect::Openai => "/v1/load_lora_adapter",
    };
    let body = serde_json::json!({ "lora_name": table.name, "lora_path": table.path }).to_string();
    Some(AdapterLoad { adapter: Arc::clone(name), worker, target, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::{ModelKind, RoomDemand, RoomLimits, test_support};

    const START: NanosSinceStart = NanosSinceStart(0);

    struct Scene {
        adapters: Adapters,
        config: Config,
        fleet: FleetSnapshot,
        board: LoadBoard,
    }

    /// Three workers serve `base`; `a` has to be loaded at `copies` of them.
    fn scene(copies: u32) -> Scene {
        let [name, path, of] = ["a", "/adapters/a", "base"].map(str::to_owned);
        let adapters = vec![AdapterConfig { name, path, of, copies }];
        Scene {
            adapters: Adapters::default(),
            config: Config { adapters, ..Config::default() },
            fleet: FleetSnapshot {
                generation: 1,
                workers: vec![test_support::worker(); 3],
                ranks: (0..3).map(test_support::rank).collect(),
                models: vec![test_support::model("base", &[0, 1, 2])],
                ..FleetSnapshot::default()
            },
            board: LoadBoard::new(),
        }
    }

    impl Scene {
        fn ask(&mut self) -> AdapterRefusal {
            let refused = AdapterRefusal::default();
            let ask = AdapterRequest { name: "a".into(), refused: refused.clone() };
            self.adapters.add_request(ask);
            refused
        }

        fn due(&mut self, now: NanosSinceStart) -> Vec<usize> {
            let due = self.adapters.due(&self.config, &self.fleet, &self.board, now);
            due.iter().map(|load| load.worker.index()).collect()
        }

        fn answer(&mut self, worker: u16, result: Result<(), &str>, now: NanosSinceStart) {
            let result = result.map_err(str::to_owned);
            self.adapters.take_result("a", WorkerIndex(worker), result, now);
        }

        /// The ranks list the adapter from now on.
        fn lists(&mut self, name: &str, ranks: &[u16]) {
            self.fleet.generation += 1;
            self.fleet.models.retain(|model| &*model.name != name);
            let model = test_support::model(name, ranks);
            self.fleet.models.push(Model { kind: ModelKind::Adapter, ..model });
        }
    }

    #[test]
    fn an_adapter_goes_to_the_workers_with_the_fewest_adapters_then_requests() {
        let mut scene = scene(2);
        scene.lists("other", &[0]);
        let load = scene.board.rank(RankIndex(1)).unwrap();
        assert!(load.try_acquire(RoomLimits::default(), RoomDemand::default()).is_some());
        assert_eq!(scene.due(START), [0; 0], "no request");
        let waiting = scene.ask();
        let due = scene.adapters.due(&scene.config, &scene.fleet, &scene.board, START);
        assert_eq!(due.iter().map(|load| load.worker.index()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(due[0].target, "/v1/load_lora_adapter");
        assert_eq!(due[0].body, r#"{"lora_name":"a","lora_path":"/adapters/a"}"#);
        scene.ask();
        assert_eq!(scene.due(START), [0; 0], "they are asked once");
        assert_eq!(waiting.why(), None);
    }

    #[test]
    fn a_worker_that_was_restarted_or_left_is_replaced() {
        let mut scene = scene(2);
        scene.ask();
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(0, Ok(()), START);
        scene.answer(1, Ok(()), START);
        scene.lists("a", &[0, 1]);
        assert_eq!(scene.due(START), [0; 0]);
        let worker = &mut scene.fleet.workers[0];
        worker.generation = worker.generation.with_other_engine();
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0], "it was restarted");
        scene.answer(0, Ok(()), START);
        scene.lists("a", &[0, 1]);
        scene.fleet.workers[1].state = WorkerState::Up.draining(false);
        assert_eq!(scene.due(START), [2]);
    }

    #[test]
    fn what_an_engine_unloads_stays_away_until_a_request_finds_none() {
        let mut scene = scene(2);
        scene.ask();
        assert_eq!(scene.due(START), [0, 1]);
        scene.lists("a", &[0, 1]);
        assert_eq!(scene.due(START), [0; 0]);
        // Empty caches are no restart.
        let worker = &mut scene.fleet.workers[0];
        worker.generation = worker.generation.with_empty_caches();
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0; 0], "it had no room, or was told to");
        scene.lists("a", &[]);
        assert_eq!(scene.due(START.plus(ADAPTER_RETRY_TIME * 2)), [0; 0]);
        scene.ask();
        assert_eq!(scene.due(START), [0, 1]);
    }

    #[test]
    fn a_worker_that_loaded_an_adapter_has_time_to_list_it() {
        let mut scene = scene(1);
        let waiting = scene.ask();
        assert_eq!(scene.due(START), [0]);
        scene.answer(0, Ok(()), START);
        assert_eq!(scene.due(START), [0; 0]);
        scene.ask();
        assert_eq!(scene.due(START), [0; 0], "it is not told twice");
        let soon = START.plus(DESCRIBE_PERIOD);
        assert_eq!(scene.adapters.unlisted(soon), [WorkerIndex(0)], "it is described again");
        assert_eq!(scene.adapters.unlisted(soon), []);
        let late = START.plus(ADAPTER_LISTED_MAX);
        assert_eq!((scene.due(late), waiting.why()), (vec![0], None));
    }

    #[test]
    fn waiting_requests_get_the_reason_when_all_workers_refused() {
        let mut scene = scene(2);
        scene.fleet.models = vec![test_support::model("base", &[0, 1])];
        let first = scene.ask();
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(0, Err("w0 answered 400"), START);
        assert_eq!((scene.due(START), first.why()), (vec![], None), "another one may load it");
        scene.ask();
        assert_eq!(scene.due(START), [0; 0], "nobody is told twice");
        scene.answer(1, Err("w1 answered 404"), START);
        assert_eq!(scene.due(START), [0; 0]);
        let refusal = "No worker could load the adapter `a`: w0 answered 400; w1 answered 404";
        assert_eq!(first.why().as_deref(), Some(refusal));
        let soon = START.plus(ADAPTER_REFUSED_TIME / 2);
        let at_once = scene.ask();
        assert_eq!(scene.due(soon), [0; 0]);
        assert_eq!(at_once.why().as_deref(), Some(refusal));
        let later = START.plus(ADAPTER_REFUSED_TIME);
        let again = scene.ask();
        assert_eq!((scene.due(later), again.why()), (vec![0, 1], None));
    }

    #[test]
    fn a_third_worker_is_asked_when_one_of_two_refuses() {
        let mut scene = scene(2);
        let waiting = scene.ask();
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(1, Ok(()), START);
        scene.answer(0, Err("w0 answered 400"), START);
        assert_eq!((scene.due(START), waiting.why()), (vec![2], None));
        scene.answer(2, Err("w2 answered 400"), START);
        assert_eq!((scene.due(START), waiting.why()), (vec![], None), "a single success is enough");
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0; 0]);
        let later = START.plus(ADAPTER_RETRY_TIME);
        assert_eq!(scene.due(later), [0], "the second copy is tried again, without a client");
    }

    #[test]
    fn without_a_worker_for_its_model_or_a_table_no_request_waits() {
        let mut scene = scene(1);
        for worker in &mut scene.fleet.workers {
            worker.dialect = Dialect::Openai;
        }
        let waiting = scene.ask();
        assert_eq!(scene.due(START), [0; 0]);
        let refusal =
            "No worker is up that serves `base`, which the adapter `a` is for. Try again later.";
        assert_eq!(waiting.why().as_deref(), Some(refusal));
        let waiting = scene.ask();
        scene.config.adapters.clear();
        assert_eq!(scene.due(START), [0; 0]);
        assert!(waiting.why().unwrap().contains("no longer configured"));
        assert!(scene.adapters.wanted.is_empty());
    }

    #[test]
    fn sglang_has_its_own_path() {
        let mut scene = scene(1);
        scene.fleet.workers[0].dialect = Dialect::Sglang;
        scene.ask();
        let due = scene.adapters.due(&scene.config, &scene.fleet, &scene.board, START);
        assert_eq!(due[0].target, "/load_lora_adapter");
    }
}

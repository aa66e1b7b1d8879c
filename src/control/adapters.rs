//! Which LoRA adapters are wanted, and at which workers each is to be loaded. Sans-IO: the fleet,
//! the time and what workers answered in, workers to ask out. An adapter that was asked for once is
//! kept at `copies` workers from then on: a worker that was restarted has lost it.

use forebay_base::limits::ADAPTER_REFUSED_TIME;
use forebay_base::{NanosSinceStart, RankIndex, WorkerIndex};
use forebay_config::{AdapterConfig, Config};
use forebay_fleet::mailbox::{AdapterAsk, AdapterRefused};
use forebay_fleet::worker::{Dialect, FleetSnapshot, LoadBoard, Model, RankLoad, WorkerState};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All adapters that somebody has asked for.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    wanted: BTreeMap<Arc<str>, WantedAdapter>,
    /// Of the fleet that was looked at last.
    generation: u64,
}

#[derive(Debug, Default)]
struct WantedAdapter {
    /// Requests that wait for the first worker.
    waiting: Vec<AdapterRefused>,
    /// Asked, and silent so far.
    loading: Vec<WorkerIndex>,
    /// What those said that refused, since the last that did not.
    faults: Vec<String>,
    /// Nobody is asked until then, and why.
    refused: Option<(NanosSinceStart, Arc<str>)>,
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
    /// How many it has, of any name.
    adapters: usize,
    in_flight: u32,
    has_it: bool,
}

impl Adapters {
    /// Requests wait for an adapter.
    pub(super) fn asked(&mut self, ask: AdapterAsk, now: NanosSinceStart) {
        let wanted = self.wanted.entry(ask.name).or_default();
        match &wanted.refused {
            Some((until, why)) if now < *until => ask.refused.refuse(why),
            _ => {
                wanted.refused = None;
                wanted.waiting.push(ask.refused);
                self.generation = 0;
            }
        }
    }

    /// A worker has answered.
    pub(super) fn answered(
        &mut self,
        adapter: &str,
        worker: WorkerIndex,
        said: Result<(), String>,
        now: NanosSinceStart,
    ) {
        let Some(wanted) = self.wanted.get_mut(adapter) else { return };
        wanted.loading.retain(|loading| *loading != worker);
        match said {
            Ok(()) => wanted.faults.clear(),
            Err(fault) => wanted.faults.push(fault),
        }
        if wanted.loading.is_empty() && !wanted.faults.is_empty() {
            let why = format!(
                "No worker could load the adapter `{adapter}`: {}",
                wanted.faults.join("; ")
            );
            wanted.refuse(why.into(), now);
        }
    }

    /// Workers to ask now.
    pub(super) fn due(
        &mut self,
        config: &Config,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Vec<AdapterLoad> {
        if std::mem::replace(&mut self.generation, fleet.generation) == fleet.generation {
            return Vec::new();
        }
        let table = |name: &str| config.adapters.iter().find(|table| table.name == name);
        self.wanted.retain(|name, wanted| {
            wanted.waiting.retain(|waiting| !waiting.is_left());
            let is_known = table(name).is_some();
            if !is_known {
                wanted.refuse(format!("The adapter `{name}` is no longer configured.").into(), now);
            }
            is_known
        });
        let mut due = Vec::new();
        for (name, wanted) in &mut self.wanted {
            let Some(table) = table(name) else { continue };
            let chosen = wanted.choose(table, fleet, board, now);
            due.extend(chosen.into_iter().filter_map(|worker| load(table, name, worker, fleet)));
        }
        due
    }
}

impl WantedAdapter {
    fn refuse(&mut self, why: Arc<str>, now: NanosSinceStart) {
        self.waiting.drain(..).for_each(|waiting| waiting.refuse(&why));
        self.faults.clear();
        self.refused = Some((now.plus(ADAPTER_REFUSED_TIME), why));
    }

    /// Those with the fewest adapters first, then those with the fewest requests.
    fn choose(
        &mut self,
        table: &AdapterConfig,
        fleet: &FleetSnapshot,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) -> Vec<WorkerIndex> {
        if self.refused.as_ref().is_some_and(|(until, _)| now < *until) {
            return Vec::new();
        }
        let mut hosts = hosts(table, fleet, board);
        if hosts.iter().any(|host| host.has_it) {
            // They see it in their own fleet.
            self.waiting.clear();
        }
        if hosts.is_empty() && !self.waiting.is_empty() {
            let why = format!(
                "No worker is up that serves `{}`, which the adapter `{}` is for.",
                table.of, table.name
            );
            self.refuse(why.into(), now);
        }
        let is_there = |host: &AdapterHost| host.has_it || self.loading.contains(&host.worker);
        let there = hosts.iter().filter(|host| is_there(host)).count();
        hosts.retain(|host| !is_there(host));
        hosts.sort_by_key(|host| (host.adapters, host.in_flight, host.worker.index()));
        let copies = usize::try_from(table.copies).unwrap_or(usize::MAX);
        hosts.truncate(copies.saturating_sub(there));
        self.loading.extend(hosts.iter().map(|host| host.worker));
        hosts.into_iter().map(|host| host.worker).collect()
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
            }),
        }
    }
    hosts
}

fn adapters_at(fleet: &FleetSnapshot, rank: RankIndex) -> impl Iterator<Item = &Model> {
    fleet.models.iter().filter(move |model| model.is_adapter && model.ranks.contains(&rank))
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
    use forebay_fleet::worker::{RoomLimits, RoomWanted, test_support};
    use std::time::Duration;

    const START: NanosSinceStart = NanosSinceStart(0);

    struct Scene {
        adapters: Adapters,
        config: Config,
        fleet: FleetSnapshot,
        board: LoadBoard,
    }

    /// Three workers serve `base`; `a` is to be at so many of them.
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
        fn ask(&mut self, now: NanosSinceStart) -> AdapterRefused {
            let refused = AdapterRefused::default();
            let ask = AdapterAsk { name: "a".into(), refused: refused.clone() };
            self.adapters.asked(ask, now);
            refused
        }

        fn due(&mut self, now: NanosSinceStart) -> Vec<usize> {
            let due = self.adapters.due(&self.config, &self.fleet, &self.board, now);
            due.iter().map(|load| load.worker.index()).collect()
        }

        fn answer(&mut self, worker: u16, said: Result<(), &str>, now: NanosSinceStart) {
            let said = said.map_err(str::to_owned);
            self.adapters.answered("a", WorkerIndex(worker), said, now);
        }

        /// These ranks list that adapter from now on.
        fn lists(&mut self, name: &str, ranks: &[u16]) {
            self.fleet.generation += 1;
            self.fleet.models.retain(|model| &*model.name != name);
            let model = test_support::model(name, ranks);
            self.fleet.models.push(Model { is_adapter: true, ..model });
        }
    }

    #[test]
    fn an_adapter_goes_to_the_workers_with_the_fewest_adapters_then_requests() {
        let mut scene = scene(2);
        scene.lists("other", &[0]);
        let load = scene.board.rank(RankIndex(1)).unwrap();
        assert!(load.try_acquire(RoomLimits::default(), RoomWanted::default()).is_some());
        assert_eq!(scene.due(START), [0; 0], "nobody asks");
        let waiting = scene.ask(START);
        let due = scene.adapters.due(&scene.config, &scene.fleet, &scene.board, START);
        assert_eq!(due.iter().map(|load| load.worker.index()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(due[0].target, "/v1/load_lora_adapter");
        assert_eq!(due[0].body, r#"{"lora_name":"a","lora_path":"/adapters/a"}"#);
        scene.ask(START);
        assert_eq!(scene.due(START), [0; 0], "they are asked once");
        assert_eq!(waiting.why(), None);
    }

    #[test]
    fn a_worker_that_lost_it_or_left_is_replaced() {
        let mut scene = scene(2);
        scene.ask(START);
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(0, Ok(()), START);
        scene.answer(1, Ok(()), START);
        scene.lists("a", &[0, 1]);
        assert_eq!(scene.due(START), [0; 0]);
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0], "it was restarted");
        scene.answer(0, Ok(()), START);
        scene.lists("a", &[0, 1]);
        scene.fleet.workers[1].state = WorkerState::Up.draining();
        assert_eq!(scene.due(START), [2]);
    }

    #[test]
    fn those_who_wait_hear_why_when_all_have_refused() {
        let mut scene = scene(2);
        let first = scene.ask(START);
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(0, Err("w0 answered 400"), START);
        assert_eq!(first.why(), None, "another one may load it");
        scene.answer(1, Err("w1 answered 404"), START);
        let said = "No worker could load the adapter `a`: w0 answered 400; w1 answered 404";
        assert_eq!(first.why().as_deref(), Some(said));
        let at_once = scene.ask(START.plus(ADAPTER_REFUSED_TIME / 2));
        assert_eq!(at_once.why().as_deref(), Some(said));
        assert_eq!(scene.due(START), [0; 0]);
        let later = START.plus(ADAPTER_REFUSED_TIME + Duration::from_secs(1));
        let again = scene.ask(later);
        assert_eq!((scene.due(later), again.why()), (vec![0, 1], None));
    }

    #[test]
    fn one_that_loads_it_is_enough() {
        let mut scene = scene(2);
        let waiting = scene.ask(START);
        assert_eq!(scene.due(START), [0, 1]);
        scene.answer(1, Ok(()), START);
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0; 0], "the other one is still asked");
        scene.answer(0, Err("w0 answered 400"), START);
        assert_eq!(waiting.why(), None, "it sees the adapter in its own fleet");
        scene.lists("a", &[1]);
        assert_eq!(scene.due(START), [0; 0], "not before the time is over");
    }

    #[test]
    fn without_a_worker_for_its_model_or_a_table_nobody_waits() {
        let mut scene = scene(1);
        for worker in &mut scene.fleet.workers {
            worker.dialect = Dialect::Openai;
        }
        let waiting = scene.ask(START);
        assert_eq!(scene.due(START), [0; 0]);
        let said = "No worker is up that serves `base`, which the adapter `a` is for.";
        assert_eq!(waiting.why().as_deref(), Some(said));
        let later = START.plus(ADAPTER_REFUSED_TIME);
        let waiting = scene.ask(later);
        scene.config.adapters.clear();
        assert_eq!(scene.due(later), [0; 0]);
        assert!(waiting.why().unwrap().contains("no longer configured"));
        assert!(scene.adapters.wanted.is_empty());
    }

    #[test]
    fn sglang_has_its_own_path() {
        let mut scene = scene(1);
        scene.fleet.workers[0].dialect = Dialect::Sglang;
        scene.ask(START);
        let due = scene.adapters.due(&scene.config, &scene.fleet, &scene.board, START);
        assert_eq!(due[0].target, "/load_lora_adapter");
    }
}

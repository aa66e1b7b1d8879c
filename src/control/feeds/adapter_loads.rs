//! Calls that load adapters into engines. Each call is a task beside the loop, in its turn among
//! all calls of engines.

use super::super::environment::Environment;
use super::super::fleet::{EngineAccess, Fleet};
use super::adapters::{AdapterLoad, Adapters};
use super::engine_calls::EngineCalls;
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::worker::FleetSnapshot;
use std::sync::Arc;
use tokio::task::JoinSet;
use tracing::{error, info};

/// Most bytes of an engine's answer, for the log and for clients.
const ANSWER_BYTES_MAX: usize = 512;

/// Wanted adapters, and the calls under way.
#[derive(Default)]
pub(super) struct AdapterLoads {
    wanted: Adapters,
    calls: JoinSet<LoadOutcome>,
}

/// Answer of an engine, or its fault.
struct LoadOutcome {
    adapter: Arc<str>,
    worker: WorkerIndex,
    result: Result<(), String>,
}

impl AdapterLoads {
    /// Takes requests of shards and answers of engines, and begins the calls that are due. Returns
    /// workers that are to be described again: their next description may have the adapter.
    pub(super) fn tick(
        &mut self,
        env: &Environment,
        fleet: &Fleet,
        published: &FleetSnapshot,
        engines: &EngineCalls,
        now: NanosSinceStart,
    ) -> Vec<WorkerIndex> {
        while let Some(ask) = env.ports.next_adapter_ask() {
            self.wanted.add_request(ask);
        }
        while let Some(outcome) = self.calls.try_join_next() {
            outcome.into_iter().for_each(|outcome| self.take_outcome(fleet, outcome, now));
        }
        let unlisted = self.wanted.unlisted(now);
        for load in self.wanted.due(&env.config, published, &env.board, now) {
            let access = fleet.engine_access(load.worker);
            self.begin(load, access, engines);
        }
        unlisted
    }

    fn take_outcome(&mut self, fleet: &Fleet, outcome: LoadOutcome, now: NanosSinceStart) {
        let LoadOutcome { adapter, worker, result } = outcome;
        let name = fleet.name(worker).unwrap_or_default();
        match &result {
            Ok(()) => info!(worker = &*name, adapter = &*adapter, "loaded for a client"),
            Err(fault) => error!(
                worker = &*name,
                adapter = &*adapter,
                "not loaded: {fault}; see `path` of its [[adapter]], and the engine's log"
            ),
        }
        let result = result.map_err(|fault| format!("{name}: {fault}"));
        self.wanted.take_result(&adapter, worker, result, now);
    }

    fn begin(&mut self, load: AdapterLoad, access: Option<EngineAccess>, engines: &EngineCalls) {
        let AdapterLoad { adapter, worker, target, body } = load;
        let clients = engines.clients().clone();
        let turns = engines.engine_turns();
        self.calls.spawn_local(async move {
            let _turn = turns.acquire().await;
            let result = match access {
                None => Err("it is gone".to_owned()),
                Some(EngineAccess { authority, api_key }) => {
                    let body = Some(body.into());
                    let answer = clients.hand(&authority, api_key, target, body, ANSWER_BYTES_MAX);
                    answer.await.and_then(|(status, text, _)| match status {
                        200..300 => Ok(()),
                        // Answer of both engines for an adapter that is already loaded.
                        400 if text.contains("already") && text.contains("loaded") => Ok(()),
                        _ => Err(format!("it answered {status}: {text}")),
                    })
                }
            };
            LoadOutcome { adapter, worker, result }
        });
    }
}

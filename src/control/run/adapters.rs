//! Adapters that clients have asked for are loaded by workers.

use super::super::feeds::LoadOutcome;
use super::Control;
use forebay_base::NanosSinceStart;
use std::rc::Rc;
use tracing::{error, info};

impl Control {
    /// Takes what shards ask for and what workers have answered, and asks workers.
    pub(super) fn load_adapters(&mut self, now: NanosSinceStart) {
        while let Some(ask) = self.env.ports.next_adapter_ask() {
            self.probes.adapters.wanted.asked(ask);
        }
        while let Some(outcome) = self.probes.adapters.next_answer() {
            self.adapter_answered(outcome, now);
        }
        // Their next description may have the adapter.
        let unlisted = self.probes.adapters.wanted.unlisted(now);
        unlisted.into_iter().for_each(|worker| self.probes.doubt(worker));
        let config = &self.env.config;
        let board = &self.env.board;
        for load in self.probes.adapters.wanted.due(config, &self.snapshot, board, now) {
            let asked_as = self.fleet.asked_as(load.worker);
            let clients = self.probes.clients().clone();
            let turns = Rc::clone(&self.probes.turns().engines);
            self.probes.adapters.ask(load, asked_as, clients, turns);
        }
    }

    fn adapter_answered(&mut self, outcome: LoadOutcome, now: NanosSinceStart) {
        let LoadOutcome { adapter, worker, said } = outcome;
        let name = self.fleet.name(worker).unwrap_or_default();
        match &said {
            Ok(()) => info!(worker = &*name, adapter = &*adapter, "loaded for a client"),
            Err(fault) => error!(
                worker = &*name,
                adapter = &*adapter,
                "not loaded: {fault}; see `path` of its [[adapter]], and the engine's log"
            ),
        }
        let said = said.map_err(|fault| format!("{name}: {fault}"));
        self.probes.adapters.wanted.answered(&adapter, worker, said, now);
    }
}

//! Log of names of `[[model]]` with a model that no worker serves. A line for each name once
//! all workers and sources have listed what they have, and a line when a worker serves the model.

use forebay_fleet::worker::FleetSnapshot;
use forebay_select::{is_settled, unserved_tables};
use std::collections::BTreeSet;
use tracing::{info, warn};

/// Names without a served model that the log knows.
#[derive(Debug, Default)]
pub(super) struct AliasLog {
    generation: u64,
    unserved: BTreeSet<AliasedModel>,
}

/// A name of `[[model]]`, and the model that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AliasedModel {
    name: String,
    to: String,
}

impl AliasLog {
    /// Writes the lines of a new fleet. Workers of the start have answered.
    pub(super) fn observe(&mut self, fleet: &FleetSnapshot) {
        if fleet.generation == self.generation {
            return;
        }
        self.generation = fleet.generation;
        let now = unserved_tables(fleet)
            .map(|table| AliasedModel { name: table.name.clone(), to: table.to.clone() });
        let mut now: BTreeSet<AliasedModel> = now.collect();
        // A missing worker begins no line. It ends no line either: the model is still not served.
        if !is_settled(fleet) {
            now.retain(|table| self.unserved.contains(table));
        }
        for AliasedModel { name, to } in now.difference(&self.unserved) {
            warn!(
                name,
                to,
                help =
                    "correct `to`, or start a worker of that model; GET /v1/models has the names",
                "no worker serves the model behind a name of `[[model]]`: requests get 404"
            );
        }
        for AliasedModel { name, to } in self.unserved.difference(&now) {
            info!(name, to, "no name of `[[model]]` lacks this model any more");
        }
        self.unserved = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Config, ModelConfig};
    use forebay_fleet::worker::test_support;
    use std::sync::Arc;

    /// M1: no line begins while a worker or a source may still bring the model, and none ends.
    #[test]
    fn a_line_begins_once_all_workers_and_sources_are_known() {
        let table = ModelConfig { name: "chat".into(), to: "late".into(), weight: 1 };
        let config = Config { models: vec![table], ..Config::default() };
        let mut log = AliasLog::default();
        let mut fleet = FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: vec![test_support::rank(0)],
            models: vec![test_support::model("base", &[0])],
            config: Arc::new(config),
            ..FleetSnapshot::default()
        };
        let mut lacks = |fleet: &mut FleetSnapshot, is_incomplete: bool| {
            fleet.generation += 1;
            fleet.serving.is_incomplete = is_incomplete;
            log.observe(fleet);
            log.unserved.len()
        };
        assert_eq!(lacks(&mut fleet, true), 0, "a worker of a source has not answered");
        assert_eq!(lacks(&mut fleet, false), 1);
        assert_eq!(lacks(&mut fleet, true), 1, "a later fault ends no line");
        fleet.models.push(test_support::model("late", &[0]));
        assert_eq!(lacks(&mut fleet, true), 0, "it is served");
    }
}

//! Log of names of `[[model]]` and `[[adapter]]` with a model that no worker serves. A line for
//! each name once all workers and sources have listed what they have, and a line when a worker
//! serves the model.

use forebay_config::ModelConfig;
use forebay_fleet::worker::FleetSnapshot;
use forebay_select::{is_settled, unserved_adapters, unserved_tables};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// Names that a concern lists; it counts further names.
const CONCERN_NAMES_MAX: usize = 3;

/// Names without a served model that the log knows.
#[derive(Debug, Default)]
pub(super) struct AliasLog {
    generation: u64,
    /// True for a model of a name that also stands for served models.
    unserved: BTreeMap<NamedModel, bool>,
}

/// A name of a table, and the model that the name needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NamedModel {
    /// A name of `[[model]]`, and the model that it stands for.
    Alias { name: String, to: String },
    /// A name of `[[adapter]]`, and the model that it is for.
    Adapter { name: String, of: String },
}

impl AliasLog {
    /// Writes the lines of a new fleet. Workers of the start have answered.
    pub(super) fn observe(&mut self, fleet: &FleetSnapshot) {
        if fleet.generation == self.generation {
            return;
        }
        self.generation = fleet.generation;
        let aliases = unserved_tables(fleet)
            .map(|table| NamedModel::Alias { name: table.name.clone(), to: table.to.clone() });
        let adapters = unserved_adapters(fleet)
            .map(|table| NamedModel::Adapter { name: table.name.clone(), of: table.of.clone() });
        let unserved: Vec<&ModelConfig> = unserved_tables(fleet).collect();
        let is_served = |name: &str| {
            let mut tables = fleet.config.models.iter().filter(|table| table.name == name);
            tables.any(|table| !unserved.contains(&table))
        };
        let mut now: BTreeMap<NamedModel, bool> = aliases
            .chain(adapters)
            .map(|table| {
                let is_split = matches!(&table, NamedModel::Alias { name, .. } if is_served(name));
                (table, is_split)
            })
            .collect();
        // A missing worker begins no line. It ends no line either: the model is still not served.
        if !is_settled(fleet) {
            now.retain(|table, _| self.unserved.contains_key(table));
        }
        let begun = now.iter().filter(|(table, _)| !self.unserved.contains_key(*table));
        begun.for_each(|(table, is_split)| table.log_begin(*is_split));
        self.unserved
            .keys()
            .filter(|table| !now.contains_key(*table))
            .for_each(NamedModel::log_end);
        self.unserved = now;
    }

    /// The concern about names with a model that no worker serves.
    pub(super) fn concern(&self) -> Option<String> {
        let shown = self.unserved.iter().take(CONCERN_NAMES_MAX);
        let shown: Vec<String> = shown.map(|(table, is_split)| table.loss(*is_split)).collect();
        let more = match self.unserved.len().saturating_sub(CONCERN_NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let tables = shown.join(", ");
        (!shown.is_empty()).then(|| {
            format!("no worker serves {tables}{more}; correct the tables, or start such workers")
        })
    }
}

impl NamedModel {
    /// The model, and what happens to requests for the name.
    fn loss(&self, is_split: bool) -> String {
        match self {
            Self::Alias { name, to } if is_split => {
                format!("{to} (`[[model]]` {name}: its share goes to the other models)")
            }
            Self::Alias { name, to } => format!("{to} (`[[model]]` {name}: requests get 404)"),
            Self::Adapter { name, of } => format!("{of} (`[[adapter]]` {name}: requests fail)"),
        }
    }

    fn log_begin(&self, is_split: bool) {
        match self {
            Self::Alias { name, to } if is_split => warn!(
                name,
                to,
                help =
                    "correct `to`, or start a worker of that model; GET /v1/models has the names",
                "no worker serves a model behind a name of `[[model]]`: its share goes to \
                 the other models of the name"
            ),
            Self::Alias { name, to } => warn!(
                name,
                to,
                help =
                    "correct `to`, or start a worker of that model; GET /v1/models has the names",
                "no worker serves the model behind a name of `[[model]]`: requests get 404"
            ),
            Self::Adapter { name, of } => warn!(
                name,
                of,
                help =
                    "correct `of`, or start a worker of that model; GET /v1/models has the names",
                "no worker serves the model of an `[[adapter]]`: requests for the adapter fail"
            ),
        }
    }

    fn log_end(&self) {
        match self {
            Self::Alias { name, to } => {
                info!(name, to, "no name of `[[model]]` lacks this model any more");
            }
            Self::Adapter { name, of } => {
                info!(name, of, "no `[[adapter]]` lacks this model any more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{AdapterConfig, Config};
    use forebay_fleet::worker::test_support;
    use std::sync::Arc;

    /// M1: no line begins while a worker or a source may still bring the model, and none ends.
    #[test]
    fn a_line_begins_once_all_workers_and_sources_are_known() {
        let table = ModelConfig { name: "chat".into(), to: "late".into(), weight: 1 };
        let adapter =
            AdapterConfig { name: "lora".into(), of: "late".into(), ..Default::default() };
        let config = Config { models: vec![table], adapters: vec![adapter], ..Config::default() };
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
        assert_eq!(lacks(&mut fleet, false), 2, "issue 39: an adapter had no line");
        assert_eq!(lacks(&mut fleet, true), 2, "a later fault ends no line");
        fleet.models.push(test_support::model("late", &[0]));
        assert_eq!(lacks(&mut fleet, true), 0, "it is served");
    }

    /// M1: the share of a split name went to the other model. The line of the log named a 404.
    #[test]
    fn a_share_without_a_worker_is_a_concern_with_its_end() {
        let table =
            |name: &str, to: &str| ModelConfig { name: name.into(), to: to.into(), weight: 1 };
        let models = vec![table("chat", "base"), table("chat", "late"), table("lone", "late")];
        let mut log = AliasLog::default();
        let mut fleet = FleetSnapshot {
            workers: vec![test_support::worker()],
            ranks: vec![test_support::rank(0)],
            models: vec![test_support::model("base", &[0])],
            config: Arc::new(Config { models, ..Config::default() }),
            generation: 1,
            ..FleetSnapshot::default()
        };
        log.observe(&fleet);
        let concern = log.concern().unwrap();
        assert!(concern.contains("late (`[[model]]` chat: its share goes"), "{concern}");
        assert!(concern.contains("late (`[[model]]` lone: requests get 404)"), "{concern}");
        fleet.models.push(test_support::model("late", &[0]));
        fleet.generation = 2;
        log.observe(&fleet);
        assert_eq!(log.concern(), None);
    }
}

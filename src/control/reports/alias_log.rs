//! Log of names of `[[model]]` with a model that no worker serves. A line for each name when all
//! workers have listed their models, and a line when a worker serves the model.

use forebay_fleet::worker::FleetSnapshot;
use forebay_select::unserved_tables;
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
        let now: BTreeSet<AliasedModel> = now.collect();
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

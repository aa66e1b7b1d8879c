//! Model aliases: the tables `[[model]]` map a client's model name to a served model.

use super::model::{is_known, named};
use forebay_config::{AdapterConfig, ModelConfig};
use forebay_fleet::worker::{FleetSnapshot, Leg, SESSION_DRAW_END, WorkerState};

/// The model that serves requests for `name`; `None` if no table has the name. Tables of a name
/// share its requests by weight, if their model has a worker. `draw` is below [`SESSION_DRAW_END`]:
/// a session draws the same number each time, and stays with its model.
#[must_use]
pub fn served_as<'a>(
    fleet: &'a FleetSnapshot,
    name: &str,
    draw: impl FnOnce() -> u64,
) -> Option<&'a str> {
    let tables = || fleet.config.models.iter().filter(|table| table.name == name);
    let first = tables().next()?;
    let usable = || tables().filter(|table| has_worker(fleet, &table.to));
    let weight = |table: &ModelConfig| u64::from(table.weight);
    let total: u64 = usable().map(weight).sum();
    if total == 0 {
        return Some(&usable().next().unwrap_or(first).to);
    }
    let mut left = scaled(draw().min(SESSION_DRAW_END - 1), total);
    let chosen = usable().find(|table| {
        let is_it = left < weight(table);
        left = left.saturating_sub(weight(table));
        is_it
    });
    debug_assert!(chosen.is_some(), "the draw is below the total");
    Some(&chosen.unwrap_or(first).to)
}

/// Tables with a model that no worker lists. While [`is_settled`] is false, a worker to come may
/// list the model.
pub fn unserved_tables(fleet: &FleetSnapshot) -> impl Iterator<Item = &ModelConfig> {
    let is_unlisted = |name: &str| named(fleet, name).is_err() && !is_known(fleet, name);
    fleet.config.models.iter().filter(move |table| is_unlisted(&table.to))
}

/// Tables of adapters for a model that no worker lists, as [`unserved_tables`].
pub fn unserved_adapters(fleet: &FleetSnapshot) -> impl Iterator<Item = &AdapterConfig> {
    let is_unlisted = |name: &str| named(fleet, name).is_err() && !is_known(fleet, name);
    fleet.config.adapters.iter().filter(move |table| is_unlisted(&table.of))
}

/// Have all workers and sources listed what they have, and is any model known?
#[must_use]
pub fn is_settled(fleet: &FleetSnapshot) -> bool {
    !fleet.serving.is_incomplete && !fleet.serving.awaits_models && fleet.has_names()
}

/// Scales a draw to a number below `total`. The product may exceed 64 bits.
fn scaled(draw: u64, total: u64) -> u64 {
    let number = u128::from(draw) * u128::from(total) / u128::from(SESSION_DRAW_END);
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Has the model a worker that is up and may answer?
fn has_worker(fleet: &FleetSnapshot, name: &str) -> bool {
    fleet.model_for(name).is_some_and(|(_, model)| {
        model.ranks.iter().any(|&rank| {
            let is_up = |state| state == WorkerState::Up;
            fleet.rank(rank).is_some_and(|(_, worker)| is_up(worker.state))
                && (fleet.serves(rank, Leg::Whole) || fleet.serves(rank, Leg::Decode))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::Config;
    use forebay_fleet::worker::test_support;
    use std::sync::Arc;

    /// Models `base` and `other`, each with its own worker.
    fn fleet(tables: &[(&str, &str, u32)]) -> FleetSnapshot {
        let table = |&(name, to, weight): &(&str, &str, u32)| ModelConfig {
            name: name.to_owned(),
            to: to.to_owned(),
            weight,
        };
        let models = tables.iter().map(table).collect();
        FleetSnapshot {
            workers: vec![test_support::worker(), test_support::worker()],
            ranks: vec![test_support::rank(0), test_support::rank(1)],
            models: vec![test_support::model("base", &[0]), test_support::model("other", &[1])],
            config: Arc::new(Config { models, ..Config::default() }),
            ..FleetSnapshot::default()
        }
    }

    fn chosen<'a>(fleet: &'a FleetSnapshot, name: &str, percent: u64) -> Option<&'a str> {
        served_as(fleet, name, || SESSION_DRAW_END / 100 * percent)
    }

    /// M1: a typing error in `to` is certain once all workers have listed their models.
    #[test]
    fn a_table_without_a_worker_is_certain_once_all_have_listed() {
        let unserved = |fleet: &FleetSnapshot| {
            unserved_tables(fleet).map(|table| table.to.clone()).collect::<Vec<_>>()
        };
        let mut fleet = fleet(&[("chat", "base", 1), ("chat", "bsae", 1), ("b", "other", 0)]);
        assert_eq!(unserved(&fleet), ["bsae"]);
        assert!(is_settled(&fleet));
        fleet.serving.awaits_models = true;
        assert!(!is_settled(&fleet));
        fleet.serving.awaits_models = false;
        fleet.serving.is_incomplete = true;
        assert!(!is_settled(&fleet));
        assert_eq!(unserved(&fleet), ["bsae"], "a fault of a source serves no model");
        fleet.serving.is_incomplete = false;
        fleet.models.push(test_support::model(forebay_fleet::worker::ANY_MODEL, &[0]));
        assert_eq!(unserved(&fleet), [""; 0], "a worker takes any name");
    }

    #[test]
    fn an_alias_stands_for_its_model_and_other_names_for_themselves() {
        let fleet = fleet(&[("chat", "base", 1)]);
        assert_eq!(chosen(&fleet, "chat", 99), Some("base"));
        assert_eq!(chosen(&fleet, "base", 0), None);
        assert_eq!(chosen(&fleet, "Chat", 0), None);
    }

    #[test]
    fn tables_of_one_name_share_by_weight() {
        let fleet = fleet(&[("chat", "base", 90), ("chat", "other", 10), ("x", "other", 1)]);
        let of = |percent| chosen(&fleet, "chat", percent).unwrap();
        assert_eq!([of(0), of(89), of(91), of(99)], ["base", "base", "other", "other"]);
        let share = (0..100).filter(|&percent| of(percent) == "other").count();
        assert!((9..=11).contains(&share), "{share}");
        assert_eq!(served_as(&fleet, "chat", || u64::MAX), Some("other"), "a draw has an end");
    }

    #[test]
    fn the_most_and_heaviest_tables_share_by_weight() {
        let mut tables = vec![("chat", "base", 1_000_000); 128];
        tables.extend([("chat", "other", 1_000_000); 128]);
        let fleet = fleet(&tables);
        let share = (0..100).filter(|&percent| chosen(&fleet, "chat", percent) == Some("other"));
        assert!((49..=51).contains(&share.count()));
        assert_eq!(served_as(&fleet, "chat", || u64::MAX), Some("other"));
    }

    #[test]
    fn a_model_without_a_worker_gives_its_share_to_other_models() {
        let mut fleet = fleet(&[("chat", "base", 1), ("chat", "other", 0), ("base", "base", 1)]);
        assert_eq!(chosen(&fleet, "chat", 99), Some("base"), "weight 0 waits");
        fleet.workers[0].state = WorkerState::Down;
        assert_eq!(chosen(&fleet, "chat", 0), Some("other"));
        fleet.workers[0].state = WorkerState::Up.draining(false);
        assert_eq!(chosen(&fleet, "chat", 0), Some("other"));
        fleet.workers[1].state = WorkerState::Down;
        assert_eq!(chosen(&fleet, "chat", 0), Some("base"), "nobody: as if all were well");
        assert_eq!(chosen(&fleet, "base", 0), Some("base"));
    }

    /// Issue 35: a worker of any model counted for each name.
    #[test]
    fn a_worker_of_any_model_counts_for_no_listed_name() {
        let mut fleet = fleet(&[("chat", "base", 1), ("chat", "other", 1)]);
        fleet.models.insert(0, test_support::model("*", &[0]));
        fleet.workers[1].state = WorkerState::Down;
        assert_eq!(chosen(&fleet, "chat", 99), Some("base"));
    }

    #[test]
    fn with_health_checks_off_any_model_is_served() {
        let mut fleet = fleet(&[("chat", "later", 1), ("chat", "never", 0)]);
        fleet.models = vec![test_support::model("*", &[0, 1])];
        assert_eq!(chosen(&fleet, "chat", 5), Some("later"));
    }
}

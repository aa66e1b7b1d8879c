//! The replicas as people see them: `GET /replicas` and `/metrics`.

use super::tally::MessageOutcome;
use super::task::Replicas;
use super::wire::MessageKind;
use crate::control::catalogue;
use crate::control::metrics_text::{MetricsText, approximate};
use serde_json::{Value, json};

impl Replicas {
    /// This replica and the others.
    pub(in crate::control) fn list(&self) -> Value {
        let now = self.clock.now();
        let (core, local) = (self.core.borrow(), self.local.borrow());
        let others: Vec<Value> = core
            .peers()
            .iter()
            .map(|(id, peer)| {
                let ranks =
                    local.fleet().ranks.iter().enumerate().filter_map(|(position, rank)| {
                        let said = peer.rank(position)?;
                        let worker = local.fleet().workers.get(rank.worker.index())?;
                        Some(json!({
                            "worker": &*worker.name,
                            "dp_rank": rank.dp_rank.0,
                            "in_flight": said.places.held,
                            "claim": said.places.claim,
                            "want": said.places.want,
                            "kv_tokens": said.kv.held,
                            "prefill_tokens": said.prefill,
                        }))
                    });
                let mut windows: Vec<(&str, &str, u64)> =
                    peer.windows(now).map(|(model, leg, left)| (model, leg.word(), left)).collect();
                windows.sort_unstable();
                let window = |(model, leg, left): &(&str, &str, u64)| {
                    let left = approximate(*left) / 1e9;
                    json!({ "model": model, "leg": leg, "remaining_seconds": left })
                };
                json!({
                    "id": id.to_string(),
                    "name": peer.name,
                    "age_seconds": approximate(now.since(peer.first_heard_at)) / 1e9,
                    "silent_seconds": approximate(now.since(peer.heard_at)) / 1e9,
                    "windows": windows.iter().map(window).collect::<Vec<_>>(),
                    "ranks": ranks.collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "connected": self.is_connected(),
            "id": core.id().to_string(),
            "name": core.name(),
            "replicas": others,
        })
    }

    /// The part of `/metrics` about replicas.
    pub(in crate::control) fn metrics(&self, text: &mut MetricsText) {
        let (core, local) = (self.core.borrow(), self.local.borrow());
        text.open(&catalogue::NATS_CONNECTED).sample(&[], u64::from(self.is_connected()));
        let count = u64::try_from(core.peers().len()).unwrap_or(u64::MAX);
        text.open(&catalogue::REPLICAS).sample(&[], count.saturating_add(1));
        let mut family = text.open(&catalogue::REPLICA_MESSAGES);
        for (kind, outcome, count) in core.tally().iter() {
            let (direction, result) = MessageOutcome::words(outcome);
            let kind = kind.map_or("other", MessageKind::word);
            let labels = [("kind", kind), ("direction", direction), ("result", result)];
            family.sample(&labels, count);
        }
        let unknown = core.tally().unknown_fields();
        text.open(&catalogue::REPLICA_UNKNOWN_FIELDS).sample(&[], unknown);
        let fleet = local.fleet();
        let ranks = local.ranks();
        let mut gauge = |metric, value: &dyn Fn(usize) -> Option<u64>| {
            let mut family = text.open(metric);
            for (index, rank, worker) in fleet.present() {
                let Some(value) = value(index.index()) else { continue };
                let dp_rank = rank.dp_rank.0.to_string();
                family.sample(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
            }
        };
        gauge(&catalogue::REPLICA_IN_FLIGHT, &|at| Some(core.reported(at).places));
        gauge(&catalogue::REPLICA_KV_TOKENS, &|at| Some(core.reported(at).kv));
        gauge(&catalogue::REPLICA_PLACES_ALLOWED, &|at| {
            let local = ranks.get(at).filter(|local| local.places.max > 0)?;
            Some(local.places.max.saturating_sub(core.elsewhere(at, local).places))
        });
        gauge(&catalogue::REPLICA_STEWARDED, &|at| {
            Some(u64::from(core.steward(at) == Some(core.id())))
        });
    }
}

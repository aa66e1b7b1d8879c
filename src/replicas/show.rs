//! The replicas for operators: `GET /replicas` and `/metrics`.

use super::connected_replica::ConnectedReplica;
use super::figures::{MessageCount, PeerFigures, RankFigures, ReplicaFigures};
use super::own_load::LocalRank;
use super::replica::Replica;
use super::tally::MessageOutcome;
use super::task::Replicas;
use super::transports::mesh::Mesh;
use super::wire::{MessageKind, ReplicaId};
use forebay_base::PoolIndex;
use serde_json::{Value, json};
use std::time::Duration;

impl Replicas {
    /// This replica and the other replicas.
    #[must_use]
    pub fn list(&self) -> Value {
        let now = self.clock.now();
        let connected = self.connected.borrow();
        let ConnectedReplica { replica, local } = &*connected;
        let others: Vec<Value> = replica
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
                    let left = seconds(*left);
                    json!({ "model": model, "leg": leg, "remaining_seconds": left })
                };
                json!({
                    "id": id.to_string(),
                    "name": peer.name,
                    "age_seconds": seconds(now.since(peer.first_heard_at)),
                    "silent_seconds": seconds(now.since(peer.heard_at)),
                    "windows": windows.iter().map(window).collect::<Vec<_>>(),
                    "ranks": ranks.collect::<Vec<_>>(),
                })
            })
            .collect();
        let mesh = self.transport.mesh();
        json!({
            "connected": self.transport.is_connected(),
            "peers": mesh.map(Mesh::list),
            "readers": mesh.map(|mesh| readers(replica, mesh)),
            "id": replica.id().to_string(),
            "name": replica.name(),
            "replicas": others,
        })
    }

    /// Names of the other routers that hold the window of a pool open.
    #[must_use]
    pub fn window_holders(&self, pool: PoolIndex) -> Vec<String> {
        let ConnectedReplica { replica, local } = &*self.connected.borrow();
        local.window_holders(replica, pool, self.clock.now())
    }

    /// The figures of `/metrics` about replicas.
    #[must_use]
    pub fn figures(&self) -> ReplicaFigures {
        let connected = self.connected.borrow();
        let ConnectedReplica { replica, local: view } = &*connected;
        let message = |(kind, outcome, count): (Option<MessageKind>, MessageOutcome, u64)| {
            let (direction, result) = MessageOutcome::words(outcome);
            let kind = kind.map_or("other", MessageKind::word);
            MessageCount { kind, direction, result, count }
        };
        let rank = |(at, local): (usize, &LocalRank)| {
            let shown = view.fleet().ranks.get(at);
            if shown.is_some_and(|rank| rank.used_as.is_some()) {
                return RankFigures::default();
            }
            let reported = replica.reported(at);
            let elsewhere = || view.elsewhere(replica, at, local).places;
            RankFigures {
                in_flight: reported.places,
                kv_tokens: reported.kv,
                places_allowed: (local.places.max > 0)
                    .then(|| local.places.max.saturating_sub(elsewhere())),
                is_stewarded: replica.steward(at) == Some(replica.id()),
            }
        };
        let mesh = self.transport.mesh();
        let peer =
            |(url, is_connected): (&str, bool)| PeerFigures { url: url.to_owned(), is_connected };
        ReplicaFigures {
            is_nats_connected: mesh.is_none().then(|| self.transport.is_connected()),
            peers: mesh.into_iter().flat_map(Mesh::connections).map(peer).collect(),
            replica_count: u64::try_from(replica.peers().len())
                .unwrap_or(u64::MAX)
                .saturating_add(1),
            messages: replica.tally().iter().map(message).collect(),
            unknown_fields: replica.tally().unknown_fields(),
            ranks: view.ranks().iter().enumerate().map(rank).collect(),
        }
    }
}

/// The routers that read here. A router without messages is missing in `replicas.peers`.
fn readers(replica: &Replica, mesh: &Mesh) -> Vec<Value> {
    let shown = |id: Option<ReplicaId>| {
        let is_heard = replica.peers().iter().any(|(heard, _)| Some(heard) == id);
        json!({ "id": id.map(|id| id.to_string()), "heard": is_heard })
    };
    mesh.readers().into_iter().map(shown).collect()
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

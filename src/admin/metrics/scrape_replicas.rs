//! The part of `/metrics` about other replicas. Called by [`super::scrape`].

use super::catalogue;
use super::metrics_text::MetricsText;
use forebay_board::account::Metric;
use forebay_fleet::worker::FleetSnapshot;
use forebay_replicas::{RankFigures, ReplicaFigures};

type RankFigure = fn(&RankFigures) -> Option<u64>;

/// Writes the connection, the messages, and each rank's share among the replicas.
pub(crate) fn replicas(fleet: &FleetSnapshot, figures: &ReplicaFigures, text: &mut MetricsText) {
    match figures.is_nats_connected {
        Some(is_connected) => {
            text.open(&catalogue::NATS_CONNECTED).sample(&[], u64::from(is_connected));
        }
        None => {
            let mut family = text.open(&catalogue::PEER_CONNECTED);
            for peer in &figures.peers {
                family.sample(&[("peer", &peer.url)], u64::from(peer.is_connected));
            }
        }
    }
    text.open(&catalogue::REPLICAS).sample(&[], figures.replica_count);
    let mut family = text.open(&catalogue::REPLICA_MESSAGES);
    for message in &figures.messages {
        let labels =
            [("kind", message.kind), ("direction", message.direction), ("result", message.result)];
        family.sample(&labels, message.count);
    }
    text.open(&catalogue::REPLICA_UNKNOWN_FIELDS).sample(&[], figures.unknown_fields);
    let gauges: [(&'static Metric, RankFigure); 4] = [
        (&catalogue::REPLICA_IN_FLIGHT, |rank| Some(rank.in_flight)),
        (&catalogue::REPLICA_KV_TOKENS, |rank| Some(rank.kv_tokens)),
        (&catalogue::REPLICA_PLACES_ALLOWED, |rank| rank.places_allowed),
        (&catalogue::REPLICA_STEWARDED, |rank| Some(u64::from(rank.is_stewarded))),
    ];
    for (metric, value) in gauges {
        let mut family = text.open(metric);
        for (index, rank, worker) in fleet.present() {
            let Some(value) = figures.ranks.get(index.index()).and_then(value) else { continue };
            let dp_rank = rank.dp_rank.0.to_string();
            family.sample(&[("worker", &worker.name), ("dp_rank", &dp_rank)], value);
        }
    }
}

//! Samples of other replicas.

use super::metrics_text::{Family, approximate};
use super::samples::per_rank;
use crate::sources::ScrapeSources;
use forebay_replicas::RankFigures;

/// Peers, unless the replicas meet at NATS.
pub(crate) fn peers(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let figures = sources.replicas.as_ref().filter(|of| of.is_nats_connected.is_none());
    for peer in figures.into_iter().flat_map(|figures| &figures.peers) {
        family.sample(&[("peer", &peer.url)], u64::from(peer.is_connected));
    }
}

pub(crate) fn messages(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for message in sources.replicas.iter().flat_map(|figures| &figures.messages) {
        let labels =
            [("kind", message.kind), ("direction", message.direction), ("result", message.result)];
        family.sample(&labels, message.count);
    }
}

/// A figure of each rank's share among the replicas.
pub(crate) fn replica_share(
    sources: &ScrapeSources<'_>,
    family: &mut Family<'_>,
    read: fn(&RankFigures) -> Option<u64>,
) {
    let Some(figures) = &sources.replicas else { return };
    per_rank(sources, family, |rank| {
        figures.ranks.get(rank.index()).and_then(read).map(approximate)
    });
}

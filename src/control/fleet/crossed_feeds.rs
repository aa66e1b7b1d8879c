//! Workers that have each other's KV events by configuration. The predictions of both are wrong.

use super::Fleet;
use forebay_zmq::ZmqAddress;
use std::collections::HashMap;
use std::sync::Arc;

/// Two workers with the `kv_events` of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CrossedFeeds {
    pub(crate) first: Arc<str>,
    pub(crate) second: Arc<str>,
}

/// A rank that follows another endpoint than its engine announces.
struct RedirectedFeed<'a> {
    place: usize,
    worker: &'a Arc<str>,
    followed: &'a ZmqAddress,
    announced: &'a ZmqAddress,
}

impl Fleet {
    /// Pairs of workers with the endpoint that the engine of the other worker announces. Both have
    /// to have it: a mapped port may have the number that some engine announces.
    pub(crate) fn crossed_feeds(&self) -> Vec<CrossedFeeds> {
        let present = self.workers.iter().enumerate().filter(|(_, known)| known.is_present());
        let redirected = present.flat_map(|(place, known)| {
            let ranks = known.description.iter().flat_map(|description| &description.ranks);
            ranks.filter_map(move |rank| {
                let events = rank.events.as_ref()?;
                let announced = &events.announced.as_ref()?.place;
                let followed = &events.endpoint.place;
                Some(RedirectedFeed { place, worker: &known.shown.name, followed, announced })
            })
        });
        let redirected: Vec<RedirectedFeed<'_>> = redirected.collect();
        let by_announced: HashMap<&ZmqAddress, &RedirectedFeed<'_>> =
            redirected.iter().map(|feed| (feed.announced, feed)).collect();
        let crossed = redirected.iter().filter_map(|feed| {
            let other = by_announced.get(feed.followed)?;
            let is_pair = other.followed == feed.announced && feed.place < other.place;
            let pair = || CrossedFeeds {
                first: Arc::clone(feed.worker),
                second: Arc::clone(other.worker),
            };
            is_pair.then(pair)
        });
        let mut crossed: Vec<CrossedFeeds> = crossed.collect();
        crossed.dedup();
        crossed
    }
}

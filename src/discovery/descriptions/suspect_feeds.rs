//! Ranks with KV events that may belong to another rank, as far as endpoints show. Sans-IO:
//! descriptions in, suspicions out. Decision 0124 has the rule, and why it is silent elsewhere.

use super::description::{DescribedRank, Description};
use super::event_announcement::EventAnnouncement;
use forebay_base::WorkerIndex;
use forebay_config::{EngineAddress, EngineHost, EngineLikeness};
use forebay_fleet::worker::{EventSocket, FeedSuspicion, OtherFeed, SuspicionSign};
use forebay_zmq::{Side, ZmqAddress, ZmqEndpoint};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// A worker that answers, with what it announced and what is configured for it.
#[derive(Clone, Copy, Debug)]
pub struct EventSubject<'a> {
    pub worker: WorkerIndex,
    pub name: &'a str,
    /// The engine by the URL of the worker.
    pub engine: &'a EngineAddress,
    /// Address that the host of the URL resolved to.
    pub address: SocketAddr,
    pub description: &'a Description,
}

/// A suspicion about the feed of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectFeed {
    pub worker: WorkerIndex,
    /// Number of the rank within the deployment.
    pub number: u32,
    pub suspicion: FeedSuspicion,
}

/// Ranks that follow the endpoint of another rank, or request its replays. The same rule holds for
/// both endpoints; a rank with both faults has the suspicion about its events alone.
///
/// | the router follows for a rank | suspect |
/// |---|---|
/// | the endpoint that another engine announces, and so on in a circle back to the rank | yes |
/// | an endpoint that a rank of another engine has too, with the same topic and number | yes |
/// | an endpoint for ranks of several numbers: batches of a relay name their ranks | no |
/// | another endpoint than the engine announces, without a circle: a mapped port | no |
#[must_use]
pub fn suspect_feeds(subjects: &[EventSubject<'_>]) -> Vec<SuspectFeed> {
    // Each change of a fleet comes by here, also without policy `kv`.
    if subjects.iter().all(|subject| followed_ranks(subject).next().is_none()) {
        return Vec::new();
    }
    let hosts = hosts_of(subjects);
    let by_socket = [EventSocket::Publisher, EventSocket::Replay];
    let by_socket = by_socket.map(|socket| suspect_sockets(subjects, socket, &hosts));
    let mut named = HashSet::new();
    let found = by_socket.into_iter().flatten().chain(wrong_topics(subjects));
    found.filter(|suspect| named.insert((suspect.worker, suspect.number))).collect()
}

/// Ranks with the endpoint and the topic of a rank of another number. Batches of such an endpoint
/// name their ranks, or nothing separates them.
#[must_use]
pub fn shared_endpoints(subjects: &[EventSubject<'_>]) -> HashSet<(WorkerIndex, u32)> {
    let hosts = hosts_of(subjects);
    let followed = followed_feeds(subjects, EventSocket::Publisher, &hosts);
    let mut numbers: HashMap<(&ComparableEndpoint<'_>, &str), (u32, bool)> = HashMap::new();
    for feed in &followed {
        let (first, is_shared) =
            numbers.entry((&feed.followed, feed.topic)).or_insert((feed.number, false));
        *is_shared |= *first != feed.number;
    }
    let is_shared = |feed: &&FollowedFeed<'_>| {
        numbers.get(&(&feed.followed, feed.topic)).is_some_and(|(_, is_shared)| *is_shared)
    };
    let shared = followed.iter().filter(is_shared);
    shared.map(|feed| (feed.subject.worker, feed.number)).collect()
}

/// Ranks that the router follows, with what it follows.
fn followed_ranks<'a>(
    subject: &EventSubject<'a>,
) -> impl Iterator<Item = (&'a DescribedRank, &'a EventAnnouncement)> {
    let ranks = subject.description.ranks.iter();
    ranks.filter_map(|rank| Some((rank, rank.events.as_ref()?)))
}

/// Ranks with a `kv_topic` that selects no batch of the announced topic.
fn wrong_topics<'a>(subjects: &'a [EventSubject<'a>]) -> impl Iterator<Item = SuspectFeed> + 'a {
    let ranks = subjects.iter().flat_map(|subject| {
        followed_ranks(subject).map(move |followed| (subject.worker, followed))
    });
    ranks.filter_map(|(worker, (rank, events))| {
        let sign = SuspicionSign::Topic {
            followed: events.topic.as_str().into(),
            announced: events.announced_topic.as_deref()?.into(),
        };
        let endpoint = events.endpoint.to_string().into();
        let suspicion = FeedSuspicion { socket: EventSocket::Publisher, endpoint, sign };
        Some(SuspectFeed { worker, number: rank.number, suspicion })
    })
}

fn followed_feeds<'a>(
    subjects: &'a [EventSubject<'a>],
    socket: EventSocket,
    hosts: &HashMap<&EngineHost, EngineHost>,
) -> Vec<FollowedFeed<'a>> {
    let followed = subjects.iter().flat_map(|subject| {
        let ranks = followed_ranks(subject);
        ranks.filter_map(move |(rank, _)| FollowedFeed::of(subject, rank, socket, hosts))
    });
    followed.collect()
}

fn suspect_sockets(
    subjects: &[EventSubject<'_>],
    socket: EventSocket,
    hosts: &HashMap<&EngineHost, EngineHost>,
) -> Vec<SuspectFeed> {
    let followed = followed_feeds(subjects, socket, hosts);
    let crossed = crossed_with(&followed);
    let doubled = doubled_with(&followed);
    let found =
        followed.iter().zip(crossed).zip(doubled).filter_map(|((feed, crossed), doubled)| {
            let other = crossed.or(doubled).and_then(|other| followed.get(other))?;
            Some(feed.suspicion(other, crossed.is_some()))
        });
    found.collect()
}

/// A socket of the feed of a rank, with comparable endpoints.
struct FollowedFeed<'a> {
    subject: &'a EventSubject<'a>,
    number: u32,
    socket: EventSocket,
    endpoint: &'a ZmqEndpoint,
    announced: Option<&'a ZmqEndpoint>,
    /// Empty for replays: a request has no topic.
    topic: &'a str,
    followed: ComparableEndpoint<'a>,
    /// Endpoint that the engine announces, if `followed` is another endpoint.
    redirected_from: Option<ComparableEndpoint<'a>>,
}

/// An endpoint with the address of its host, as far as known without a look-up.
#[derive(PartialEq, Eq, Hash)]
enum ComparableEndpoint<'a> {
    Tcp { is_bind: bool, host: EngineHost, port: u16 },
    Ipc { is_bind: bool, path: &'a Path },
}

impl<'a> ComparableEndpoint<'a> {
    fn of(endpoint: &'a ZmqEndpoint, hosts: &HashMap<&EngineHost, EngineHost>) -> Self {
        let is_bind = endpoint.side == Side::Bind;
        match &endpoint.place {
            ZmqAddress::Ipc(path) => Self::Ipc { is_bind, path },
            ZmqAddress::Tcp { host, port } => {
                let named = EngineHost::of(host);
                let host = hosts.get(&named).cloned().unwrap_or(named);
                Self::Tcp { is_bind, host, port: *port }
            }
        }
    }
}

impl<'a> FollowedFeed<'a> {
    fn of(
        subject: &'a EventSubject<'a>,
        rank: &'a DescribedRank,
        socket: EventSocket,
        hosts: &HashMap<&EngineHost, EngineHost>,
    ) -> Option<Self> {
        let events: &EventAnnouncement = rank.events.as_ref()?;
        let (endpoint, announced, topic) = match socket {
            EventSocket::Publisher => {
                (&events.endpoint, events.announced.as_ref(), events.topic.as_str())
            }
            EventSocket::Replay => (events.replay.as_ref()?, events.announced_replay.as_ref(), ""),
        };
        let followed = ComparableEndpoint::of(endpoint, hosts);
        let comparable = announced.map(|own| ComparableEndpoint::of(own, hosts));
        let redirected_from = comparable.filter(|own| *own != followed);
        let number = rank.number;
        Some(Self {
            subject,
            number,
            socket,
            endpoint,
            announced,
            topic,
            followed,
            redirected_from,
        })
    }

    /// Endpoint that the engine announces in place of the followed endpoint, in words.
    fn announced_elsewhere(&self) -> Option<Arc<str>> {
        self.redirected_from.as_ref()?;
        self.announced.map(|own| own.to_string().into())
    }

    fn announced(&self) -> &ComparableEndpoint<'a> {
        self.redirected_from.as_ref().unwrap_or(&self.followed)
    }

    /// Endpoint, topic and rank number, by which batches are known to be of the rank.
    fn stream(&self) -> (&ComparableEndpoint<'a>, &str, u32) {
        (&self.followed, self.topic, self.number)
    }

    /// False for two spellings of an engine, and for two names of an address.
    fn is_of_other_engine(&self, other: &Self) -> bool {
        let addresses = [Some(self.subject.address), Some(other.subject.address)];
        self.subject.worker != other.subject.worker
            && self.subject.engine.likeness(other.subject.engine, addresses) == EngineLikeness::Two
    }

    fn suspicion(&self, other: &Self, is_crossed: bool) -> SuspectFeed {
        let name = other.subject.name;
        let shown = match other.subject.description.ranks.len() {
            0 | 1 => name.to_owned(),
            _ => format!("{name} rank {}", other.number),
        };
        let feed = OtherFeed {
            name: shown.into(),
            worker: other.subject.worker,
            announced_here: self.announced_elsewhere(),
            announced_there: other.announced_elsewhere(),
        };
        let crossed_or_shared =
            if is_crossed { SuspicionSign::Crossed } else { SuspicionSign::Shared };
        SuspectFeed {
            worker: self.subject.worker,
            number: self.number,
            suspicion: FeedSuspicion {
                socket: self.socket,
                endpoint: self.endpoint.to_string().into(),
                sign: crossed_or_shared(feed),
            },
        }
    }
}

/// For each feed, the feed of the engine that announces the followed endpoint, if the feeds form a
/// circle in which each follows the endpoint of the next. A single endpoint is no proof: behind
/// mapped ports, an engine may announce the number that another engine is mapped to. A circle of
/// mapped ports would undo its own mapping.
fn crossed_with(feeds: &[FollowedFeed<'_>]) -> Vec<Option<usize>> {
    let mut announcers: HashMap<&ComparableEndpoint<'_>, Option<usize>> = HashMap::new();
    for (place, feed) in feeds.iter().enumerate() {
        // An endpoint that several engines announce is the address of none, or of any of them.
        let unique = announcers.entry(feed.announced()).or_insert(Some(place));
        *unique = unique.filter(|first| *first == place);
    }
    let next = |feed: &FollowedFeed<'_>| {
        feed.redirected_from.as_ref()?;
        announcers.get(&feed.followed).copied().flatten()
    };
    let mut next: Vec<Option<usize>> = feeds.iter().map(next).collect();
    let mut followers = vec![0_usize; feeds.len()];
    for place in next.iter().flatten() {
        if let Some(count) = followers.get_mut(*place) {
            *count += 1;
        }
    }
    // Feeds without followers are in no circle, and without them further feeds have no followers.
    let mut free: Vec<usize> = followers
        .iter()
        .enumerate()
        .filter_map(|(at, count)| (*count == 0).then_some(at))
        .collect();
    while let Some(at) = free.pop() {
        let Some(place) = next.get_mut(at).and_then(Option::take) else { continue };
        if let Some(count) = followers.get_mut(place) {
            *count -= 1;
            if *count == 0 {
                free.push(place);
            }
        }
    }
    next
}

/// For each feed, another feed with the same endpoint and topic, for a rank of the same number at
/// another engine: no batch shows which of both ranks it is from.
fn doubled_with(feeds: &[FollowedFeed<'_>]) -> Vec<Option<usize>> {
    let mut groups: HashMap<(&ComparableEndpoint<'_>, &str, u32), Vec<usize>> = HashMap::new();
    for (place, feed) in feeds.iter().enumerate() {
        groups.entry(feed.stream()).or_default().push(place);
    }
    let other = |feed: &FollowedFeed<'_>| {
        let alike = groups.get(&feed.stream())?.iter().copied();
        let mut others = alike.filter_map(|place| Some((place, feeds.get(place)?)));
        others.find(|(_, other)| feed.is_of_other_engine(other)).map(|(place, _)| place)
    };
    feeds.iter().map(other).collect()
}

/// Addresses of the hosts in the URLs of workers. Endpoints with wildcards have these hosts.
fn hosts_of<'a>(subjects: &[EventSubject<'a>]) -> HashMap<&'a EngineHost, EngineHost> {
    let mut hosts = HashMap::new();
    for EventSubject { engine, address, .. } in subjects {
        let at = || EngineHost::Address(address.ip().to_canonical());
        hosts.entry(&engine.host).or_insert_with(at);
    }
    let loopback = || EngineHost::Address(Ipv4Addr::LOCALHOST.into());
    hosts.entry(&EngineHost::Localhost).or_insert_with(loopback);
    hosts
}

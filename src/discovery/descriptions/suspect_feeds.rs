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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptions::description::{Listing, ServerTraits, numbered};
    use crate::descriptions::engine_report::EngineReport;
    use forebay_config::WorkerUrl;
    use forebay_fleet::worker::{Dialect, Role};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    /// Configured and announced endpoint of a rank, and its configured topic.
    type Endpoints<'a> = (Option<&'a str>, Option<&'a str>, &'a str);

    /// A worker of a test.
    struct Fixture {
        name: String,
        engine: EngineAddress,
        address: SocketAddr,
        description: Description,
    }

    /// Ranks are numbered from `first`.
    fn worker(url: &str, ip: &str, first: u32, ranks: &[Endpoints<'_>]) -> Fixture {
        let url = WorkerUrl::parse(url).unwrap();
        let ip: IpAddr = ip.parse().unwrap();
        let mut described = numbered(first, ranks.len(), &DescribedRank::default());
        for (rank, (configured, announced, topic)) in described.iter_mut().zip(ranks) {
            let of = |text: &str| ZmqEndpoint::parse(text, &url.host).unwrap();
            let own = announced.map(|text| ZmqEndpoint::announced(text, &url.host, ip).unwrap());
            rank.events = match (configured.map(of), own) {
                (None, own) => own.map(EventAnnouncement::at),
                (Some(endpoint), own) => Some(EventAnnouncement {
                    announced: own.filter(|own| own.place != endpoint.place),
                    topic: (*topic).to_owned(),
                    ..EventAnnouncement::at(endpoint)
                }),
            };
        }
        Fixture {
            name: url.authority.clone(),
            engine: EngineAddress::of(&url, None),
            address: SocketAddr::from((ip, url.port)),
            description: Description {
                dialect: Dialect::Vllm,
                models: Vec::new(),
                listing: Listing::Any,
                ranks: described,
                role: Role::Both,
                source: None,
                server: ServerTraits::default(),
                reported: EngineReport::default(),
            },
        }
    }

    fn found(workers: &[Fixture]) -> Vec<SuspectFeed> {
        let subject = |(place, fixture): (usize, _)| {
            let Fixture { name, engine, address, description }: &Fixture = fixture;
            let worker = WorkerIndex::try_from_index(place).unwrap();
            EventSubject { worker, name, engine, address: *address, description }
        };
        let subjects: Vec<_> = workers.iter().enumerate().map(subject).collect();
        suspect_feeds(&subjects)
    }

    /// Each suspicion as `worker rank: cause`.
    fn causes(workers: &[Fixture]) -> Vec<String> {
        let cause = |suspect: SuspectFeed| {
            let SuspectFeed { worker, number, suspicion } = suspect;
            format!("{} {number}: {}", workers[worker.index()].name, suspicion.cause())
        };
        found(workers).into_iter().map(cause).collect()
    }

    /// Workers at ports 1, 2, 3 of a host: followed and announced port of each.
    fn at_ports(ports: &[(u16, Option<u16>)]) -> Vec<Fixture> {
        let at = |port: u16| format!("tcp://h:{port}");
        let worker = |(place, (followed, announced)): (usize, &(u16, Option<u16>))| {
            let url = format!("http://h:{}", place + 1);
            let announced = announced.map(at);
            worker(&url, "10.0.0.1", 0, &[(Some(&at(*followed)), announced.as_deref(), "")])
        };
        ports.iter().enumerate().map(worker).collect()
    }

    fn names(workers: &[Fixture]) -> Vec<&str> {
        found(workers).iter().map(|one| &*workers[one.worker.index()].name).collect()
    }

    /// M1: mapped ports, announcements that engines share, and a single foreign endpoint are no
    /// proof.
    #[test]
    fn circles_are_suspect_and_chains_are_not() {
        let of = |ports: &[(u16, Option<u16>)]| {
            let workers = at_ports(ports);
            names(&workers).join(" ")
        };
        assert_eq!(of(&[(7, Some(9)), (8, None), (9, Some(7))]), "h:1 h:3", "a pair");
        assert_eq!(of(&[(8, Some(7)), (9, Some(8)), (7, Some(9))]), "h:1 h:2 h:3", "three");
        assert_eq!(of(&[(7, None), (8, None), (9, None)]), "", "as announced");
        assert_eq!(of(&[(7, Some(5)), (8, Some(5)), (5, None)]), "", "mapped ports");
        assert_eq!(of(&[(8, Some(7)), (9, Some(8)), (6, Some(9))]), "", "mapped ports, shifted");
        assert_eq!(of(&[(8, Some(7)), (7, Some(8)), (9, Some(7))]), "", "7 is announced twice");
        assert_eq!(of(&[(8, Some(7)), (8, None), (9, None)]), "h:1 h:2", "one endpoint");
        assert_eq!(of(&[(8, None), (8, None), (8, Some(9))]), "h:1 h:2 h:3", "for three");
    }

    #[test]
    fn causes_name_the_endpoints_and_the_other_rank() {
        let pair = causes(&at_ports(&[(7, Some(9)), (9, Some(7))]));
        let first = "h:1 0: tcp://h:7 has the KV events of h:2, this worker announces tcp://h:9";
        assert_eq!(pair[0], first);
        let shared = causes(&at_ports(&[(7, None), (7, None)]));
        assert_eq!(shared[1], "h:2 0: tcp://h:7 is followed for h:1 too");
        let swapped = [
            (Some("tcp://*:6"), Some("tcp://*:5"), ""),
            (Some("tcp://*:5"), Some("tcp://*:6"), ""),
        ];
        let swapped = causes(&[worker("http://h:1", "10.0.0.1", 0, &swapped)]);
        assert_eq!(swapped.len(), 2, "ranks of a worker");
        assert!(swapped[0].contains("of h:1 rank 1"), "{}", swapped[0]);
    }

    /// Workers at ports 1, 2, 3 of a host, each with its own events: used and announced port of
    /// each replay endpoint.
    fn with_replays(ports: &[(u16, Option<u16>)]) -> Vec<Fixture> {
        let own: Vec<_> =
            (0..ports.len()).map(|at| (u16::try_from(at).unwrap() + 1, None)).collect();
        let mut workers = at_ports(&own);
        let at = |port: u16| ZmqEndpoint::parse(&format!("tcp://h:{port}"), "h").unwrap();
        for (worker, (replay, announced)) in workers.iter_mut().zip(ports) {
            let events = worker.description.ranks[0].events.as_mut().unwrap();
            events.replay = Some(at(*replay));
            events.announced_replay = announced.map(at);
        }
        workers
    }

    /// Issue 39: crossed and shared replay endpoints were silent.
    #[test]
    fn replay_endpoints_follow_the_same_rule() {
        let of = |ports: &[(u16, Option<u16>)]| {
            let workers = with_replays(ports);
            names(&workers).join(" ")
        };
        assert_eq!(of(&[(17, Some(19)), (18, None), (19, Some(17))]), "h:1 h:3", "a pair");
        assert_eq!(of(&[(17, None), (18, None), (19, None)]), "", "as announced");
        assert_eq!(of(&[(17, Some(15)), (18, Some(15)), (19, None)]), "", "mapped ports");
        assert_eq!(of(&[(18, Some(17)), (18, None), (19, None)]), "h:1 h:2", "one endpoint");
        let pair = causes(&with_replays(&[(17, Some(19)), (19, Some(17))]));
        let first = "h:1 0: tcp://h:17 replays the KV events of h:2, this worker announces \
                     tcp://h:19";
        assert_eq!(pair[0], first);
        // A request of a replay has no topic, so topics do not separate engines there.
        let mut shared = with_replays(&[(17, None), (17, None)]);
        for (worker, topic) in shared.iter_mut().zip(["a", "b"]) {
            worker.description.ranks[0].events.as_mut().unwrap().topic = topic.to_owned();
        }
        assert_eq!(causes(&shared)[0], "h:1 0: tcp://h:17 replays for h:2 too");
        // Both faults of a rank are a single suspicion.
        let mut both = with_replays(&[(17, Some(19)), (19, Some(17))]);
        let events = both[0].description.ranks[0].events.as_mut().unwrap();
        events.endpoint = ZmqEndpoint::parse("tcp://h:2", "h").unwrap();
        let both = causes(&both);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both.iter().all(|cause| cause.contains("is followed for")), "{both:?}");
    }

    /// Issue 39: the text did not show which of two workers has the wrong endpoint.
    #[test]
    fn a_shared_endpoint_names_the_engine_that_announces_another() {
        let workers = at_ports(&[(7, None), (7, Some(9))]);
        let shown: Vec<_> = found(&workers).into_iter().map(|one| one.suspicion).collect();
        let [right, wrong] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(right.cause(), "tcp://h:7 is followed for h:2 too, which announces tcp://h:9");
        assert!(right.help().starts_with("correct `kv_events` of h:2"), "{}", right.help());
        let wanted = "tcp://h:7 is followed for h:1 too, this worker announces tcp://h:9";
        assert_eq!(wrong.cause(), wanted);
        assert!(wrong.help().starts_with("correct `kv_events` of this worker"));
    }

    /// Issue 39: a wrong `kv_topic` showed after ten minutes, by an alert about something else.
    #[test]
    fn a_topic_that_selects_nothing_is_suspect() {
        let mut workers = at_ports(&[(7, None)]);
        let events = workers[0].description.ranks[0].events.as_mut().unwrap();
        events.topic = "kv@a".to_owned();
        events.announced_topic = Some("kv@b".to_owned());
        let wanted = "h:1 0: tcp://h:7 has no batch of the topic \"kv@a\", this worker announces \
                      \"kv@b\"";
        assert_eq!(causes(&workers), [wanted]);
        assert!(found(&workers)[0].suspicion.help().starts_with("set `kv_topic` to \"kv@b\""));
    }

    #[test]
    fn an_endpoint_of_several_numbers_is_shared() {
        let relay = |topic| (Some("tcp://relay:1"), None, topic);
        let shared = |workers: &[Fixture]| {
            let subject = |(place, fixture): (usize, _)| {
                let Fixture { name, engine, address, description }: &Fixture = fixture;
                let worker = WorkerIndex::try_from_index(place).unwrap();
                EventSubject { worker, name, engine, address: *address, description }
            };
            let subjects: Vec<_> = workers.iter().enumerate().map(subject).collect();
            let mut shared: Vec<_> = shared_endpoints(&subjects).into_iter().collect();
            shared.sort_unstable();
            shared.into_iter().map(|(worker, number)| (worker.0, number)).collect::<Vec<_>>()
        };
        let a = |topics: &[&'static str]| {
            let ranks: Vec<_> = topics.iter().map(|topic| relay(*topic)).collect();
            worker("http://a:1", "10.0.0.1", 0, &ranks)
        };
        let b = |first| worker("http://b:1", "10.0.0.2", first, &[relay("")]);
        assert_eq!(shared(&[a(&["", ""])]), [(0, 0), (0, 1)]);
        assert_eq!(shared(&[a(&["x", "y"])]), [], "a topic of its own for each rank");
        assert_eq!(shared(&[a(&[""]), b(1)]), [(0, 0), (1, 1)]);
        assert_eq!(shared(&[a(&[""]), b(0)]), [], "suspect instead");
    }

    /// Wildcards are the host of the worker, and a name is the address that it resolved to.
    #[test]
    fn spellings_of_an_endpoint_are_compared_by_address() {
        let of = |urls: [(&str, &str); 2], endpoints: [Endpoints<'_>; 2]| {
            let workers = urls.iter().zip(endpoints);
            let workers = workers.map(|((url, ip), rank)| worker(url, ip, 0, &[rank]));
            let workers: Vec<Fixture> = workers.collect();
            found(&workers).len()
        };
        let announced = |text| (None, Some(text), "");
        let configured = |text| (Some(text), None, "");
        let any = announced("tcp://*:5557");
        let hosts = [("http://a:1", "10.0.0.1"), ("http://b:1", "10.0.0.2")];
        let ports = [("http://a:1", "10.0.0.1"), ("http://10.0.0.1:2", "10.0.0.1")];
        assert_eq!(of(hosts, [any, any]), 0, "each on its own host");
        assert_eq!(of(ports, [any, any]), 2, "a host with two engines");
        assert_eq!(of(hosts, [any, announced("tcp://0.0.0.0:5557")]), 0);
        assert_eq!(of(ports, [any, announced("tcp://[::]:5557")]), 2);
        assert_eq!(of(hosts, [any, configured("tcp://10.0.0.1:5557")]), 2);
        assert_eq!(of(hosts, [any, configured("tcp://A.:5557")]), 2);
        assert_eq!(of(hosts, [any, configured("tcp://c:5557")]), 0, "a name without a worker");
        let local = [("http://localhost:1", "127.0.0.1"), ("http://127.0.0.1:2", "127.0.0.1")];
        assert_eq!(of(local, [any, any]), 2);
        assert_eq!(of(local, [any, configured("tcp://localhost:5557")]), 2);
        assert_eq!(
            of(hosts, [configured("tcp://localhost:1"), configured("tcp://127.0.0.1:1")]),
            2
        );
        assert_eq!(of(hosts, [configured("ipc:///a"), configured("ipc:///a")]), 2);
        assert_eq!(of(hosts, [configured("ipc:///a"), configured("ipc:///b")]), 0);
        // The engines connect: to the same port of the router, or of another host.
        assert_eq!(
            of(hosts, [configured("bind:tcp://*:5557"), configured("bind:tcp://*:5557")]),
            2
        );
        assert_eq!(of(ports, [any, configured("bind:tcp://10.0.0.1:5557")]), 0);
        let crossed = |own, theirs| (Some(own), Some(theirs), "");
        let spelled = [
            crossed("tcp://b:5557", "tcp://*:5557"),
            crossed("tcp://10.0.0.1:5557", "tcp://0.0.0.0:5557"),
        ];
        assert_eq!(of(hosts, spelled), 2, "a pair");
        let own = [
            crossed("tcp://10.0.0.1:5557", "tcp://*:5557"),
            crossed("tcp://b:5557", "tcp://*:5557"),
        ];
        assert_eq!(of(hosts, own), 0, "the own endpoint by another name");
    }

    /// A relay sends the batches of several ranks, and a topic separates engines.
    #[test]
    fn relays_and_topics_share_an_endpoint() {
        let relay = |topic| (Some("tcp://relay:1"), None, topic);
        let of = |second: u32, topics: [&'static str; 2]| {
            let workers = [
                worker("http://a:1", "10.0.0.1", 0, &[relay(topics[0])]),
                worker("http://b:1", "10.0.0.2", second, &[relay(topics[1])]),
            ];
            found(&workers).len()
        };
        assert_eq!(of(0, ["", ""]), 2, "no batch shows its engine");
        assert_eq!(of(1, ["", ""]), 0, "ranks of a relay");
        assert_eq!(of(0, ["a", "b"]), 0);
        assert_eq!(of(0, ["a", "a"]), 2);
        let both = [relay(""), relay("")];
        assert_eq!(found(&[worker("http://a:1", "10.0.0.1", 0, &both)]), [], "a worker's relay");
    }

    /// Two spellings of an engine follow its events twice, and two names of an address may be an
    /// engine.
    #[test]
    fn an_engine_is_no_other_engine_than_itself() {
        let of = |urls: [&str; 2]| {
            let endpoint = (Some("tcp://10.0.0.1:5557"), None, "");
            found(&urls.map(|url| worker(url, "10.0.0.1", 0, &[endpoint]))).len()
        };
        assert_eq!(of(["http://a:1", "http://10.0.0.1:1"]), 0);
        assert_eq!(of(["http://a:1", "http://b:1"]), 0);
        assert_eq!(of(["http://a:1", "http://b:2"]), 2);
    }

    proptest! {
        /// With the endpoints of the fleet in any order, exactly the ranks without their own
        /// endpoint are suspect, each with the engine that it follows.
        #[test]
        fn a_permutation_is_suspect_where_it_moves(
            order in Just((0..12_u16).collect::<Vec<_>>()).prop_shuffle(),
            count in 0_usize..12,
        ) {
            let order: Vec<u16> = order.into_iter().filter(|at| usize::from(*at) < count).collect();
            let ports = order.iter().zip(0..).map(|(to, own)| (to + 1, Some(own + 1)));
            let ports: Vec<_> = ports.collect();
            let moved = order.iter().zip(0..).filter(|(to, own)| **to != *own);
            let wanted: Vec<(u16, u16)> = moved.map(|(to, own)| (own, *to)).collect();
            let found = found(&at_ports(&ports)).into_iter();
            let found = found.map(|one| (one.worker.0, one.suspicion.other().unwrap().worker.0));
            prop_assert_eq!(found.collect::<Vec<_>>(), wanted);
        }

        /// With endpoints of the fleet alone, a fault is never silent, a rank with an endpoint for
        /// itself alone is never suspect outside of a circle, and the order of workers is free.
        #[test]
        fn any_choice_of_endpoints_is_judged_by_circles_and_shares(
            choice in prop::collection::vec(0..6_u16, 6),
        ) {
            let ports: Vec<_> =
                choice.iter().zip(0..).map(|(to, own)| (to + 1, Some(own + 1))).collect();
            let workers = at_ports(&ports);
            let found: BTreeSet<u16> = found(&workers).iter().map(|one| one.worker.0).collect();
            let is_own = choice.iter().zip(0..).all(|(to, own)| *to == own);
            prop_assert_eq!(found.is_empty(), is_own);
            for (own, to) in (0_u16..).zip(&choice) {
                let is_shared = choice.iter().filter(|other| *other == to).count() > 1;
                let mut at = *to;
                let mut steps = 1;
                while at != own && steps < choice.len() {
                    at = choice[usize::from(at)];
                    steps += 1;
                }
                let is_wanted = is_shared || at == own && *to != own;
                prop_assert_eq!(found.contains(&own), is_wanted, "{} of {:?}", own, choice);
            }
        }
    }
}

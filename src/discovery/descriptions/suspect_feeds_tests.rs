//! Suspect KV endpoints: crossed, shared, announced, and none of these.

use super::description::{DescribedRank, Description, Listing, ServerTraits, numbered};
use super::engine_report::EngineReport;
use super::event_announcement::EventAnnouncement;
use super::suspect_feeds::{EventSubject, SuspectFeed, shared_endpoints, suspect_feeds};
use forebay_base::WorkerIndex;
use forebay_config::{EngineAddress, WorkerUrl};
use forebay_fleet::worker::{Dialect, Role};
use forebay_zmq::ZmqEndpoint;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

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
    let swapped =
        [(Some("tcp://*:6"), Some("tcp://*:5"), ""), (Some("tcp://*:5"), Some("tcp://*:6"), "")];
    let swapped = causes(&[worker("http://h:1", "10.0.0.1", 0, &swapped)]);
    assert_eq!(swapped.len(), 2, "ranks of a worker");
    assert!(swapped[0].contains("of h:1 rank 1"), "{}", swapped[0]);
}

/// Workers at ports 1, 2, 3 of a host, each with its own events: used and announced port of
/// each replay endpoint.
fn with_replays(ports: &[(u16, Option<u16>)]) -> Vec<Fixture> {
    let own: Vec<_> = (0..ports.len()).map(|at| (u16::try_from(at).unwrap() + 1, None)).collect();
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
    assert_eq!(of(hosts, [configured("tcp://localhost:1"), configured("tcp://127.0.0.1:1")]), 2);
    assert_eq!(of(hosts, [configured("ipc:///a"), configured("ipc:///a")]), 2);
    assert_eq!(of(hosts, [configured("ipc:///a"), configured("ipc:///b")]), 0);
    // The engines connect: to the same port of the router, or of another host.
    assert_eq!(of(hosts, [configured("bind:tcp://*:5557"), configured("bind:tcp://*:5557")]), 2);
    assert_eq!(of(ports, [any, configured("bind:tcp://10.0.0.1:5557")]), 0);
    let crossed = |own, theirs| (Some(own), Some(theirs), "");
    let spelled = [
        crossed("tcp://b:5557", "tcp://*:5557"),
        crossed("tcp://10.0.0.1:5557", "tcp://0.0.0.0:5557"),
    ];
    assert_eq!(of(hosts, spelled), 2, "a pair");
    let own =
        [crossed("tcp://10.0.0.1:5557", "tcp://*:5557"), crossed("tcp://b:5557", "tcp://*:5557")];
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

//! Who a client is: in the records, to workers, behind proxies that are trusted or not; and how
//! many connections, and how slow a body, one client may have.

use crate::rig::{
    ASK, Client, Reply, RouterProcess, Seen, Worker, config, metric, post, router, until,
};
use forebay::config::{Config, Forwarded};
use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

const V1: &str = "PROXY TCP4 203.0.113.5 192.0.2.9 4711 443\r\n";

/// A request with these fields in front of its own.
fn asking(fields: &str) -> Vec<u8> {
    let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    request.replacen("host:", &format!("{fields}host:"), 1).into_bytes()
}

/// Version 2, with a TLV behind the addresses.
fn v2(command: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, 0x11, 0, 19, 203, 0, 113, 6, 192, 0, 2, 9, 0x12, 0x67, 1, 0xbb]);
    header.extend([3, 0, 4, 1, 2, 3, 4]);
    header
}

fn fields(seen: &Seen, name: &str) -> Vec<String> {
    let is_it = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
    let value = |line: &str| line.split_once(':').unwrap().1.trim().to_owned();
    seen.head.lines().filter(is_it).map(value).collect()
}

fn asked(client: &mut Client, request: &[u8]) -> Reply {
    client.send(request);
    client.reply()
}

#[test]
fn workers_are_told_of_the_client_only_on_wish_and_believe_no_stranger() {
    let claim = [
        "X-Forwarded-For: 1.1.1.1\r\nX-FORWARDED-FOR: 203.0.113.5\r\nForwarded: for=1.1.1.1\r\n",
        "X-Real-IP: 1.1.1.1\r\nX-Forwarded_For: 1.1.1.1\r\nX-Real_IP: 1.1.1.1\r\n",
    ]
    .concat();
    let both = ["1.1.1.1", "203.0.113.5"];
    for (mode, trusted, xff, forwarded) in [
        (Forwarded::Off, &["127.0.0.1"][..], &both[..], "for=1.1.1.1"),
        (
            Forwarded::Append,
            &[],
            &["1.1.1.1, 203.0.113.5, 127.0.0.1"],
            "for=1.1.1.1, for=127.0.0.1",
        ),
        (Forwarded::Replace, &[], &["127.0.0.1"], "for=127.0.0.1"),
        (Forwarded::Replace, &["127.0.0.1"], &["203.0.113.5"], "for=203.0.113.5"),
    ] {
        let worker = Worker::json("{}");
        let mut config = config(&[&worker]);
        config.client.forwarded = mode;
        config.client.trusted = trusted.iter().map(|net| (*net).to_owned()).collect();
        let router = router(config);
        let mut client = Client::connect(router.listen);
        assert_eq!(asked(&mut client, &asking(&claim)).status, 200);
        let seen = worker.next();
        assert_eq!(fields(&seen, "x-forwarded-for"), xff, "{mode:?} {trusted:?}");
        assert_eq!(fields(&seen, "forwarded"), [forwarded], "{mode:?} {trusted:?}");
        // Some servers read an underscore as a hyphen: it is the same field then.
        for (claim, until) in [
            ("x-real-ip", Forwarded::Append),
            ("x-real_ip", Forwarded::Append),
            ("x-forwarded_for", Forwarded::Off),
        ] {
            let is_kept = fields(&seen, claim) == ["1.1.1.1"];
            let may_pass = mode == Forwarded::Off || mode == until;
            assert_eq!(is_kept, may_pass, "{claim} {mode:?}");
        }
        // Nothing of one request is told of the next.
        assert_eq!(asked(&mut client, &asking("")).status, 200);
        let alone: &[&str] = if mode == Forwarded::Off { &[] } else { &["127.0.0.1"] };
        assert_eq!(fields(&worker.next(), "x-forwarded-for"), alone, "{mode:?}");
    }
}

#[test]
fn records_name_the_client_whom_a_trusted_proxy_speaks_for() {
    let worker = Worker::json("{}");
    let settings = |client: &str| {
        format!(
            "cores = [0]\n[log]\nrequests = true\n[health]\nenabled = false\n{client}\
             [[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
            worker.url()
        )
    };
    let trusting = "[client]\ntrusted = [\"127.0.0.0/8\"]\n";
    let proxied = format!("{trusting}proxy_protocol = true\n");
    let xff = asking("x-forwarded-for: 198.51.100.7\r\n");
    for (client, request, recorded) in [
        ("", xff.clone(), "client=127.0.0.1"),
        (trusting, xff.clone(), "client=198.51.100.7"),
        (trusting, asking(""), "client=127.0.0.1"),
        (&*proxied, [V1.as_bytes(), &asking("")].concat(), "client=203.0.113.5"),
        // The proxy's client is no proxy: what it says of others is not believed.
        (&*proxied, [V1.as_bytes(), &xff].concat(), "client=203.0.113.5"),
        (&*proxied, [&v2(0x21), &asking("")[..]].concat(), "client=203.0.113.6"),
        // The proxy does not say whose bytes follow.
        (&*proxied, [&v2(0x20), &xff[..]].concat(), "client=127.0.0.1"),
        (&*proxied, [b"PROXY UNKNOWN\r\n", &xff[..]].concat(), "client=127.0.0.1"),
    ] {
        let router = RouterProcess::configured(&settings(client));
        let mut connection = Client::connect(router.listen);
        let peer = format!("peer={}", connection.stream.local_addr().unwrap());
        assert_eq!(asked(&mut connection, &request).status, 200, "{client}");
        let has = |line: &str| line.contains(recorded) && line.contains(&peer);
        until("the record names the client", || router.log().lines().any(has));
    }
}

/// The config of a router behind a proxy that sends PROXY headers.
fn behind_proxy(worker: &Worker, trusted: &str) -> Config {
    let mut config = config(&[worker]);
    config.client.trusted = vec![trusted.into()];
    config.client.proxy_protocol = true;
    config.client.forwarded = Forwarded::Replace;
    config
}

#[test]
fn proxy_headers_arrive_in_pieces_and_before_several_requests() {
    let worker = Worker::json("{}");
    let router = router(behind_proxy(&worker, "127.0.0.1"));
    for header in [V1.as_bytes(), &v2(0x21)] {
        let mut client = Client::connect(router.listen);
        for byte in header {
            client.send(&[*byte]);
        }
        let source = if header == V1.as_bytes() { "203.0.113.5" } else { "203.0.113.6" };
        for _ in 0..3 {
            assert_eq!(asked(&mut client, &asking("x-forwarded-for: 9.9.9.9\r\n")).status, 200);
            assert_eq!(fields(&worker.next(), "x-forwarded-for"), [source]);
        }
    }
    assert!(metric(&router, "forebay_proxy_header_faults_total") < 0.5);
}

#[test]
fn a_trusted_proxy_without_a_header_is_cut_and_a_stranger_with_one_is_refused() {
    let worker = Worker::json("{}");
    let mut config = behind_proxy(&worker, "127.0.0.1");
    config.timeouts.head = Duration::from_millis(200);
    let trusting = router(config);
    let broken = V1.replace("203.0.113.5", "203.0.113.500");
    // The last one never ends.
    let cases =
        [&asking("")[..], broken.as_bytes(), b"\x16\x03\x01\x02\x00\x01", &V1.as_bytes()[..20]];
    for (count, bytes) in cases.into_iter().enumerate() {
        let mut client = Client::connect(trusting.listen);
        client.send(bytes);
        assert!(client.at_end(), "no answer: {:?}", String::from_utf8_lossy(bytes));
        let faults = || metric(&trusting, "forebay_proxy_header_faults_total");
        until("it is counted", || faults() > count as f64 + 0.5);
    }
    // A balancer that only looks whether the port is open.
    drop(Client::connect(trusting.listen));
    let strange = router(behind_proxy(&worker, "192.0.2.0/24"));
    for header in [V1.as_bytes(), &v2(0x21)] {
        let mut client = Client::connect(strange.listen);
        let reply = asked(&mut client, &[header, &asking("")].concat());
        let reason = reply.field("x-forebay-reason");
        assert_eq!((reply.status, reason), (400, Some("bad-request")));
    }
    let mut client = Client::connect(strange.listen);
    assert_eq!(asked(&mut client, &asking("")).status, 200, "without one it is served");
    assert!(metric(&strange, "forebay_proxy_header_faults_total") < 0.5);
}

#[test]
fn an_address_has_so_many_connections_over_all_shards() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.cores = vec![0, 0];
    config.limits.connections_per_address_max = 3;
    let router = router(config);
    let refused = || metric(&router, "forebay_connections_refused_address_total");
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(router.listen)).collect();
    for client in &mut clients {
        assert_eq!(asked(client, &asking("")).status, 200);
    }
    for count in 1..=4 {
        assert!(Client::connect(router.listen).at_end());
        until("it is counted", || refused() > f64::from(count) - 0.5);
    }
    drop(clients.pop());
    until("there is a place again", || {
        let mut client = Client::connect(router.listen);
        // A connection that is refused may be reset under the request.
        if client.stream.write_all(&asking("")).is_err() {
            return false;
        }
        let mut byte = [0];
        matches!(client.stream.peek(&mut byte), Ok(1))
    });
}

#[test]
fn behind_a_proxy_requests_count_for_the_client_that_it_names() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let worker = Worker::start(move |_, stream| {
        released.lock().unwrap().recv().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = config(&[&worker]);
    config.client.trusted = vec!["127.0.0.1".into()];
    config.limits.connections_per_address_max = 1;
    let router = router(config);
    let of = |address: &str| asking(&format!("x-forwarded-for: {address}\r\n"));
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(router.listen)).collect();
    clients[0].send(&of("203.0.113.5"));
    worker.next();
    let refused = asked(&mut clients[1], &of("203.0.113.5"));
    assert_eq!(
        (refused.status, refused.field("x-forebay-reason")),
        (429, Some("rejected-address"))
    );
    assert!(refused.field("retry-after").is_some());
    // Others have places of their own, and so has the proxy.
    clients[2].send(&of("203.0.113.6"));
    clients[3].send(&asking(""));
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    for client in [0, 2, 3] {
        assert_eq!(clients[client].reply().status, 200);
    }
    release.send(()).unwrap();
    let after = asked(&mut clients[1], &of("203.0.113.5"));
    assert_eq!(after.status, 200, "the connection went on, and the place is free");
}

#[test]
fn a_body_that_trickles_is_refused_and_a_silent_one_as_before() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.timeouts.body = Duration::from_secs(1);
    config.limits.body_rate_min = 100_000;
    let router = router(config);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
    let mut client = Client::connect(router.listen);
    client.send(format!("{head}{{\"model\":").as_bytes());
    let mut trickle = client.stream.try_clone().unwrap();
    std::thread::spawn(move || {
        while trickle.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let reply = client.reply();
    assert_eq!((reply.status, reply.field("x-forebay-reason")), (408, Some("body-too-slow")));
    let mut silent = Client::connect(router.listen);
    silent.send(head.as_bytes());
    let reply = silent.reply();
    assert_eq!((reply.status, reply.field("x-forebay-reason")), (408, Some("request-timeout")));
    let refused = "forebay_rejected_total{reason=\"body-too-slow\"";
    until("it is counted", || metric(&router, refused) > 0.5);
    let _ = client.stream.shutdown(std::net::Shutdown::Both);
}

//! TLS to clients: what works in plain text works over TLS, and what is no TLS ends.

use crate::rig::{
    ASK, Certificates, Client, Pair, Reply, Worker, any_port, config, metric, post, router, until,
};
use forebay::config::{CertificateConfig, ClientAuth, Config, Forwarded, ListenerConfig};
use forebay::server::ServerHandle;
use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

const NAME: &str = "router.example";

/// A configuration with one certificate.
fn tls_config(worker: &Worker, certificates: &Certificates) -> Config {
    let mut config = config(&[worker]);
    let Pair { cert, key } = certificates.sign("router", &[NAME]);
    config.tls.cert = Some(cert);
    config.tls.key = Some(key);
    config
}

fn start(worker: &Worker) -> (ServerHandle, Certificates) {
    let certificates = Certificates::new();
    (router(tls_config(worker, &certificates)), certificates)
}

fn count(handle: &ServerHandle, name: &str) -> u64 {
    whole(metric(handle, &format!("forebay_tls_handshakes_{name} ")))
}

fn whole(value: f64) -> u64 {
    value.to_string().parse().unwrap()
}

/// A worker that sends back what it was sent, in chunks if it is asked to.
fn echo() -> Worker {
    Worker::start(|seen, stream| {
        let sent = if seen.head.contains("?chunks") {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
            for part in seen.body.chunks(1_000) {
                write!(stream, "{:x}\r\n", part.len()).unwrap();
                stream.write_all(part).unwrap();
                stream.write_all(b"\r\n").unwrap();
            }
            stream.write_all(b"0\r\n\r\n")
        } else {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len());
            stream.write_all(&[head.as_bytes(), &seen.body].concat())
        };
        sent.is_ok()
    })
}

/// A body of about that length.
fn body(bytes: usize) -> Vec<u8> {
    let text: String = (0..bytes).map(|i| char::from(b"abcdefghij"[i * 7 % 10])).collect();
    format!(r#"{{"model":"m","prompt":"{text}"}}"#).into_bytes()
}

fn is_whole(reply: &Reply, body: &[u8]) -> bool {
    reply.status == 200 && reply.complete && reply.body == body
}

#[test]
fn requests_of_every_length_in_both_versions() {
    let worker = echo();
    let (handle, certificates) = start(&worker);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let tls = certificates.client_with(&[version], None);
        let mut client = Client::connect_tls(handle.listen, &tls, NAME);
        for bytes in [10, 5_000, 16_300, 16_384, 60_000, 1_000_000, 3_000_000, 10] {
            let body = body(bytes);
            for path in ["/v1/completions", "/v1/completions?chunks"] {
                client.send(&post(path, &body));
                let reply = client.reply();
                assert!(is_whole(&reply, &body), "{bytes} {path}: {}", reply.head);
            }
        }
        let negotiated = client.tls.as_ref().unwrap().alpn_protocol();
        assert_eq!(negotiated, None, "this client names no protocol");
    }
    assert_eq!((count(&handle, "total"), count(&handle, "resumed_total")), (2, 0));
}

#[test]
fn requests_that_follow_each_other_closely_are_answered_in_order() {
    let worker = echo();
    let (handle, certificates) = start(&worker);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    let bodies: Vec<_> = (0..20).map(|i| body(100 + 300 * i)).collect();
    let all: Vec<u8> = bodies.iter().flat_map(|body| post("/v1/completions", body)).collect();
    client.send(&all);
    for body in &bodies {
        assert!(is_whole(&client.reply(), body));
    }
}

#[test]
fn a_stream_passes_event_by_event() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let worker = Worker::start(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..3 {
            stream.write_all(b"9\r\ndata: x\n\n\r\n").unwrap();
            gone.lock().unwrap().recv().unwrap();
        }
        stream.write_all(b"0\r\n\r\n").is_ok()
    });
    let (handle, certificates) = start(&worker);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    client.send(&post("/v1/completions", br#"{"model":"m","prompt":"hi","stream":true}"#));
    for _ in 0..3 {
        // Each event is here before the next one is sent.
        client.until_body(b"data: x\n\n");
        go.send(()).unwrap();
    }
    client.until_body(b"0\r\n\r\n");
}

#[test]
fn bytes_that_come_one_by_one_are_a_request() {
    let worker = echo();
    let (handle, certificates) = start(&worker);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    let tls = client.tls.as_mut().unwrap();
    let body = body(400);
    tls.writer().write_all(&post("/v1/completions", &body)).unwrap();
    let mut records = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    for byte in &records {
        client.stream.write_all(&[*byte]).unwrap();
    }
    assert!(is_whole(&client.reply(), &body));
}

#[test]
fn the_name_picks_the_certificate_and_each_listener_has_its_kind() {
    let worker = echo();
    let certificates = Certificates::new();
    let mut config = tls_config(&worker, &certificates);
    let Pair { cert, key } = certificates.sign("other", &["other.example", "*.wild.example"]);
    config.certificates = vec![CertificateConfig { cert, key }];
    config.listeners = vec![
        ListenerConfig { address: any_port(), tls: Some(false) },
        ListenerConfig { address: any_port(), tls: None },
    ];
    config.cores = vec![0, 0];
    let handle = router(config);
    let tls = certificates.client();
    for address in [handle.listen, handle.listeners[1]] {
        for name in [NAME, "other.example", "a.wild.example"] {
            let mut client = Client::connect_tls(address, &tls, name);
            client.send(&post("/v1/completions", ASK));
            assert!(is_whole(&client.reply(), ASK), "{name}");
        }
        assert!(Client::try_tls(address, &tls, "unknown.example").is_err());
    }
    let mut plain = Client::connect(handle.listeners[0]);
    plain.send(&post("/v1/completions", ASK));
    assert!(is_whole(&plain.reply(), ASK));
    until("both shards know who came back", || {
        let mut client = Client::connect_tls(handle.listen, &tls, NAME);
        client.send(&post("/v1/completions", ASK));
        client.reply();
        count(&handle, "resumed_total") > 5
    });
    let expires = metric(&handle, "forebay_tls_expires_timestamp_seconds");
    assert!(expires > 4e9, "{expires}");
}

#[test]
fn clients_show_certificates_where_they_have_to() {
    let worker = echo();
    let certificates = Certificates::new();
    let others = Certificates::new();
    let own = certificates.sign("client", &["client"]);
    let wrong = others.sign("client", &["client"]);
    for (client_auth, works) in
        [(ClientAuth::Required, [true, false, false]), (ClientAuth::Optional, [true, true, false])]
    {
        let mut config = tls_config(&worker, &certificates);
        config.tls.client_ca = Some(certificates.ca());
        config.tls.client_auth = client_auth;
        let handle = router(config);
        for (shown, works) in [Some(&own), None, Some(&wrong)].into_iter().zip(works) {
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let tls = certificates.client_with(&[version], shown);
                // In TLS 1.3 a client hears of it with the first answer.
                let answered = Client::try_tls(handle.listen, &tls, NAME).and_then(|mut client| {
                    client.try_send(&post("/v1/completions", ASK))?;
                    client.try_more().map(|bytes| bytes > 0)
                });
                assert_eq!(answered.is_ok_and(|is| is), works, "{client_auth:?} {shown:?}");
            }
        }
        let refused = works.iter().filter(|works| !**works).count() as u64 * 2;
        until("refusals are counted", || count(&handle, "certificate_total") == refused);
    }
}

#[test]
fn what_is_no_tls_is_answered_or_cut() {
    let worker = echo();
    let (handle, certificates) = start(&worker);
    let mut plain = Client::connect(handle.listen);
    plain.send(&post("/v1/completions", ASK));
    let reply = plain.reply();
    assert_eq!((reply.status, plain.at_end()), (400, true));
    assert!(reply.text().contains("This port speaks TLS"), "{}", reply.text());
    assert_eq!(count(&handle, "plain_total"), 1);

    let mut garbage = Client::connect(handle.listen);
    garbage.send(&[0; 300]);
    assert!(garbage.at_end());
    assert_eq!(count(&handle, "plain_total"), 2);
    let mut garbage = Client::connect(handle.listen);
    garbage.send(&[0x16, 3, 1, 0, 8, 7, 0, 0, 4, 1, 2, 3, 4]);
    assert!(!garbage.at_end(), "an alert says why");
    assert_eq!(count(&handle, "malformed_total"), 1);

    let gone = Client::connect(handle.listen);
    drop(gone);
    until("a client that leaves is counted", || count(&handle, "closed_total") == 1);
    let mut http2 = (*certificates.client()).clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    assert!(Client::try_tls(handle.listen, &http2.into(), NAME).is_err());
    until("so is the other protocol", || count(&handle, "incompatible_total") == 1);
    assert_eq!(count(&handle, "total"), 0);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    client.send(&post("/v1/completions", ASK));
    assert!(is_whole(&client.reply(), ASK));
}

#[test]
fn garbage_behind_the_handshake_ends_the_connection_with_an_alert() {
    let worker = echo();
    let (handle, certificates) = start(&worker);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    client.stream.write_all(&[0x17, 3, 3, 0, 40]).unwrap();
    client.stream.write_all(&[9; 40]).unwrap();
    let ended = client.try_more().unwrap_err();
    assert!(ended.to_string().contains("BadRecordMac"), "{ended}");
}

#[test]
fn a_proxy_says_who_its_client_is_before_the_handshake() {
    let worker = echo();
    let certificates = Certificates::new();
    let mut config = tls_config(&worker, &certificates);
    config.client.trusted = vec!["127.0.0.1".to_owned()];
    config.client.proxy_protocol = true;
    config.client.forwarded = Forwarded::Replace;
    let handle = router(config);
    let mut client = Client::connect(handle.listen);
    client.send(b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 443\r\n");
    client.secure(&certificates.client(), NAME).unwrap();
    client.send(&post("/v1/completions", ASK));
    assert!(is_whole(&client.reply(), ASK));
    assert!(worker.next().head.contains("203.0.113.7"));
}

#[test]
fn silence_instead_of_a_handshake_ends() {
    let worker = echo();
    let certificates = Certificates::new();
    let mut config = tls_config(&worker, &certificates);
    config.timeouts.handshake = Duration::from_millis(20);
    let handle = router(config);
    let mut silent = Client::connect(handle.listen);
    assert!(silent.at_end());
    let mut slow = Client::connect(handle.listen);
    slow.send(&[0x16, 3, 1, 1, 0, 1]);
    assert!(slow.at_end());
    assert_eq!(count(&handle, "timed_out_total"), 2);
}

#[test]
fn an_end_on_purpose_is_told_and_an_accident_is_not() {
    let worker = Worker::start(|seen, stream| {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        stream.write_all(head).unwrap();
        if seen.head.contains("?whole") {
            stream.write_all(b"0\r\n\r\n").unwrap();
        }
        false
    });
    let (handle, certificates) = start(&worker);
    // A client of HTTP/1.0 knows the end of a body by the end of the connection alone.
    for (path, was_cut) in [("/v1/completions?whole", false), ("/v1/completions", true)] {
        let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
        let length = ASK.len();
        let head = format!("POST {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
        client.send(&[head.as_bytes(), ASK].concat());
        let reply = client.reply();
        assert_eq!((reply.text().as_str(), client.was_cut), ("hello", was_cut), "{path}");
    }
}

#[test]
fn an_idle_connection_ends_with_a_word() {
    let worker = echo();
    let certificates = Certificates::new();
    let mut config = tls_config(&worker, &certificates);
    config.timeouts.idle = Duration::from_millis(20);
    let handle = router(config);
    let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    client.send(&post("/v1/completions", ASK));
    assert!(is_whole(&client.reply(), ASK));
    assert!(client.at_end() && !client.was_cut);
}

#[test]
fn a_client_that_leaves_is_seen_however_it_leaves() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        // Until the router closes.
        let _ = std::io::Read::read(stream, &mut [0]);
        false
    });
    let (handle, certificates) = start(&worker);
    for (left, with_a_word) in [(1, true), (2, false)] {
        let mut client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
        client.send(&post("/v1/completions", ASK));
        worker.next();
        if with_a_word {
            let tls = client.tls.as_mut().unwrap();
            tls.send_close_notify();
            tls.complete_io(&mut client.stream).unwrap();
        } else {
            client.stream.shutdown(Shutdown::Write).unwrap();
        }
        until("the router saw it", || whole(metric(&handle, "forebay_client_gone_total")) == left);
    }
}

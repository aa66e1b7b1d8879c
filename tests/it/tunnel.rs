//! O5: bytes and ends of WebSockets: both directions at once, a side that does not read, half an
//! end, silence, and the end of the router or of the worker.

use crate::rig::websocket::{accepting, echo, speaking, switch, upgrade};
use crate::rig::{
    Certificates, Client, PATIENCE, Pair, TlsFront, Worker, admin_post, config, metric, router,
    until, write_until_cut,
};
use forebay::config::{Config, UpstreamTlsConfig, WorkerConfig};
use forebay::server::ServerHandle;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/realtime";
const LONG: usize = 1_000_000;

/// Bytes of which each has its place.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| u8::try_from((at * 31 + at / 251 + seed) % 251).unwrap()).collect()
}

fn open(handle: &ServerHandle) -> Client {
    let mut client = Client::connect(handle.listen);
    client.send(&upgrade(PATH, ""));
    assert_eq!(client.reply().status, 101);
    client
}

fn ended(handle: &ServerHandle) -> bool {
    metric(handle, "forebay_tunnels_closed_total") == 1.0
        && metric(handle, "forebay_in_flight") == 0.0
}

/// Both sides send much at once, and neither reads before all is sent but by a thread of its own.
fn talks(stream: &mut std::net::TcpStream, own: &[u8], other: &[u8]) {
    let mut reader = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| stream.write_all(own));
        let mut got = vec![0; other.len()];
        reader.read_exact(&mut got).unwrap();
        assert!(got == other, "as it was sent");
        sending.join().unwrap().unwrap();
    });
}

#[test]
fn much_passes_in_both_directions_at_once() {
    let up = bytes(LONG, 1);
    let down = bytes(LONG, 2);
    let sent = down.clone();
    let wanted = up.clone();
    let worker = speaking(move |stream| talks(stream, &sent, &wanted));
    let handle = router(config(&[&worker]));
    let mut client = open(&handle);
    // What came with the head stays in the client: the other way from here on.
    let early = client.taken();
    talks(&mut client.stream, &up, &down[early.len()..]);
    assert!(down.starts_with(&early));
    assert!(client.at_end());
    drop(client);
    until("it has ended", || ended(&handle));
    let count = |name: &str| metric(&handle, &format!("forebay_{name}_bytes_total"));
    assert_eq!((count("tunnel_request"), count("response")), (1e6, 1e6));
    assert_eq!(metric(&handle, "forebay_client_gone_total"), 0.0);
    assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 0.0);
}

#[test]
fn what_comes_with_the_head_of_the_answer_arrives() {
    let worker = Worker::start(|_, stream| {
        let all = format!("{}hello", accepting());
        stream.write_all(all.as_bytes()).unwrap();
        let _ = stream.read(&mut [0]);
        false
    });
    let handle = router(config(&[&worker]));
    let mut client = open(&handle);
    assert_eq!(client.bytes(5), b"hello");
    drop(client);
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_response_bytes_total"), 5.0);
}

#[test]
fn much_passes_over_tls_on_both_sides() {
    let certificates = Certificates::new();
    let worker = echo();
    let front = TlsFront::of(worker.address, &certificates.sign("worker", &["localhost"]));
    let mut config = config(&[]);
    config.workers = vec![WorkerConfig { url: front.url("localhost"), ..WorkerConfig::default() }];
    config.upstream_tls =
        UpstreamTlsConfig { ca: Some(certificates.ca()), ..UpstreamTlsConfig::default() };
    let Pair { cert, key } = certificates.sign("router", &["router.example"]);
    config.tls.cert = Some(cert);
    config.tls.key = Some(key);
    let handle = router(config);
    let tls = certificates.client_with(rustls::ALL_VERSIONS, None);
    let mut client = Client::connect_tls(handle.listen, &tls, "router.example");
    client.send(&upgrade(PATH, ""));
    assert_eq!(client.reply().status, 101);
    for (seed, part) in bytes(LONG, 3).chunks(50_000).enumerate() {
        client.send(part);
        assert!(client.bytes(part.len()) == part, "part {seed}");
    }
    drop(client);
    until("it has ended", || ended(&handle));
}

#[test]
fn half_an_end_is_passed_on_and_the_rest_follows() {
    // The client ends first, and hears the rest.
    let worker = speaking(|stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(&all).unwrap();
    });
    let handle = router(config(&[&worker]));
    let mut client = open(&handle);
    client.send(&bytes(100_000, 4));
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert!(client.bytes(100_000) == bytes(100_000, 4));
    assert!(client.at_end());
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_client_gone_total"), 0.0);

    // The worker ends first, and hears the rest.
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let worker = speaking(move |stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        tell.lock().unwrap().send(all).unwrap();
    });
    let handle = router(config(&[&worker]));
    let mut client = open(&handle);
    assert_eq!(client.bytes(3), b"bye");
    assert!(client.at_end());
    client.send(b"and you");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), b"and you");
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 0.0);
}

/// What sockets of loopback hold, and a few chunks of the router.
const HELD_MAX: usize = 16 << 20;

#[test]
fn a_client_that_does_not_read_stops_the_worker_and_is_cut() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let worker = speaking(move |stream| {
        tell.lock().unwrap().send(write_until_cut(stream)).unwrap();
    });
    let mut config = config(&[&worker]);
    config.timeouts.write = Duration::from_millis(900);
    let handle = router(config);
    let client = open(&handle);
    assert!(told.recv_timeout(PATIENCE).unwrap() < HELD_MAX);
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_client_gone_total"), 1.0);
    drop(client);
}

#[test]
fn a_worker_that_does_not_read_stops_the_client_and_is_cut() {
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let worker = speaking(move |_| {
        let _ = gone.lock().unwrap().recv();
    });
    let mut config = config(&[&worker]);
    config.timeouts.stream_idle = Duration::from_millis(900);
    let handle = router(config);
    let mut client = open(&handle);
    assert!(write_until_cut(&mut client.stream) < HELD_MAX);
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 1.0);
    drop(go);
}

#[test]
fn silence_of_both_sides_ends_it() {
    let worker = echo();
    let mut config = config(&[&worker]);
    config.timeouts.tunnel = Duration::from_millis(300);
    let handle = router(config);
    let mut client = open(&handle);
    let start = Instant::now();
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(100));
        client.send(b"ping");
        assert_eq!(client.bytes(4), b"ping");
    }
    let last = Instant::now();
    assert!(client.at_end());
    assert!(last - start >= Duration::from_millis(600) && last.elapsed() < Duration::from_secs(5));
    assert!(last.elapsed() >= Duration::from_millis(250), "{:?}", last.elapsed());
    until("it has ended", || ended(&handle));
}

#[test]
fn a_side_that_does_not_follow_an_end_is_given_up() {
    let worker = speaking(|stream| {
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let mut config = config(&[&worker]);
    config.timeouts.write = Duration::from_millis(200);
    let handle = router(config);
    let client = open(&handle);
    until("it has ended", || ended(&handle));
    drop(client);
}

#[test]
fn a_drain_lets_it_go_on_until_its_deadline() {
    let worker = echo();
    let mut config = config(&[&worker]);
    config.timeouts.drain = Duration::from_millis(900);
    let handle = router(config);
    let mut client = open(&handle);
    handle.stop();
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    client.send(b"on");
    assert_eq!(client.bytes(2), b"on");
    assert!(client.at_end());
    assert!(start.elapsed() >= Duration::from_millis(800), "{:?}", start.elapsed());
    handle.join().unwrap();
}

#[test]
fn the_end_of_a_drained_router_waits_for_it_and_no_longer() {
    let worker = echo();
    let mut config = config(&[&worker]);
    config.timeouts.drain = Duration::from_secs(60);
    let handle = router(config);
    let client = open(&handle);
    handle.stop();
    std::thread::sleep(Duration::from_millis(100));
    drop(client);
    let start = Instant::now();
    handle.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_worker_that_is_removed_loses_it_after_the_drain() {
    let worker = echo();
    let other = echo();
    let mut config = config(&[&worker]);
    config.workers[0].name = Some("w0".to_owned());
    config.workers.push(WorkerConfig { url: other.url(), ..WorkerConfig::default() });
    config.workers[1].name = Some("w1".to_owned());
    config.timeouts.drain = Duration::from_millis(500);
    let handle = router(config);
    let mut clients = [open(&handle), open(&handle)];
    let mut admin = Client::connect(handle.admin);
    let request = String::from_utf8(admin_post("/workers/w0", b"")).unwrap();
    admin.send(request.replacen("POST", "DELETE", 1).as_bytes());
    assert!(admin.reply().status < 300);
    for client in &mut clients {
        client.send(b"on");
        assert_eq!(client.bytes(2), b"on");
    }
    until("one has ended", || metric(&handle, "forebay_tunnels_closed_total") == 1.0);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(metric(&handle, "forebay_tunnels_closed_total"), 1.0, "the other goes on");
    let seen = [worker.next(), other.next()];
    assert_eq!(seen.len(), 2);
}

/// Ends all connections of the worker without a word when told.
fn breaking() -> (Worker, std::sync::mpsc::Sender<()>, Receiver<()>) {
    let (go, gone) = channel::<()>();
    let (tell, told) = channel();
    let gone = Mutex::new(gone);
    let tell = Mutex::new(tell);
    let worker = Worker::start(move |_, stream| {
        switch(stream);
        tell.lock().unwrap().send(()).unwrap();
        let _ = gone.lock().unwrap().recv();
        // Closed with unread bytes: a reset.
        let _ = stream.peek(&mut [0]);
        false
    });
    (worker, go, told)
}

#[test]
fn a_worker_that_is_lost_ends_the_clients_side() {
    let (worker, go, told) = breaking();
    let handle = router(Config { ..config(&[&worker]) });
    let mut client = open(&handle);
    told.recv_timeout(PATIENCE).unwrap();
    client.send(b"unread");
    go.send(()).unwrap();
    assert!(client.at_end());
    until("it has ended", || ended(&handle));
    assert_eq!(metric(&handle, "forebay_cut_mid_stream_total"), 1.0);
}

#[test]
fn a_client_that_breaks_off_ends_the_workers_side() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let worker = speaking(move |stream| {
        // The client leaves with these unread, and so with a reset.
        stream.read_exact(&mut [0; 2]).unwrap();
        stream.write_all(b"unread").unwrap();
        let end = stream.read(&mut [0]);
        tell.lock().unwrap().send(matches!(end, Ok(0) | Err(_))).unwrap();
    });
    let handle = router(config(&[&worker]));
    let mut client = open(&handle);
    client.send(b"go");
    client.peek("the worker's bytes");
    drop(client);
    assert!(told.recv_timeout(PATIENCE).unwrap());
    until("it has ended", || ended(&handle));
}

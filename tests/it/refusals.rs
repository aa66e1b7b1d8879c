//! What a client hears of a router that is full: the whole answer, whatever it is still sending.

use crate::rig::{ASK, Client, PATIENCE, Reply, Worker, config, metric, post, router, until};
use forebay::config::Config;
use forebay::server::ServerHandle;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// A client that sends nothing for this long after its refusal is cut; the rest is for a slow
/// machine.
const CUT_SOON: Duration = Duration::from_secs(15);

/// A router whose one place is taken until `release` is sent to or dropped. In the order in which
/// they have to go: a router waits for its requests.
struct Full {
    release: Sender<()>,
    holder: Client,
    router: ServerHandle,
    worker: Worker,
}

fn full(change: impl FnOnce(&mut Config)) -> Full {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let worker = Worker::start(move |seen, stream| {
        if seen.head.contains("hold") {
            let _ = released.lock().unwrap().recv();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let mut config = config(&[&worker]);
    config.limits.in_flight_max = 1;
    change(&mut config);
    let router = router(config);
    let mut holder = Client::connect(router.listen);
    holder.send(&post("/v1/completions?hold", ASK));
    worker.next();
    Full { router, worker, holder, release }
}

fn body(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"model":"m","prompt":""#.to_vec();
    body.resize(bytes - 2, b'x');
    body.extend_from_slice(b"\"}");
    body
}

const HEAD: &str =
    "POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n";

/// The ways in which clients send a body.
fn ways(bytes: usize) -> [(&'static str, Vec<u8>); 6] {
    let body = body(bytes);
    let known = |more: &str| {
        let head = format!("{HEAD}{more}content-length: {bytes}\r\n\r\n");
        [head.as_bytes(), &body].concat()
    };
    let chunked = |more: &str| {
        let mut all = format!("{HEAD}{more}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for part in body.chunks(10_000) {
            all.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            all.extend_from_slice(part);
            all.extend_from_slice(b"\r\n");
        }
        all.extend_from_slice(b"0\r\n\r\n");
        all
    };
    [
        ("kept", known("")),
        ("to be closed", known("connection: close\r\n")),
        ("announced and not waited for", known("expect: 100-continue\r\n")),
        ("chunked", chunked("")),
        ("chunked, to be closed", chunked("connection: close\r\n")),
        ("chunked, announced and not waited for", chunked("expect: 100-continue\r\n")),
    ]
}

/// All of the request, then the answer, as the simplest clients do. What went wrong, if something
/// did.
fn write_then_read(address: SocketAddr, request: &[u8]) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).map_err(|error| format!("while sending: {error}"))?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4_096];
    while !answer.ends_with(b"}}") {
        match stream.read(&mut buffer).map_err(|error| format!("while reading: {error}"))? {
            0 => return Err(format!("end after {:?}", String::from_utf8_lossy(&answer))),
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    let is_429 = answer.starts_with(b"HTTP/1.1 429 ");
    if is_429 { Ok(()) } else { Err(String::from_utf8_lossy(&answer).into_owned()) }
}

#[test]
fn no_client_that_writes_before_it_reads_loses_its_answer() {
    let full = full(|_| {});
    let address = full.router.listen;
    for (bytes, clients) in [(64 << 10, 96), (256 << 10, 32), (2 << 20, 8), (8 << 20, 4)] {
        for (way, request) in ways(bytes) {
            let faults: Vec<String> = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..clients)
                    .map(|_| scope.spawn(|| write_then_read(address, &request)))
                    .collect();
                clients.into_iter().filter_map(|client| client.join().unwrap().err()).collect()
            });
            assert!(faults.is_empty(), "{bytes} bytes, {way}: {} lost: {faults:?}", faults.len());
        }
    }
    assert!(full.worker.seen.try_recv().is_err(), "no byte of them reached the worker");
}

/// Without what a clock or a measurement decides.
fn without_times(reply: &Reply) -> String {
    let by_chance =
        |line: &str| line.starts_with("retry-after") || line.starts_with("x-request-id");
    let lines = reply.head.lines().filter(|line| !by_chance(line));
    lines.collect::<Vec<_>>().join("\n") + &reply.text()
}

#[test]
fn the_answer_has_the_shape_of_the_api_that_was_asked() {
    let full = full(|_| {});
    let mut client = Client::connect(full.router.listen);
    client.send(&post("/v1/chat/completions", &body(64 << 10)));
    assert_eq!(
        without_times(&client.reply()),
        "HTTP/1.1 429 Too Many Requests\n\
         content-type: application/json\n\
         connection: keep-alive\n\
         x-forebay-reason: rejected-in-flight\n\
         x-should-retry: true\n\
         content-length: 161\n\
         {\"error\":{\"message\":\"The router has as many requests in flight as it may. Try again later.\",\
         \"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}"
    );
    client.send(&post("/v1/messages", &body(1_000)));
    assert_eq!(
        client.reply().text(),
        "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\
         \"message\":\"The router has as many requests in flight as it may. Try again later.\"}}"
    );
}

#[test]
fn refused_requests_leave_the_connection_usable_whatever_their_framing() {
    let mut full = full(|_| {});
    let mut client = Client::connect(full.router.listen);
    let [(_, kept), _, _, (_, chunked), _, (_, announced)] = ways(100_000);
    // One after the other without a pause: the end of each has to be found to the byte.
    let mut sender = client.stream.try_clone().unwrap();
    let all = [kept, chunked.clone(), post("/v1/completions", ASK), announced, chunked].concat();
    let sending = std::thread::spawn(move || sender.write_all(&all));
    for _ in 0..5 {
        assert_eq!(client.reply().status, 429);
    }
    sending.join().unwrap().unwrap();
    full.release.send(()).unwrap();
    assert_eq!(full.holder.reply().status, 200);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200);
    assert_eq!(full.worker.next().body, ASK);
}

#[test]
fn a_client_that_waits_for_100_hears_the_refusal_and_the_end() {
    let full = full(|_| {});
    let mut client = Client::connect(full.router.listen);
    client.send(format!("{HEAD}expect: 100-continue\r\ncontent-length: 70000\r\n\r\n").as_bytes());
    let reply = client.reply();
    assert_eq!((reply.status, reply.field("connection")), (429, Some("close")));
    assert!(client.at_end());
}

/// Sends until the router cuts; how many bytes that took.
fn sends_for_ever(mut stream: TcpStream, piece: &[u8]) -> usize {
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut sent = 0;
    loop {
        match stream.write(piece) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                let cut =
                    [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind());
                assert!(cut, "after {sent} bytes: {error}");
                return sent;
            }
        }
        assert!(sent < 64 << 20, "the router reads on and on");
    }
}

#[test]
fn a_client_that_never_stops_sending_is_cut() {
    let bytes_max = 2 << 20;
    let full = full(|config| config.limits.body_bytes_max = bytes_max);
    let piece = [format!("{:x}\r\n", 60_000).as_bytes(), &[b'x'; 60_000], b"\r\n"].concat();
    for framing in ["transfer-encoding: chunked", "content-length: 1000000000000"] {
        let mut client = Client::connect(full.router.listen);
        client.send(format!("{HEAD}{framing}\r\n\r\n").as_bytes());
        assert_eq!(client.reply().status, 429);
        let sent = sends_for_ever(client.stream.try_clone().unwrap(), &piece);
        // What the kernel's buffers took on top is not the router's.
        assert!(sent >= bytes_max, "{framing}: cut after {sent} bytes");
    }
}

#[test]
fn a_client_that_stalls_is_cut() {
    let full = full(|_| {});
    let start = Instant::now();
    let _stalled: Vec<Client> = [
        ("content-length: 100000", "{\"model\""),
        ("transfer-encoding: chunked", "ff\r\n{\"model\""),
        ("connection: close\r\ncontent-length: 100000", "{\"model\""),
        ("expect: 100-continue\r\ncontent-length: 100000", ""),
    ]
    .into_iter()
    .map(|(framing, some)| {
        let mut client = Client::connect(full.router.listen);
        client.send(format!("{HEAD}{framing}\r\n\r\n{some}").as_bytes());
        assert_eq!(client.reply().status, 429);
        client
    })
    .collect();
    until("the router has closed them", || {
        metric(&full.router, "forebay_connections_closed_total") > 3.0
    });
    assert!(start.elapsed() < CUT_SOON, "took {:?}", start.elapsed());
}

//! Stopping: streams finish, idle connections close, new ones are refused.

use crate::rig::pairs::{idle, legs, pair_config, ready};
use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::truth::get;
use crate::rig::{ASK, Client, Gate, RouterProcess, Worker, config, metric, post, router, until};
use forebay::config::QueueMode;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// More than there are connections in these tests: most shards have nothing of their own to do.
const SHARDS: usize = 8;
/// In which a shard that looks only at itself would have ended.
const LONG_IDLE: Duration = Duration::from_millis(300);

#[test]
fn a_stream_in_flight_finishes_and_everything_ends() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = Worker::start(move |seen, stream| {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
            .unwrap();
        if seen.head.contains("hold") {
            let _ = released.lock().unwrap().recv();
        }
        stream.write_all(b"2\r\ncd\r\n0\r\n\r\n").is_ok()
    });
    let mut config = config(&[&worker]);
    config.cores = vec![0, 1, 0, 1];
    let handle = router(config);
    let address = handle.listen;
    let mut idle = Client::connect(address);
    idle.send(&post("/v1/completions", ASK));
    assert_eq!(idle.reply().text(), "abcd");
    worker.next();
    let mut busy = Client::connect(address);
    busy.send(&post("/v1/completions?hold", ASK));
    worker.next();
    handle.stop();
    assert!(idle.at_end(), "an idle connection is closed");
    until("new connections are refused", || TcpStream::connect(address).is_err());
    release.send(()).unwrap();
    let reply = busy.reply();
    assert_eq!((reply.text(), reply.complete), ("abcd".into(), true));
    handle.join().unwrap();
}

/// 7: a request that lasts longer than the drain is cut, and the log has the number of these.
#[test]
fn what_a_drain_cuts_is_in_the_log() {
    // No answer: the worker waits for the end of the connection.
    let never = Worker::start(|_, stream| {
        let _ = stream.read(&mut [0]);
        false
    });
    for orders in [1, 2] {
        let mut router = RouterProcess::configured(&format!(
            "cores = [0]\n[timeouts]\ndrain = \"{}s\"\n[health]\nenabled = false\n\
             [[worker]]\nurl = \"{}\"\n",
            if orders == 1 { 1 } else { 60 },
            never.url()
        ));
        let mut client = Client::connect(router.listen);
        client.send(&post("/v1/completions", ASK));
        never.next();
        router.signal(Signal::TERM);
        if orders == 2 {
            until("it drains", || router.logged("draining: no new connections") == 1);
            router.signal(Signal::TERM);
        }
        assert!(router.ended().success());
        assert_eq!(router.logged("requests were cut: they lasted longer"), 1, "{}", router.log());
        assert!(router.log().contains("requests=1 "), "{}", router.log());
    }
}

/// Each request that the end of a drain cuts has its access record, whatever it waits for.
#[test]
fn what_a_drain_cuts_has_its_record() {
    let worker = Worker::start(|seen, stream| {
        if seen.head.contains("?begins") {
            let begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n";
            stream.write_all(begin).unwrap();
        }
        let _ = stream.read(&mut [0]);
        false
    });
    let mut router = RouterProcess::configured(&format!(
        "cores = [0, 1]\n[log]\nrequests = true\njson = true\n[timeouts]\ndrain = \"60s\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\n",
        worker.url()
    ));
    let mut unanswered = Client::connect(router.listen);
    unanswered.send(&post("/v1/completions", ASK));
    worker.next();
    let mut streaming = Client::connect(router.listen);
    streaming.send(&post("/v1/completions?begins", ASK));
    streaming.peek("ab");
    let uploading = begun(router.listen);
    let idle = Client::connect(router.listen);
    router.signal(Signal::TERM);
    until("it drains", || router.logged("draining: no new connections") == 1);
    router.signal(Signal::TERM);
    assert!(router.ended().success());
    drop((unanswered, streaming, uploading, idle));
    let log = router.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let records: Vec<Value> = lines.filter(|line| line["message"] == "request").collect();
    let mut statuses: Vec<_> = records.iter().filter_map(|it| it["status"].as_u64()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503, 503], "{log}");
    assert!(log.contains("\"requests\":3,"), "the WARN has their number: {log}");
    for record in records {
        assert_eq!(record["outcome"], "cut", "{record}");
        assert_eq!(record["cause"], "the drain of the router ended first", "{record}");
    }
}

/// What became of one request over a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// Nobody listens any more.
    Refused,
    /// The connection was there, and no whole answer came.
    Lost,
}

pub(crate) fn ask_once(address: SocketAddr) -> Fate {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else {
        return Fate::Refused;
    };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut request = post("/v1/completions", ASK);
    let close = request.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    request.splice(close..close, b"connection: close\r\n".iter().copied());
    let mut answer = Vec::new();
    let sent = stream.write_all(&request).and_then(|()| stream.read_to_end(&mut answer));
    let is_whole = sent.is_ok() && answer.starts_with(b"HTTP/1.1 200");
    if is_whole { Fate::Answered } else { Fate::Lost }
}

#[test]
fn nobody_who_has_connected_is_reset() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
    });
    let mut config = config(&[&worker]);
    config.cores = vec![0, 1];
    let handle = router(config);
    let address = handle.listen;
    let fates = std::thread::scope(|scope| {
        let ask_on = || {
            let fates = std::iter::repeat_with(|| ask_once(address));
            fates.take_while(|fate| *fate != Fate::Refused).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(ask_on)).collect();
        until("the load is on", || metric(&handle, "forebay_connections_accepted_total") > 200.0);
        handle.stop();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count();
    assert_eq!(lost, 0, "of {}", fates.len());
    handle.join().unwrap();
}

#[test]
fn the_next_request_of_a_kept_connection_is_its_last() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
    });
    let handle = router(config(&[&worker]));
    let mut kept = Client::connect(handle.listen);
    kept.send(&post("/v1/completions", ASK));
    assert_eq!(kept.reply().text(), "ok");
    handle.stop();
    std::thread::sleep(LONG_IDLE);
    kept.send(&post("/v1/completions", ASK));
    let reply = kept.reply();
    assert_eq!((reply.text(), reply.head.contains("connection: close")), ("ok".into(), true));
    handle.join().unwrap();
}

#[test]
fn a_router_is_unready_before_it_closes() {
    let worker = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
    });
    let mut config = config(&[&worker]);
    config.timeouts.drain_delay = Duration::from_secs(1);
    let handle = router(config);
    let address = handle.listen;
    let ready = || get(handle.admin, "/readyz").status;
    let health = || get(address, "/health").status;
    until("it serves", || (ready(), health()) == (200, 200));
    handle.stop();
    until("it is unready", || (ready(), health()) == (503, 503));
    assert_eq!(ask_once(address), Fate::Answered);
    until("it is closed", || ask_once(address) == Fate::Refused);
    handle.join().unwrap();
}

/// A client whose request the router has begun to read; all but the body is there.
fn begun(address: SocketAddr) -> Client {
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        ASK.len()
    );
    let mut client = Client::connect(address);
    client.send(head.as_bytes());
    assert_eq!(client.reply().status, 100);
    client
}

#[test]
fn a_queue_serves_until_the_last_shard_is_done() {
    // The two connections are on shards of the kernel's choice: once they might both be on the
    // queue's home, or near it.
    for _ in 0..2 {
        let gate = Gate::start();
        let mut config = config(&[&gate.worker]);
        config.cores = (0..SHARDS).map(|shard| shard % 2).collect();
        config.flow.rank_concurrency_max = Some(1);
        config.flow.queue.mode = QueueMode::Pool;
        config.flow.queue.wait_max = Duration::from_secs(60);
        config.timeouts.drain = Duration::from_secs(60);
        let handle = router(config);
        let mut first = Client::connect(handle.listen);
        first.send(&post("/v1/completions", ASK));
        gate.holds(1);
        let mut late = begun(handle.listen);
        handle.stop();
        std::thread::sleep(LONG_IDLE);
        late.send(ASK);
        until("it waits", || metric(&handle, "forebay_queue_depth") == 1.0);
        gate.open();
        assert_eq!(first.reply().status, 200);
        gate.open();
        let reply = late.reply();
        assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
        drop((first, late));
        let start = Instant::now();
        handle.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "nothing is left to wait for");
    }
}

#[test]
fn a_prefill_leg_is_sent_by_its_home_until_the_last_shard_is_done() {
    let prefill = Stub::start(Pages::sglang("prefill"));
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill, ""), (&decode, "")];
    let mut config = pair_config(&workers, "");
    config.cores = (0..SHARDS).map(|shard| shard % 2).collect();
    config.timeouts.drain = Duration::from_secs(60);
    let handle = ready(config, &workers);
    idle(&handle);
    let before = [legs(&handle, "mesh"), legs(&handle, "local")];
    // The last one keeps the counters readable.
    let mut clients: Vec<Client> = (0..3).map(|_| begun(handle.listen)).collect();
    handle.stop();
    std::thread::sleep(LONG_IDLE);
    let mut last = clients.pop().unwrap();
    for mut client in clients {
        client.send(ASK);
        let reply = client.reply();
        assert_eq!((reply.status, reply.complete), (200, true), "{}", reply.text());
    }
    until("both legs came", || prefill.arrivals().len() == 2);
    let sent = [legs(&handle, "mesh") - before[0], legs(&handle, "local") - before[1]];
    println!("legs by mesh and local: {sent:?}");
    last.send(ASK);
    assert_eq!(last.reply().status, 200);
    drop(last);
    let start = Instant::now();
    handle.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "nothing is left to wait for");
}

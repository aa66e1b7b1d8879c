//! Stopping: streams finish, idle connections close, new ones are refused.

use crate::rig::pairs::{idle, legs, pair_config, ready};
use crate::rig::stub::Stub;
use crate::rig::stub_pages::Pages;
use crate::rig::{ASK, Client, Gate, Worker, config, metric, post, router, until};
use forebay::config::QueueMode;
use std::io::Write;
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
        config.flow.queue.wait_max = Some(Duration::from_secs(60));
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
    let (prefill, decode) =
        (Stub::start(Pages::sglang("prefill")), Stub::start(Pages::sglang("decode")));
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

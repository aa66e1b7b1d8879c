//! Stopping: streams finish, idle connections close, new ones are refused.

use crate::rig::{ASK, Client, Worker, config, post, router, until};
use std::io::Write;
use std::net::TcpStream;

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
    until("new connections are refused", || TcpStream::connect(address).is_err(), true);
    release.send(()).unwrap();
    let reply = busy.reply();
    assert_eq!((reply.text(), reply.complete), ("abcd".into(), true));
    handle.join();
}

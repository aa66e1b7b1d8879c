//! Several routers that read each other's messages, without a server between them.

use crate::replicas::{limits_hold, window};
use crate::rig::truth::{get, metric};
use crate::rig::{
    ASK, Certificates, Client, Gate, RouterProcess, Worker, admin, admin_post, config,
    port_for_later, post, router, until,
};
use crate::upgrade::Second;
use forebay::config::{AdminAddress, Config};
use forebay::server::ServerHandle;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn urls(admins: &[SocketAddr]) -> Vec<String> {
    admins.iter().map(|admin| format!("http://{admin}")).collect()
}

/// One list for all routers, with the own address of each.
fn join(config: &mut Config, admins: &[SocketAddr], at: usize) {
    config.admin = AdminAddress::Tcp(admins[at]);
    config.replicas.peers = urls(admins);
    config.replicas.name = Some(format!("router-{at}"));
}

fn replica(worker: &Worker, admins: &[SocketAddr], at: usize) -> ServerHandle {
    let mut config = config(&[worker]);
    join(&mut config, admins, at);
    router(config)
}

fn know_each_other(admins: &[SocketAddr]) {
    for admin in admins {
        until("the routers know each other", || {
            metric(*admin, "forebay_replicas") == admins.len() as f64
        });
    }
}

fn status(address: SocketAddr) -> u16 {
    let mut client = Client::connect(address);
    client.send(&post("/v1/completions", ASK));
    client.reply().status
}

fn peers(admin: SocketAddr) -> Vec<Value> {
    let list: Value = serde_json::from_slice(&get(admin, "/replicas").body).expect("JSON");
    list["peers"].as_array().expect("peers").clone()
}

fn fault(admin: SocketAddr) -> String {
    peers(admin).iter().filter_map(|peer| Some(peer["fault"].as_str()?.to_owned())).collect()
}

/// Shows any fault of the first peer.
fn until_fault(admin: SocketAddr, words: &str) {
    until(words, || fault(admin).contains(words));
}

#[test]
fn two_and_three_routers_share_a_window_within_100_ms() {
    let worker = Worker::json("{}");
    let admins = [(); 3].map(|()| port_for_later());
    let [first, second] = [0, 1].map(|at| replica(&worker, &admins, at));
    know_each_other(&admins[..2]);
    let states: Vec<String> =
        peers(admins[0]).iter().map(|peer| peer["state"].to_string()).collect();
    assert_eq!(states, ["\"self\"", "\"connected\"", "\"down\""]);
    let connected = |at: usize, to: usize| {
        let name = format!("forebay_peer_connected{{peer=\"http://{}\"}}", admins[to]);
        metric(admins[at], &name)
    };
    assert_eq!((connected(0, 1), connected(0, 2)), (1.0, 0.0));
    assert!(!get(admins[0], "/metrics").text().contains(&format!("{{peer=\"http://{}", admins[0])));
    // The machine may be busy: the best of some tries is the time of the message.
    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        window(&first, r#"{"open":"60s"}"#);
        until("the other refuses", || status(second.listen) == 429);
        times.push(start.elapsed());
        window(&first, r#"{"close":true}"#);
        until("and serves again", || status(second.listen) == 200);
    }
    assert!(times.iter().min() < Some(&Duration::from_millis(100)), "{times:?}");
    window(&first, r#"{"open":"60s"}"#);
    let third = replica(&worker, &admins, 2);
    until("the late joiner refuses", || status(third.listen) == 429);
    know_each_other(&admins);
    until("it is connected", || connected(0, 2) == 1.0);
    // A drain says goodbye: the others do not wait for its silence.
    third.stop();
    third.join().unwrap();
    until("the others forget it", || metric(admins[1], "forebay_replicas") == 2.0);
    let byes = "forebay_replica_messages_total{kind=\"bye\",direction=\"in\",result=\"ok\"}";
    assert_eq!(metric(admins[1], byes), 1.0);
}

/// An order stays an order at the other router: `refusing`, the rest of the window, and no close
/// that the next message would undo.
#[test]
fn a_window_of_an_operator_is_an_order_at_each_router() {
    let worker = Worker::json("{}");
    let admins = [(); 2].map(|()| port_for_later());
    let [first, second] = [0, 1].map(|at| replica(&worker, &admins, at));
    know_each_other(&admins);
    let json =
        |path: &str| -> Value { serde_json::from_slice(&get(admins[1], path).body).expect("JSON") };
    window(&first, r#"{"open":"600s"}"#);
    until("the other refuses", || status(second.listen) == 429);
    let ready = json("/readyz");
    assert_eq!((&ready["state"], &ready["concerns"]), (&"refusing".into(), &Value::Array(vec![])));
    window(&second, r#"{"close":true}"#);
    assert_eq!(status(second.listen), 429, "the first router holds the window open");
    let pool = &json("/admin/window")["pools"][0];
    assert_eq!(pool["by"], serde_json::json!(["hand"]));
    assert!(pool["cause"].as_str().unwrap().contains("at another router"), "{pool}");
    let names: Value = json("/replicas")["replicas"][0]["name"].clone();
    assert_eq!(pool["held_by"], Value::Array(vec![names]));
    let mut client = Client::connect(second.listen);
    client.send(&post("/v1/completions", ASK));
    let after: u64 = client.reply().field("retry-after").expect("a wait").parse().unwrap();
    assert!(after >= 30, "{after} s: the rest of the window, up to a minute");
    window(&first, r#"{"close":true}"#);
    until("both serve", || status(first.listen) == 200 && status(second.listen) == 200);
    assert_eq!(json("/readyz")["state"], "ready");
}

#[test]
fn limits_of_a_rank_hold_for_all_routers_together() {
    let admins = [(); 3].map(|()| port_for_later());
    limits_hold(|config, at| join(config, &admins, at));
}

#[test]
fn a_killed_router_is_forgotten_and_joins_again() {
    let gate = Gate::start();
    let own = port_for_later();
    let mut victim = RouterProcess::configured(&format!(
        "[replicas]\npeers = [\"http://{own}\"]\n[health]\nenabled = false\n\
         [[worker]]\nurl = \"{}\"\n",
        gate.worker.url()
    ));
    let admins = [victim.admin, own];
    let survivor = replica(&gate.worker, &admins, 1);
    know_each_other(&admins);
    let mut client = Client::connect(victim.listen);
    client.send(&post("/v1/completions", ASK));
    until("its load is known", || metric(own, "forebay_replica_in_flight") == 1.0);
    let killed = Instant::now();
    victim.signal(Signal::KILL);
    victim.ended();
    until("it is forgotten", || metric(own, "forebay_replicas") == 1.0);
    let silence = killed.elapsed();
    assert!((2.0..10.0).contains(&silence.as_secs_f64()), "{silence:?}");
    assert_eq!(metric(own, "forebay_replica_in_flight"), 0.0);
    assert_eq!(metric(own, "forebay_peer_connected"), 0.0);
    // The same address, another process.
    let _again = Second(victim.second());
    know_each_other(&[own]);
    until("it knows the survivor", || {
        TcpStream::connect(victim.admin).is_ok() && metric(victim.admin, "forebay_replicas") == 2.0
    });
    drop(survivor);
    let _ = gate.open_for_good();
}

/// A router that reads here and is not in the list here shows.
#[test]
fn a_list_without_a_reader_shows_it() {
    let worker = Worker::json("{}");
    let admins = [(); 2].map(|()| port_for_later());
    let _whole = replica(&worker, &admins, 0);
    let _lacking = replica(&worker, &[admins[0], admins[1]][1..], 0);
    let reader = || {
        let list: Value = serde_json::from_slice(&get(admins[1], "/replicas").body).unwrap();
        list["readers"][0]["heard"].clone()
    };
    until("the reader shows", || reader() == false);
    assert_eq!(metric(admins[1], "forebay_replicas"), 1.0);
    until("it hears the other", || metric(admins[0], "forebay_replicas") == 2.0);
}

#[test]
fn a_router_that_is_not_in_the_list_is_named_in_the_log() {
    let worker = Worker::json("{}");
    let own = port_for_later();
    let lacking = RouterProcess::configured(&format!(
        "[replicas]\npeers = [\"http://127.0.0.1:{own}\"]\n[health]\nenabled = false\n\
         [[worker]]\nurl = \"{}\"\n",
        worker.url(),
        own = port_for_later().port()
    ));
    let _reader = replica(&worker, &[lacking.admin, own], 1);
    let line = "a router reads here and is not heard: limits add up";
    until("it is named", || lacking.logged(line) == 1);
    assert!(lacking.log().contains("replicas.peers"), "{}", lacking.log());
}

#[test]
fn peers_meet_over_tls_with_certificates() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let pair = certificates.sign("router", &["127.0.0.1"]);
    let admins = [(); 2].map(|()| port_for_later());
    let routers = [0, 1].map(|at| {
        let mut config = config(&[&worker]);
        join(&mut config, &admins, at);
        config.replicas.peers = admins.iter().map(|admin| format!("https://{admin}")).collect();
        config.replicas.ca = Some(certificates.ca());
        config.replicas.cert = Some(pair.cert.clone());
        config.replicas.key = Some(pair.key.clone());
        config.admin_tls.cert = Some(pair.cert.clone());
        config.admin_tls.key = Some(pair.key.clone());
        config.admin_tls.client_ca = Some(certificates.ca());
        router(config)
    });
    let tls = certificates.client_with(rustls::ALL_VERSIONS, Some(&pair));
    let mut hand = Client::connect_tls(admins[0], &tls, "127.0.0.1");
    until("they know each other", || {
        hand.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
        hand.reply().text().contains("forebay_replicas 2")
    });
    hand.send(&admin_post("/admin/window", br#"{"open":"60s"}"#));
    assert_eq!(hand.reply().status, 200);
    until("the other refuses", || status(routers[1].listen) == 429);
}

fn ids(admin: SocketAddr) -> Vec<String> {
    let list: Value = serde_json::from_slice(&get(admin, "/replicas").body).expect("JSON");
    let others = list["replicas"].as_array().expect("replicas");
    others.iter().map(|other| other["id"].to_string()).collect()
}

#[test]
fn a_process_that_takes_over_takes_the_place_of_the_one_before() {
    let worker = Worker::json("{}");
    let own = port_for_later();
    let before = RouterProcess::configured(&format!(
        "[replicas]\npeers = [\"http://{own}\"]\n[health]\nenabled = false\n\
         [[worker]]\nurl = \"{}\"\n",
        worker.url()
    ));
    let admins = [before.admin, own];
    let survivor = replica(&worker, &admins, 1);
    know_each_other(&admins);
    let first = ids(own);
    let _after = Second(before.second());
    until("the next process is known", || {
        let now = ids(own);
        now.len() == 1 && now != first
    });
    window(&survivor, r#"{"open":"60s"}"#);
    until("it has the windows of the others", || status(before.listen) == 429);
}

#[test]
fn a_peer_asks_for_a_token_and_the_file_is_read_again() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, token: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, token).unwrap();
        file
    };
    let admins = [(); 2].map(|()| port_for_later());
    let mut guarded = config(&[&worker]);
    join(&mut guarded, &admins, 0);
    guarded.admin_token_file = Some(write("change", "0123456789abcdef-change"));
    guarded.admin_read_token_file = Some(write("read", "0123456789abcdef-read"));
    let _guarded = router(guarded);
    let token = write("token", "0123456789abcdef-wrong");
    let other = RouterProcess::prepared(
        &format!(
            "[replicas]\npeers = [\"http://{}\"]\ntoken_file = \"{}\"\n[health]\nenabled = false\n\
             [[worker]]\nurl = \"{}\"\n",
            admins[0],
            token.display(),
            worker.url()
        ),
        |_| (),
    )
    .0;
    until_fault(other.admin, "it answers 401");
    let refused = "no messages of a peer: nothing is shared with it";
    until("it is logged", || other.logged(refused) == 1);
    assert!(other.log().contains("admin_read_token_file"), "{}", other.log());
    // Each second there is another call.
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(other.logged(refused), 1, "{}", other.log());
    write("token", "0123456789abcdef-read");
    until("it is connected", || metric(other.admin, "forebay_peer_connected") == 1.0);
    assert_eq!(other.logged("connected to a peer"), 1, "{}", other.log());
    until("it knows the other", || metric(other.admin, "forebay_replicas") == 2.0);
}

#[test]
fn a_router_alone_in_its_list_is_whole() {
    let worker = Worker::json("{}");
    let admins = [port_for_later()];
    let alone = replica(&worker, &admins, 0);
    until("it knows its own address", || peers(admins[0])[0]["state"] == "self");
    let list: Value = serde_json::from_slice(&admin(&alone, "/replicas").body).unwrap();
    assert_eq!(
        (&list["connected"], list["replicas"].as_array().map(Vec::len)),
        (&true.into(), Some(0))
    );
    assert_eq!(list["readers"], serde_json::json!([]));
    assert_eq!(status(alone.listen), 200);
}

/// A server at a peer's address that answers each call with the next of these, and keeps the
/// connection.
fn scripted(answers: Vec<Vec<u8>>) -> (SocketAddr, JoinHandle<Vec<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let answer = |answer: Vec<u8>| {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n";
            // The router may cut it.
            let _ = stream.write_all(head).and_then(|()| stream.write_all(&answer));
            stream
        };
        answers.into_iter().map(answer).collect()
    });
    (address, serving)
}

#[test]
fn a_peer_that_sends_anything_else_is_left_and_called_again() {
    let worker = Worker::json("{}");
    let noise =
        b"\n\xff\xfe\nv2.load {}\nload\nv1.load {\"replica\":\nv1.use []\nv1.load []\n".to_vec();
    let endless = vec![b'x'; 3 << 20];
    let load = b"v1.load {\"replica\":\"7\",\"name\":\"x\",\"seq\":1,\"full\":true}\n".to_vec();
    let (address, serving) = scripted(vec![[noise, endless].concat(), load]);
    let mut config = config(&[&worker]);
    config.replicas.peers = urls(&[address]);
    let router = router(config);
    until_fault(router.admin, "a line of more than");
    let count =
        |labels: &str| metric(router.admin, &format!("forebay_replica_messages_total{{{labels}"));
    assert_eq!(count("kind=\"load\",direction=\"in\",result=\"malformed\""), 2.0);
    assert_eq!(count("kind=\"other\",direction=\"in\",result=\"foreign\""), 4.0);
    // The next stream begins well, and falls silent.
    until("it is known", || metric(router.admin, "forebay_replicas") == 2.0);
    until_fault(router.admin, "no message for 3 s");
    until("it is forgotten", || metric(router.admin, "forebay_replicas") == 1.0);
    assert_eq!(status(router.listen), 200);
    drop(serving.join().unwrap());
}

/// Not each server that answers 200, or 409, is a router.
#[test]
fn a_server_that_is_no_router_is_not_connected() {
    let worker = Worker::json("{}");
    let (page, serving) = scripted(vec![b"<html>\n".to_vec()]);
    let conflict = Worker::start(|_, stream| {
        write!(stream, "HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\nno").is_ok()
    });
    // Issue 39: the help about the port of clients was to set `replicas.peers` there too.
    let other = router(config(&[&worker]));
    let mut config = config(&[&worker]);
    config.replicas.peers = urls(&[page, conflict.address, other.listen]);
    let router = router(config);
    until("the calls fail", || {
        let all = peers(router.admin);
        let fault = |at: usize| all[at]["fault"].as_str().unwrap_or_default().to_owned();
        assert!(all.iter().all(|peer| peer["state"] != "connected" && peer["state"] != "self"));
        fault(0) == "no message for 3 s"
            && fault(1) == "it answers 409 and is no admin API"
            && fault(2) == "it answers 404 and is no admin API"
    });
    assert_eq!(status(router.listen), 200);
    drop(serving.join().unwrap());
}

#[test]
fn messages_are_read_by_anybody_with_a_client_of_http() {
    let worker = Worker::json("{}");
    let admins = [(); 2].map(|()| port_for_later());
    let _routers = [0, 1].map(|at| replica(&worker, &admins, at));
    know_each_other(&admins);
    let mut reader = TcpStream::connect(admins[0]).unwrap();
    let call = "GET /replicas/messages HTTP/1.1\r\nhost: localhost\r\n\r\n";
    reader.write_all(call.as_bytes()).unwrap();
    let mut seen = Vec::new();
    until("a full load comes", || {
        let mut part = [0; 4_096];
        let count = reader.read(&mut part).unwrap();
        seen.extend_from_slice(&part[..count]);
        String::from_utf8_lossy(&seen).contains("v1.load {\"replica\":\"")
    });
    let own = get(admins[0], "/replicas");
    let own: Value = serde_json::from_slice(&own.body).unwrap();
    let call = format!("/replicas/messages?replica={}", own["id"].as_str().unwrap());
    assert_eq!(get(admins[0], &call).status, 409);
    assert_eq!(get(admins[0], "/replicas/messages?replica=x").status, 400);
    let alone = router(config(&[&worker]));
    assert_eq!(get(alone.admin, "/replicas/messages").status, 404);
}

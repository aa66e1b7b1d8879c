//! Workers that SRV records name, from a name server of the test's own.

use crate::rig::truth::get;
use crate::rig::{
    ASK, Certificates, Client, Reply, RouterProcess, TlsFront, Worker, admin_post, post, until,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a server says, to each question.
#[derive(Clone, Default)]
struct Zone {
    /// Each on 127.0.0.1.
    ports: Vec<u16>,
    ttl_s: u32,
    code: u8,
    /// The records come over TCP only.
    is_cut_short: bool,
}

/// Listens until the process ends.
struct NameServer {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    /// Over UDP.
    asked: Arc<Mutex<usize>>,
}

impl NameServer {
    fn start(zone: Zone) -> Self {
        let (udp, tcp) = both();
        let address = udp.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(zone));
        let asked = Arc::new(Mutex::new(0));
        let says = Arc::clone(&zone);
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((bytes, from)) = udp.recv_from(&mut buffer) {
                *count.lock().unwrap() += 1;
                let zone = says.lock().unwrap().clone();
                let question = &buffer[..bytes];
                let mut other = answer(question, &zone, zone.is_cut_short);
                other[0] ^= 1;
                // What belongs to another question is passed by.
                udp.send_to(&other, from).unwrap();
                udp.send_to(&answer(question, &zone, zone.is_cut_short), from).unwrap();
            }
        });
        let says = Arc::clone(&zone);
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let mut stream = stream.unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut question).unwrap();
                let message = answer(&question, &says.lock().unwrap(), false);
                let length = u16::try_from(message.len()).unwrap().to_be_bytes();
                stream.write_all(&[&length[..], &message].concat()).unwrap();
            }
        });
        Self { address, zone, asked }
    }

    fn says(&self, zone: Zone) {
        *self.zone.lock().unwrap() = zone;
    }

    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }
}

/// UDP and TCP of one port.
fn both() -> (UdpSocket, TcpListener) {
    std::iter::repeat_with(|| UdpSocket::bind("127.0.0.1:0").unwrap())
        .find_map(|udp| {
            let tcp = TcpListener::bind(udp.local_addr().unwrap()).ok()?;
            Some((udp, tcp))
        })
        .unwrap()
}

fn answer(question: &[u8], zone: &Zone, is_cut_short: bool) -> Vec<u8> {
    let asked = &question[13..];
    let asked = asked.strip_prefix(b"_https").or(asked.strip_prefix(b"_http")).unwrap();
    assert_eq!(asked, b"\x04_tcp\x07engines\x04test\x00\x00\x21\x00\x01");
    let mut message = question.to_vec();
    message[2] = 0x81 | if is_cut_short { 0x02 } else { 0 };
    message[3] = 0x80 | zone.code;
    if is_cut_short {
        return message;
    }
    message[7] = u8::try_from(zone.ports.len()).unwrap();
    for port in &zone.ports {
        message.extend(b"\xc0\x0c\x00\x21\x00\x01");
        message.extend(zone.ttl_s.to_be_bytes());
        message.extend([0, 17, 0, 10, 0, 5]);
        message.extend(port.to_be_bytes());
        message.extend(b"\x03127\x010\x010\x011\x00");
    }
    message
}

fn asked(router: &RouterProcess) -> Reply {
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", ASK));
    client.reply()
}

fn served_by(router: &RouterProcess) -> String {
    let reply = asked(router);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.field("x-forebay-worker").unwrap().to_owned()
}

#[test]
fn srv_records_bring_workers_and_a_server_that_fails_takes_nobody() {
    let [first, second] = [(); 2].map(|()| Worker::json("{}"));
    let [a, b] = [&first, &second].map(|worker| worker.address.port());
    let server = NameServer::start(Zone { ports: vec![a], ..Zone::default() });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\nhealth.enabled = false\n[discovery]\n\
         interval = \"100ms\"\ndns = [\"http://_http._tcp.engines.test\"]\n\
         name_server = \"{}\"\n",
        server.address
    ));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    assert_eq!(served_by(&router), format!("127.0.0.1:{a}"));
    server.says(Zone { ports: vec![a, b], is_cut_short: true, ..Zone::default() });
    let has = |port: u16| get(router.admin, "/workers").text().contains(&format!(":{port}\""));
    until("the second has joined, over TCP", || has(b));
    until("it serves too", || served_by(&router) == format!("127.0.0.1:{b}"));

    let faults = [
        Zone { code: 2, ports: vec![a], ..Zone::default() },
        Zone { code: 3, ..Zone::default() },
        Zone::default(),
    ];
    for (count, zone) in faults.into_iter().enumerate() {
        server.says(zone);
        until("that is said", || router.logged("nothing learnt of workers") == count + 1);
        assert!(has(a) && has(b));
    }
    // Its time is up to the answer now, and no more than a minute.
    server.says(Zone { ports: vec![b], ttl_s: 3_600, ..Zone::default() });
    until("the first is gone", || !has(a));
    let asked = server.asked();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(server.asked(), asked, "the answer still holds");
    assert_eq!(served_by(&router), format!("127.0.0.1:{b}"));
}

#[test]
fn records_names_and_a_file_bring_workers_with_tls() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let others = Certificates::new();
    let front = |by: &Certificates, name: &str| {
        TlsFront::of(worker.address, &by.sign(&name.replace('.', "-"), &[name]))
    };
    let of_target = front(&certificates, "127.0.0.1");
    let of_name = front(&certificates, "localhost");
    let of_file = front(&others, "localhost");
    let server =
        NameServer::start(Zone { ports: vec![of_target.address.port()], ..Zone::default() });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let url = of_file.url("localhost");
    let ca = others.ca();
    let table = format!("[[worker]]\nurl = \"{url}\"\ntls_ca = \"{}\"\n", ca.display());
    std::fs::write(&file, table).unwrap();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\nhealth.enabled = false\n\
         upstream_tls.ca = \"{}\"\n[discovery]\ninterval = \"100ms\"\nfile = \"{}\"\n\
         dns = [\"https://_https._tcp.engines.test\", \"{}\"]\nname_server = \"{}\"\n",
        certificates.ca().display(),
        file.display(),
        of_name.url("localhost"),
        server.address
    ));
    let has_all = |router: &RouterProcess| {
        for front in [&of_target, &of_name, &of_file] {
            let end = format!(":{}", front.address.port());
            until("it serves", || served_by(router).ends_with(&end));
        }
    };
    has_all(&router);
    // A reload reads the authorities again, for those that sources brought too.
    std::fs::copy(others.ca(), certificates.ca()).unwrap();
    let mut admin = Client::connect(router.admin);
    admin.send(&admin_post("/admin/reload", b""));
    assert!(admin.reply().text().contains("upstream_tls"));
    for front in [&of_target, &of_name, &of_file] {
        front.cut_all();
    }
    let own = format!(":{}", of_file.address.port());
    // A request on a connection that was cut may fail.
    let is_own = |reply: &Reply| {
        reply.status == 200 && reply.field("x-forebay-worker").unwrap().ends_with(&own)
    };
    until("the others are believed no more", || (0..8).all(|_| is_own(&asked(&router))));
}

/// A file says the same address in other words, then over TLS.
#[test]
fn another_spelling_is_the_same_worker_and_another_scheme_is_another_one() {
    let [first, second] = [(); 2].map(|()| Worker::json("{}"));
    let certificates = Certificates::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let lists = |urls: &[&str]| {
        let table = |url: &&str| format!("[[worker]]\nurl = \"{url}\"\nmodels = [\"m\"]\n");
        let new = file.with_extension("new");
        std::fs::write(&new, urls.iter().map(table).collect::<String>()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    lists(&[&first.url()]);
    let router = RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\nhealth.enabled = false\n\
         upstream_tls.ca = \"{}\"\n[discovery]\ninterval = \"100ms\"\nfile = \"{}\"\n",
        certificates.ca().display(),
        file.display(),
    ));
    let has = |text: &str| get(router.admin, "/workers").text().contains(text);
    until("it serves", || get(router.admin, "/readyz").status == 200);
    lists(&[&format!("{}/", first.url()), &second.url()]);
    until("the second has joined", || has(&second.url()));
    assert_eq!(router.logged("removed: it gets nothing new"), 0);
    assert!(has(&first.url()));
    let over_tls = first.url().replace("http:", "https:");
    lists(&[&over_tls, &second.url()]);
    until("the first is another worker", || has(&over_tls) && !has(&first.url()));
    assert_eq!(router.logged("workers not added"), 0, "to wait for a leaving worker is no fault");
    // Two that cannot join are said once, whatever comes of the others.
    lists(&[&second.url(), &first.url()]);
    until("it waits", || router.logged("only a restart brings") == 1 && !has(&over_tls));
    std::thread::sleep(Duration::from_millis(400));
    assert!(router.logged("workers not added") <= 3, "not with each list");
    assert!(served_by(&router).ends_with(&second.address.port().to_string()));
}

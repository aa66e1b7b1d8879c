//! Certificates that are renewed while connections come and go.

use crate::rig::{ASK, Certificates, Client, Worker, admin_post, metric, post, until};
use forebay::config::{ConfigSource, Flags, Reloader};
use forebay::server::{ServerHandle, start_reloadable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const NAME: &str = "router.example";

fn start(worker: &Worker, certificates: &Certificates) -> ServerHandle {
    certificates.sign("router", &[NAME]);
    let file = certificates.path("forebay.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\n\
         [tls]\ncert = {:?}\nkey = {:?}\n[health]\nenabled = false\n[[worker]]\nurl = {:?}\n",
        certificates.path("router.pem"),
        certificates.path("router.key"),
        worker.url(),
    );
    std::fs::write(&file, text).unwrap();
    let source = ConfigSource { file: Some(file), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let reloader = Reloader::new(source, config.clone());
    start_reloadable(config, false, reloader).unwrap()
}

fn reload(handle: &ServerHandle) -> (u16, String) {
    let mut client = Client::connect(handle.admin);
    client.send(&admin_post("/admin/reload", b""));
    let reply = client.reply();
    (reply.status, reply.text())
}

/// The certificate that a new client is shown.
fn shown(handle: &ServerHandle, certificates: &Certificates) -> Vec<u8> {
    let client = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    client.tls.unwrap().peer_certificates().unwrap()[0].to_vec()
}

/// M2: each certificate has its end in `/readyz`.
#[test]
fn readiness_has_the_certificate_with_its_end() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let handle = start(&worker, &certificates);
    until("it is ready", || crate::rig::admin(&handle, "/readyz").status == 200);
    let ready = crate::rig::admin(&handle, "/readyz").text();
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let [certificate] = &ready["certificates"].as_array().unwrap()[..] else { panic!("{ready}") };
    assert_eq!((&certificate["port"], &certificate["names"][0]), (&"listen".into(), &NAME.into()));
    let end = metric(&handle, "forebay_tls_expires_timestamp_seconds");
    assert_eq!(certificate["expires_timestamp_seconds"].as_f64(), Some(end), "{ready}");
}

#[test]
fn a_renewed_certificate_counts_for_new_connections_and_no_request_fails() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let handle = start(&worker, &certificates);
    let mut kept = Client::connect_tls(handle.listen, &certificates.client(), NAME);
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let tls = certificates.client();
            let address = handle.listen;
            let stop = Arc::clone(&stop);
            let served = Arc::clone(&served);
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let mut client = Client::connect_tls(address, &tls, NAME);
                    for _ in 0..3 {
                        client.send(&post("/v1/completions", ASK));
                        assert_eq!(client.reply().status, 200);
                    }
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut last = shown(&handle, &certificates);
    for _ in 0..5 {
        certificates.sign("router", &[NAME]);
        assert_eq!(reload(&handle).0, 200);
        until("new connections are shown the new one", || shown(&handle, &certificates) != last);
        last = shown(&handle, &certificates);
        let before = served.load(Ordering::SeqCst);
        until("clients go on", || served.load(Ordering::SeqCst) > before + 3);
        kept.send(&post("/v1/completions", ASK));
        assert_eq!(kept.reply().status, 200, "an open connection lives on");
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().unwrap();
    }
    assert!(metric(&handle, "forebay_tls_handshakes_resumed_total") > 0.0);
}

#[test]
fn a_broken_file_leaves_the_old_certificate_in_use() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let handle = start(&worker, &certificates);
    let first = shown(&handle, &certificates);
    certificates.sign("other", &[NAME]);
    std::fs::copy(certificates.path("other.key"), certificates.path("router.key")).unwrap();
    let (status, text) = reload(&handle);
    assert!(status == 400 && text.contains("is not the key of"), "{text}");
    std::fs::write(certificates.path("router.pem"), "no certificate").unwrap();
    assert_eq!(reload(&handle).0, 400);
    assert_eq!(shown(&handle, &certificates), first);
    std::fs::copy(certificates.path("other.pem"), certificates.path("router.pem")).unwrap();
    assert_eq!(reload(&handle).0, 200);
    until("the new one is shown", || shown(&handle, &certificates) != first);
}

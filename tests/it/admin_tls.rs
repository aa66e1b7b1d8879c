//! The admin API over TLS: callers with a certificate of ours, and nobody else.

use crate::rig::{Certificates, Client, Worker, admin_post};
use forebay::config::{ConfigSource, Flags, Reloader};
use forebay::server::{ServerHandle, start_reloadable};
use rustls::ClientConfig;
use std::io::Read;
use std::sync::Arc;

const NAME: &str = "admin.example";

/// A router whose admin port has a certificate, and asks callers for another on wish.
fn start(worker: &Worker, certificates: &Certificates, asks_callers: bool) -> ServerHandle {
    certificates.sign("admin", &[NAME]);
    let file = certificates.path("forebay.toml");
    let asked = format!("client_ca = {:?}\n", certificates.ca());
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\n\
         [admin_tls]\ncert = {:?}\nkey = {:?}\n{}\
         [health]\nenabled = false\n[[worker]]\nurl = {:?}\nmodels = [\"m\"]\n",
        certificates.path("admin.pem"),
        certificates.path("admin.key"),
        if asks_callers { &*asked } else { "" },
        worker.url(),
    );
    std::fs::write(&file, text).unwrap();
    let source = ConfigSource { file: Some(file), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let reloader = Reloader::new(source, config.clone());
    start_reloadable(config, false, reloader).unwrap()
}

/// What a caller gets, if it gets in.
fn called(handle: &ServerHandle, tls: &Arc<ClientConfig>, call: &[u8]) -> Option<u16> {
    // In TLS 1.3 a caller hears of its certificate with the first answer.
    let mut client = Client::try_tls(handle.admin, tls, NAME).ok()?;
    client.try_send(call).ok()?;
    client.try_more().ok().filter(|bytes| *bytes > 0)?;
    Some(client.reply().status)
}

const READ: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn callers_show_certificates_where_they_have_to() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let others = Certificates::new();
    let own = certificates.sign("caller", &["caller"]);
    let wrong = others.sign("caller", &["caller"]);
    for (asks_callers, works) in [(true, [true, false, false]), (false, [true, true, true])] {
        let handle = start(&worker, &certificates, asks_callers);
        for (shown, works) in [Some(&own), None, Some(&wrong)].into_iter().zip(works) {
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let tls = certificates.client_with(&[version], shown);
                let status = called(&handle, &tls, READ);
                assert_eq!(status, works.then_some(200), "{asks_callers} {shown:?}");
            }
        }
        let tls = certificates.client_with(rustls::ALL_VERSIONS, Some(&own));
        let foreign = b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\n\r\n";
        assert_eq!(called(&handle, &tls, foreign), Some(421), "the checks are the same");
        let mut plain = Client::connect(handle.admin);
        plain.send(READ);
        let mut heard = Vec::new();
        // The connection may be reset.
        let _ = plain.stream.read_to_end(&mut heard);
        assert!(!heard.starts_with(b"HTTP/"), "an alert of TLS at most: {heard:?}");
    }
}

#[test]
fn a_reload_reads_the_files_of_the_admin_port_again() {
    let worker = Worker::json("{}");
    let certificates = Certificates::new();
    let handle = start(&worker, &certificates, false);
    let shown = || {
        let client = Client::connect_tls(handle.admin, &certificates.client(), NAME);
        client.tls.unwrap().peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown();
    let mut client = Client::connect_tls(handle.admin, &certificates.client(), NAME);
    client.send(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let ready: serde_json::Value = serde_json::from_str(&client.reply().text()).unwrap();
    let certificate = &ready["certificates"][0];
    assert_eq!((&certificate["port"], &certificate["names"][0]), (&"admin".into(), &NAME.into()));
    let reload = || called(&handle, &certificates.client(), &admin_post("/admin/reload", b""));
    certificates.sign("admin", &[NAME]);
    assert_eq!((reload(), shown() == first), (Some(200), false));
    let second = shown();
    std::fs::write(certificates.path("admin.pem"), "no certificate").unwrap();
    assert_eq!((reload(), shown() == second), (Some(400), true), "a faulty file changes nothing");
}

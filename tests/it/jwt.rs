//! Tokens of clients: who may call with one, and keys that rotate meanwhile. OpenSSL has made keys
//! and tokens of `tests/data/jwt`.

use crate::rig::{ASK, Client, Reply, Worker, config, post, router, until};
use forebay::config::{Config, JwtConfig};
use forebay::server::ServerHandle;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const FIRST: &str = include_str!("../data/jwt/rsa.json");
const NEXT: &str = include_str!("../data/jwt/next.json");
const TOKENS: [&str; 2] =
    [include_str!("../data/jwt/rsa.jwt"), include_str!("../data/jwt/next.jwt")];

fn start(worker: &Worker, jwks: &str) -> ServerHandle {
    let jwt = JwtConfig {
        jwks: Some(jwks.to_owned()),
        issuer: "https://issuer.example".to_owned(),
        audience: vec!["forebay".to_owned()],
        models_claim: Some("models".to_owned()),
        ..JwtConfig::default()
    };
    router(Config { jwt, ..config(&[worker]) })
}

fn ask(client: &mut Client, token: &str, body: &[u8]) -> Reply {
    let request = String::from_utf8(post("/v1/completions", body)).unwrap();
    let field = format!("authorization: Bearer {}\r\nhost:", token.trim());
    client.send(request.replacen("host:", &field, 1).as_bytes());
    client.reply()
}

/// A new set replaces the file as a whole, as an operator's tool would do it.
fn replace(path: &Path, sets: &[&str]) {
    let keys: Vec<Value> = sets
        .iter()
        .flat_map(|set| {
            let set: Value = serde_json::from_str(set).unwrap();
            set["keys"].as_array().unwrap().clone()
        })
        .collect();
    let next = path.with_extension("next");
    std::fs::write(&next, json!({ "keys": keys }).to_string()).unwrap();
    std::fs::rename(next, path).unwrap();
}

#[test]
fn keys_rotate_under_load_and_no_valid_token_fails() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    replace(&path, &[FIRST]);
    let handle = start(&worker, path.to_str().unwrap());
    let status = |token: usize| {
        let mut client = Client::connect(handle.listen);
        ask(&mut client, TOKENS[token], ASK).status
    };
    assert_eq!((status(0), status(1)), (200, 401));
    let stop = AtomicBool::new(false);
    let token = AtomicUsize::new(0);
    let served = AtomicUsize::new(0);
    let shared = Arc::new((stop, token, served));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let shared = Arc::clone(&shared);
            let address = handle.listen;
            std::thread::spawn(move || {
                let (stop, token, served) = &*shared;
                let mut client = Client::connect(address);
                while !stop.load(Ordering::SeqCst) {
                    let shown = TOKENS[token.load(Ordering::SeqCst)];
                    assert_eq!(ask(&mut client, shown, ASK).status, 200);
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let (stop, token, served) = &*shared;
    let go_on = || {
        let before = served.load(Ordering::SeqCst);
        until("clients go on", || served.load(Ordering::SeqCst) > before + 10);
    };
    replace(&path, &[FIRST, NEXT]);
    until("the next key counts", || status(1) == 200);
    go_on();
    token.store(1, Ordering::SeqCst);
    go_on();
    std::fs::write(&path, "{").unwrap();
    go_on();
    replace(&path, &[NEXT]);
    until("the first key has gone", || status(0) == 401);
    go_on();
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn a_set_is_fetched_and_a_token_stays_with_the_router() {
    let worker = Worker::json("{}");
    let issuer = Worker::json(FIRST);
    let handle = start(&worker, &format!("{}/keys", issuer.url()));
    let mut client = Client::connect(handle.listen);
    assert_eq!(ask(&mut client, TOKENS[0], ASK).status, 200);
    assert!(!worker.next().head.to_ascii_lowercase().contains("authorization"));
    assert!(issuer.next().head.starts_with("GET /keys HTTP/1.1\r\n"));
    let other = br#"{"model":"x","prompt":"hi"}"#;
    assert_eq!(ask(&mut client, TOKENS[0], other).status, 403);
    let refused = ask(&mut client, &TOKENS[0].trim()[1..], ASK);
    assert_eq!((refused.status, refused.field("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(ask(&mut client, TOKENS[1], ASK).status, 401);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 401, "no token at all");
}

/// The next regular fetch is minutes away: what comes, comes for the failure, or for the token.
#[test]
fn a_failed_fetch_is_tried_again_and_an_unknown_key_asks_for_the_set() {
    let worker = Worker::json("{}");
    let stage = Arc::new(AtomicUsize::new(0));
    let at = Arc::clone(&stage);
    let issuer = Worker::start(move |_, stream| {
        let both = || {
            let keys = [FIRST, NEXT].map(|set| serde_json::from_str::<Value>(set).unwrap());
            let keys: Vec<Value> =
                keys.iter().flat_map(|set| set["keys"].as_array().unwrap().clone()).collect();
            json!({ "keys": keys }).to_string()
        };
        let (status, body) = match at.load(Ordering::SeqCst) {
            0 => ("500 No", String::new()),
            1 => ("200 OK", FIRST.to_owned()),
            _ => ("200 OK", both()),
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(stream, [head, body].concat().as_bytes()).is_ok()
    });
    let handle = start(&worker, &format!("{}/keys", issuer.url()));
    let status = |token: usize| {
        let mut client = Client::connect(handle.listen);
        ask(&mut client, TOKENS[token], ASK).status
    };
    assert_eq!(status(0), 401, "without keys each token is refused");
    stage.store(1, Ordering::SeqCst);
    until("the set was fetched", || status(0) == 200);
    assert_eq!(status(1), 401);
    stage.store(2, Ordering::SeqCst);
    until("the unknown key was asked for", || status(1) == 200);
    assert_eq!(status(0), 200);
}

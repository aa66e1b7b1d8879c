//! Keys of clients: who may call, what a key may use, and what workers see of it.

use crate::rig::{
    ASK, Client, Reply, RouterProcess, Worker, config, metric, post, router, truth, until,
};
use forebay::config::{Config, ConfigSource, Flags, Reloader, TenantConfig};
use forebay::keys::{FreshKey, StoredKey, add, change};
use forebay::server::start_reloadable;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Keys `gold-key` and `some-key`, the latter for the model `m` alone.
fn keyed(workers: &[&Worker]) -> Config {
    let api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
    Config { api_keys, ..config(workers) }
}

/// A request with further fields in its head.
fn with(fields: &str, request: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(request.to_vec()).unwrap();
    text.replacen("host:", &format!("{fields}host:"), 1).into_bytes()
}

fn ask(address: SocketAddr, fields: &str, path: &str, body: &[u8]) -> Reply {
    let mut client = Client::connect(address);
    client.send(&with(fields, &post(path, body)));
    client.reply()
}

fn get(address: SocketAddr, fields: &str, path: &str) -> Reply {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\n{fields}host: x\r\n\r\n").as_bytes());
    client.reply()
}

const GOLD: &str = "authorization: Bearer gold-key\r\n";
const SOME: &str = "x-api-key: some-key\r\n";

#[test]
fn without_a_known_key_nothing_reaches_a_worker() {
    let worker = Worker::json("{}");
    let router = router(keyed(&[&worker]));
    let mut client = Client::connect(router.listen);
    for fields in ["", "authorization: Bearer gold\r\n", "x-api-key: gold-keys\r\n"] {
        // One connection: a refused body does not spoil the next request.
        client.send(&with(fields, &post("/v1/chat/completions", &[b'x'; 3_000])));
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("x-forebay-reason")), (401, Some("unauthorized")));
        assert_eq!(reply.field("www-authenticate"), Some("Bearer"));
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        let error = &error["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!("invalid_api_key"))
        );
    }
    client.send(&post("/v1/messages", ASK));
    let error: Value = serde_json::from_slice(&client.reply().body).unwrap();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("authentication_error"))
    );
    assert_eq!(get(router.listen, "", "/v1/models").status, 401);
    for page in ["/health", "/ping", "/version"] {
        assert_eq!(get(router.listen, "", page).status, 200, "{page}");
    }
    assert_eq!(get(router.listen, "", "/nothing").status, 404);
    for fields in [GOLD, SOME] {
        client.send(&with(fields, &post("/v1/completions", ASK)));
        assert_eq!(client.reply().status, 200, "{fields}");
    }
    assert_eq!(worker.next().body, ASK, "the first that it saw");
    let refused = "forebay_rejected_total{reason=\"unauthorized\"";
    assert!((metric(&router, refused) - 5.0).abs() < 0.5);
}

/// M2: a caller with a wrong key is counted as that, and leaves the router as it is.
#[test]
fn wrong_keys_are_no_answers_and_no_shortage() {
    let worker = Worker::json("{}");
    let router = router(keyed(&[&worker]));
    until("it is up", || metric(&router, "forebay_worker_up") > 0.5);
    for _ in 0..3 {
        let fields = "authorization: Bearer gold-kay\r\n";
        assert_eq!(ask(router.listen, fields, "/v1/completions", ASK).status, 401);
    }
    assert_eq!(ask(router.listen, GOLD, "/v1/completions", b"{").status, 400);
    assert_eq!(ask(router.listen, GOLD, "/v1/completions", ASK).status, 200);
    let of = |result: &str| {
        let name = "forebay_tenant_requests_total{";
        let text = truth::get(router.admin, "/metrics").text();
        let lines = text.lines().filter(|line| line.starts_with(name));
        let of_result = lines.filter(|line| line.contains(&format!("result=\"{result}\"")));
        of_result.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    until("all are counted", || of("invalid") + of("answered") >= 5);
    assert_eq!((of("invalid"), of("answered"), of("refused"), of("failed")), (4, 1, 0, 0));
    let readiness = truth::get(router.admin, "/readyz").text();
    assert!(readiness.contains("\"concerns\":[]"), "{readiness}");
}

#[test]
fn a_key_uses_its_models_and_sees_no_others() {
    let worker = Worker::json("{}");
    let mut config = keyed(&[&worker]);
    config.workers[0].models = vec!["m".into(), "n".into()];
    let router = router(config);
    let status = |fields: &str, path: &str, body: &[u8]| ask(router.listen, fields, path, body);
    let other = br#"{"model":"n","prompt":"hi"}"#;
    let unknown = br#"{"model":"x","prompt":"hi"}"#;
    assert_eq!(status(SOME, "/v1/completions", ASK).status, 200);
    assert_eq!(status(GOLD, "/v1/completions", other).status, 200);
    assert_eq!(status(GOLD, "/v1/completions", unknown).status, 404);
    for body in [&other[..], unknown, br#"{"model":"m","lora_path":"n","text":"hi"}"#] {
        let reply = status(SOME, "/v1/completions", body);
        assert_eq!((reply.status, reply.field("x-forebay-reason")), (403, Some("forbidden")));
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(error["error"]["code"], "model_not_found");
        assert_eq!(error["error"]["param"], "model");
    }
    let reply = status(SOME, "/v1/messages", other);
    let error: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, &error["error"]["type"]), (403, &json!("permission_error")));
    let listed = |fields: &str| -> Vec<String> {
        let list: Value =
            serde_json::from_slice(&get(router.listen, fields, "/v1/models").body).unwrap();
        let cards = list["data"].as_array().unwrap();
        cards.iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((listed(SOME), listed(GOLD)), (vec!["m".into()], vec!["m".into(), "n".into()]));
    assert_eq!(
        metric(&router, "forebay_rejected_total{reason=\"forbidden\"").to_bits(),
        4_f64.to_bits()
    );
}

/// Where the workers' models are not known, a worker lists them all.
#[test]
fn a_key_with_models_is_not_shown_the_list_of_a_worker() {
    let worker = Worker::json(r#"{"object":"list","data":[{"id":"secret"}]}"#);
    let router = router(keyed(&[&worker]));
    let list = get(router.listen, SOME, "/v1/models");
    let list: Value = serde_json::from_slice(&list.body).unwrap();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["data"][0]["id"], "m");
    assert!(get(router.listen, GOLD, "/v1/models").text().contains("secret"));
    let unnamed = ask(router.listen, SOME, "/generate", br#"{"text":"hi"}"#);
    assert_eq!(unnamed.status, 403, "nobody knows which model that is");
}

#[test]
fn workers_see_their_own_key_and_never_the_clients() {
    let open = Worker::json("{}");
    let locked = Worker::json("{}");
    let mut config = keyed(&[&open, &locked]);
    config.workers[1].api_key = Some("of-the-worker".into());
    let router = router(config);
    let both = format!("{GOLD}X-Api-Key: some-key\r\nx-other: kept\r\n");
    for _ in 0..2 {
        assert_eq!(ask(router.listen, &both, "/v1/completions", ASK).status, 200);
    }
    let head = |worker: &Worker| worker.next().head.to_ascii_lowercase();
    let open = head(&open);
    let locked = head(&locked);
    assert!(!open.contains("authorization") && !open.contains("-key"), "{open}");
    assert!(open.contains("x-other: kept"), "{open}");
    assert!(locked.contains("authorization: bearer of-the-worker\r\n"), "{locked}");
    assert!(!locked.contains("some-key") && !locked.contains("gold-key"), "{locked}");
}

/// As before there were keys: a router without them passes what the client sends.
#[test]
fn without_keys_the_client_speaks_to_the_worker() {
    let worker = Worker::json("{}");
    let router = router(config(&[&worker]));
    assert_eq!(ask(router.listen, &format!("{GOLD}{SOME}"), "/v1/completions", ASK).status, 200);
    let head = worker.next().head;
    assert!(head.contains(GOLD) && head.contains(SOME), "{head}");
}

#[test]
fn a_key_decides_the_class() {
    let worker = Worker::json("{}");
    let mut config = keyed(&[&worker]);
    config.flow.tenants = vec![TenantConfig { name: "gold".to_owned(), ..TenantConfig::default() }];
    let router = router(config);
    let early = br#"{"model":"m","prompt":"hi","priority":-5}"#;
    for (fields, told) in [(GOLD, false), (SOME, true)] {
        assert_eq!(ask(router.listen, fields, "/v1/completions", early).status, 200);
        let head = worker.next().head;
        assert_eq!(head.contains("x-vllm-priority: 0"), told, "{head}");
    }
}

fn forebay(arguments: &[&str]) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_forebay")).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// The command, the file and the router together; a broken file changes nothing.
#[test]
fn keys_come_and_go_with_a_reload() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.toml");
    let path = file.to_str().unwrap();
    let key = |tenant: &str| {
        let said = forebay(&["key", "add", "--file", path, "--tenant", tenant]);
        said.split_whitespace().last().unwrap().to_owned()
    };
    let one = key("one");
    let process = RouterProcess::configured(&format!(
        "api_keys = \"{path}\"\n[log]\nrequests = true\n[health]\nenabled = false\n\
         [[worker]]\nurl = \"{}\"\n",
        worker.url()
    ));
    let status = |key: &str| {
        let fields = format!("authorization: Bearer {key}\r\n");
        ask(process.listen, &fields, "/v1/completions", ASK).status
    };
    until("the router listens", || truth::get(process.admin, "/readyz").status == 200);
    assert_eq!((status(&one), status("fbk_0")), (200, 401));
    until("the record names the tenant", || process.logged("tenant=\"one\"") == 1);
    until("and that of nobody", || process.logged("tenant=\"*\"") == 1);
    let two = key("two");
    assert_eq!(status(&two), 401, "not read yet");
    process.signal(Signal::HUP);
    until("the second key is known", || status(&two) == 200);
    assert!(!process.log().contains(&one) && !process.log().contains(&two));

    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}modells = []\n")).unwrap();
    process.signal(Signal::HUP);
    let place = format!("place={path}:{}:11 ", text.lines().count() + 1);
    until("the fault is logged", || process.log().contains(&place));
    assert_eq!(process.logged("ERROR configuration: unknown member"), 1, "the level stands once");
    assert_eq!((status(&one), status(&two)), (200, 200), "the keys of before");

    // A writer has emptied it, and is about to write.
    for empty in ["", "# Keys of the clients.\n"] {
        let said = process.logged("the keys stay as they were");
        std::fs::write(&file, empty).unwrap();
        process.signal(Signal::HUP);
        until("that is said", || process.logged("the keys stay as they were") == said + 1);
        assert_eq!((status(&one), status(&two)), (200, 200), "the keys of before");
    }

    std::fs::write(&file, &text).unwrap();
    let id = one.get(..12).unwrap();
    assert!(forebay(&["key", "list", "--file", path]).contains(id));
    forebay(&["key", "remove", "--file", path, id]);
    process.signal(Signal::HUP);
    until("the first key is gone", || status(&one) == 401);
    assert_eq!(status(&two), 200);
    // The last key goes on purpose.
    forebay(&["key", "remove", "--file", path, two.get(..12).unwrap()]);
    process.signal(Signal::HUP);
    until("the last key is gone", || status(&two) == 401);
    // N7: a router that refused all requests was ready, without a concern.
    let readyz = truth::get(process.admin, "/readyz").text();
    let wanted = "`api_keys` keys.toml holds no key: all requests get 401";
    assert!(readyz.contains(wanted), "{readyz}");
}

fn write_key(path: &Path, secret: &str) {
    let fresh = FreshKey { key: secret.to_owned(), id: secret.to_owned() };
    let stored = StoredKey {
        id: secret.to_owned(),
        digest: fresh.digest().unwrap(),
        tenant: "t".to_owned(),
        models: Vec::new(),
        class_best: None,
        created: String::new(),
    };
    change(path, |text| add(text, &stored)).unwrap();
}

/// Every shard has the same keys, and a request in a long body is judged by the key of its head.
#[test]
fn keys_change_on_all_shards_while_requests_are_under_way() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let file = folder.path().join("forebay.toml");
    write_key(&keys, "first");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0, 1]\napi_keys = \"{}\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\n",
        keys.display(),
        worker.url()
    );
    std::fs::write(&file, text).unwrap();
    let source = ConfigSource { file: Some(file), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let reloader = Reloader::new(source, config.clone());
    let handle = start_reloadable(config, false, reloader).unwrap();
    let begun = with("x-api-key: first\r\n", &post("/v1/completions", ASK));
    let mut slow: Vec<Client> = (0..8).map(|_| Client::connect(handle.listen)).collect();
    slow.iter_mut().for_each(|client| client.send(&begun[..begun.len() - 3]));
    until("all have begun", || metric(&handle, "forebay_connections_accepted_total") > 7.5);
    std::fs::remove_file(&keys).unwrap();
    write_key(&keys, "second");
    let mut admin = Client::connect(handle.admin);
    admin.send(&crate::rig::admin_post("/admin/reload", b""));
    let done: Value = serde_json::from_slice(&admin.reply().body).unwrap();
    assert_eq!(done["applied"], json!(["api_keys"]), "{done}");
    let status = |key: &str| {
        let fields = format!("x-api-key: {key}\r\n");
        ask(handle.listen, &fields, "/v1/completions", ASK).status
    };
    // Connections are spread over both shards: many in a row show both.
    until("both shards have the new key", || (0..16).all(|_| status("second") == 200));
    assert!((0..16).all(|_| status("first") == 401));
    for client in &mut slow {
        client.send(&begun[begun.len() - 3..]);
        assert!([200, 401].contains(&client.reply().status));
    }
}

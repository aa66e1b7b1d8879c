//! Who may call the admin API, and how many.

use crate::rig::truth::get;
use crate::rig::{
    ASK, Client, Reply, RouterProcess, Worker, admin_post, any_port, config, post, router, until,
};
use forebay::config::AdminAddress;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn call(admin: SocketAddr, bytes: &[u8]) -> Reply {
    let mut client = Client::connect(admin);
    client.send(bytes);
    client.reply()
}

/// A call as a browser makes it.
fn browser(line: &str, host: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
        .into()
}

#[test]
fn a_web_page_can_neither_turn_nor_read_anything() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    let open = r#"{"open":"1h"}"#;
    let window = "POST /admin/window";
    let own = handle.admin.to_string();
    for (line, host, fields, body, status) in [
        // A page makes a simple request: the browser asks nobody.
        (window, &*own, "Origin: http://evil.example\r\nContent-Type: text/plain\r\n", open, 403),
        (window, &*own, "Origin: null\r\nContent-Type: application/json\r\n", open, 403),
        ("POST /admin/reload", &*own, "Origin: http://evil.example\r\n", "", 403),
        // A browser that says no origin, and a form.
        (window, &*own, "Content-Type: text/plain\r\n", open, 415),
        // A name of the page was pointed here: it is the page's own origin now.
        (
            window,
            "rebind.example:9090",
            "Origin: http://rebind.example:9090\r\nContent-Type: application/json\r\n",
            open,
            421,
        ),
        ("GET /workers", "rebind.example:9090", "", "", 421),
        ("GET /metrics", "rebind.example:9090", "", "", 421),
        ("GET http://rebind.example/metrics", &*own, "", "", 421),
    ] {
        let reply = call(handle.admin, &browser(line, host, fields, body));
        assert_eq!(reply.status, status, "{line} {host} {fields}: {}", reply.text());
        assert!(!reply.text().contains("\"ranks\"") && !reply.text().contains("forebay_build"));
    }
    let reply = call(handle.admin, &browser("GET /workers", "rebind.example", "", ""));
    assert!(reply.text().contains("`admin_hosts`"), "{}", reply.text());
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", ASK));
    assert_eq!(client.reply().status, 200, "no window is open");
    assert_eq!(call(handle.admin, &admin_post("/admin/window", open.as_bytes())).status, 200);
    let balancer = call(handle.admin, b"GET /healthz HTTP/1.0\r\n\r\n");
    assert_eq!(balancer.status, 200);
}

#[test]
fn a_name_of_the_configuration_may_be_called_and_a_token_is_asked_for_what_changes_something() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.admin_hosts = vec!["router-a.example".into()];
    config.admin_token_file = Some("tests/data/admin_token".into());
    let handle = router(config);
    let read = call(handle.admin, &browser("GET /workers", "router-a.example:9090", "", ""));
    assert_eq!(read.status, 200);
    let close = |fields: &str| {
        let fields = format!("Content-Type: application/json\r\n{fields}");
        let call_it =
            browser("POST /admin/window", "router-a.example", &fields, r#"{"close":true}"#);
        call(handle.admin, &call_it)
    };
    let refused = close("");
    assert_eq!((refused.status, refused.field("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(close("Authorization: Bearer only-for-test\r\n").status, 401);
    assert_eq!(close("Authorization: Bearer only-for-tests\r\n").status, 200);
    let reload = call(handle.admin, &browser("POST /admin/reload", "localhost", "", ""));
    assert_eq!(reload.status, 401, "also without a body");
    let explained = admin_post("/debug/overlap?endpoint=/v1/completions", ASK);
    assert_eq!(call(handle.admin, &explained).status, 200, "it changes nothing");
}

#[test]
fn readers_have_a_token_of_their_own() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.admin_token_file = Some("tests/data/admin_token".into());
    config.admin_read_token_file = Some("tests/data/admin_read_token".into());
    let handle = router(config);
    let status = |line: &str, token: &str| {
        let token = format!("Authorization: Bearer {token}\r\n");
        call(handle.admin, &browser(line, "localhost", &token, "")).status
    };
    for (line, none, read, change) in [
        ("GET /workers", 401, 200, 200),
        ("GET /metrics", 401, 200, 200),
        ("GET /admin/window", 401, 200, 200),
        // It came from no file and no flags.
        ("POST /admin/reload", 401, 403, 409),
        ("GET /healthz", 200, 200, 200),
    ] {
        let got = ["wrong", "only-to-read", "only-for-tests"].map(|token| status(line, token));
        assert_eq!(got, [none, read, change], "{line}");
    }
    let refused = call(handle.admin, &browser("GET /workers", "localhost", "", ""));
    assert_eq!((refused.status, refused.field("www-authenticate")), (401, Some("Bearer")));
    assert!(call(handle.admin, b"GET /readyz HTTP/1.0\r\n\r\n").status != 401, "a probe");
}

/// Calls a socket in the file system.
fn call_socket(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_socket_in_the_file_system_is_called_as_a_port_is() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let mut config = config(&[&worker]);
    config.admin = AdminAddress::Unix(path.clone());
    // A process that was killed has left its socket.
    drop(UnixListener::bind(&path).unwrap());
    // A child that another test has just forked holds it until it runs its program.
    until("nobody listens", || UnixStream::connect(&path).is_err());
    let handle = router(config.clone());
    assert_eq!((handle.admin.port(), &handle.admin_address), (0, &config.admin));
    let get = |page: &str, host: &str| {
        let call = format!("GET {page} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        call_socket(&path, call.as_bytes())
    };
    assert!(get("/healthz", "localhost").starts_with("HTTP/1.1 200 "));
    assert!(get("/metrics", "localhost").contains("forebay_connections_accepted_total"));
    assert!(
        get("/metrics", "evil.example").starts_with("HTTP/1.1 421 "),
        "the checks are the same"
    );
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut second = config;
    second.listen = any_port();
    let refused = forebay::server::start(second, false).unwrap_err().to_string();
    assert!(refused.contains("unix:/") && refused.contains("key `admin`"), "{refused}");
    assert!(get("/healthz", "localhost").starts_with("HTTP/1.1 200 "), "the first one goes on");
    handle.stop();
    handle.join().unwrap();
    assert!(!path.exists(), "the router takes its socket with it");
}

#[test]
fn idle_connections_of_the_admin_port_make_room_for_calls() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    let mut first = Client::connect(handle.admin);
    let others: Vec<_> = (0..400).map(|_| Client::connect(handle.admin)).collect();
    assert_eq!(get(handle.admin, "/healthz").status, 200);
    assert!(first.at_end(), "the one that was silent longest had to go");
    until("most are closed", || {
        others
            .iter()
            .filter(|client| {
                client.stream.set_nonblocking(true).unwrap();
                matches!(client.stream.peek(&mut [0]), Ok(0))
            })
            .count()
            >= 400 - 64
    });
}

/// A router that may have so many files open.
fn limited(worker: &Worker, descriptors: usize) -> RouterProcess {
    RouterProcess::with_limit(
        &format!(
            "cores = [0]\npolicy = \"round_robin\"\n[health]\ninterval = \"100ms\"\nunhealthy_after = 1\n\
             [[worker]]\nurl = \"{}\"\nengine = \"openai\"\nmodels = [\"m\"]\n",
            worker.url()
        ),
        descriptors,
    )
}

#[test]
fn a_lack_of_descriptors_has_its_own_name_and_blames_no_worker() {
    // Each question and each request needs a connection of its own.
    let worker = Worker::start(|_, stream| {
        let reply = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n{\"data\":[{\"id\":\"m\"}] }  ";
        std::io::Write::write_all(stream, reply).unwrap();
        false
    });
    let router = limited(&worker, 100);
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    assert_eq!(router.logged("the limit of open files is below"), 1);
    let mut client = Client::connect(router.listen);
    let mut ask = || {
        client.send(&post("/v1/completions", ASK));
        client.reply()
    };
    assert_eq!(ask().status, 200);
    let idle: Vec<_> = (0..100).map(|_| Client::connect(router.listen)).collect();
    // A health check that ends may leave its socket to a request.
    let mut refused = 0;
    until("the router has no socket left", || {
        let reply = ask();
        if reply.status != 200 {
            let reason = reply.field("x-forebay-reason");
            assert_eq!((reply.status, reason), (503, Some("out-of-sockets")));
            refused += 1;
        }
        refused == 6
    });
    until("its health is not known", || router.logged("its health is not known") > 0);
    drop(idle);
    until("it serves again", || ask().status == 200);
    assert!(crate::rig::truth::metric(router.admin, "forebay_out_of_sockets_total") >= 6.0);
    assert_eq!(router.logged("worker is down"), 0);
    let lines = router.logged("out of file descriptors, ports or memory");
    assert!((1..=3).contains(&lines), "{lines}");
}

#[test]
fn two_routers_share_a_port_only_on_purpose() {
    let worker = Worker::json("{}");
    let first = router(config(&[&worker]));
    let mut second = config(&[&worker]);
    second.listen = first.listen;
    let refused = forebay::server::start(second.clone(), false).unwrap_err().to_string();
    let process = format!("process {}", std::process::id());
    assert!(refused.contains(&process) && refused.contains("listens there"), "{refused}");
    assert!(refused.contains("--listen-shared"), "{refused}");
    second.listen_shared = true;
    assert_eq!(router(second).listen, first.listen);
}

#[test]
fn calls_that_change_something_are_on_record() {
    let worker = Worker::json("{}");
    let text = format!(
        "cores = [0]\n[[worker]]\nname = \"w\"\nurl = \"{}\"\nengine = \"openai\"\n\
         models = [\"m\"]\n",
        worker.url()
    );
    let router = RouterProcess::configured(&text);
    assert_eq!(call(router.admin, &admin_post("/workers/w/drain", b"")).status, 200);
    assert_eq!(call(router.admin, &admin_post("/workers/nobody/drain", b"")).status, 404);
    let reads = admin_post("/debug/overlap?endpoint=/v1/completions", ASK);
    call(router.admin, &reads);
    until("both are in the log", || router.logged("asked to change something") == 2);
    let log = router.log();
    let lines = log.lines().filter(|line| line.contains("asked to change something"));
    for (line, words) in lines.zip([["/workers/w/drain", "200"], ["/workers/nobody/drain", "404"]])
    {
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        assert!(line.contains("127.0.0.1:"), "{line}");
    }
}

/// Issue 39: such a call had no answer until it was cut, and an array added a worker.
#[test]
fn a_body_that_is_too_long_or_no_object_is_refused_at_once() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    let refused = |length: &str, body: &str| {
        let asked = format!(
            "POST /workers HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let reply = call(handle.admin, asked.as_bytes());
        let error: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        (reply.status, error["error"].as_str().unwrap_or_default().to_owned())
    };
    let (status, error) = refused("99999999999", "{}");
    assert!(status == 413 && error.contains("1048576 bytes"), "{status} {error}");
    let array = r#"["http://127.0.0.1:1","a",null,null,null]"#;
    let (status, error) = refused(&array.len().to_string(), array);
    assert!(status == 400 && error.contains("is no JSON object"), "{status} {error}");
    let list = call(handle.admin, b"GET /list_workers HTTP/1.1\r\nhost: localhost\r\n\r\n").text();
    assert_eq!(list.matches("http://").count(), 1, "{list}");
}

/// A secret that has leaked is replaced without a restart.
#[test]
fn a_reload_reads_the_tokens_again() {
    let worker = Worker::json("{}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "the-first-of-two-tokens\n").unwrap();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\npolicy = \"round_robin\"\nadmin_token_file = \"{}\"\n\
         health.enabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        file.display(),
        worker.url()
    ));
    let reload = |token: &str| {
        let token = format!("Authorization: Bearer {token}\r\n");
        call(router.admin, &browser("POST /admin/reload", "localhost", &token, ""))
    };
    let [first, second] = ["the-first-of-two-tokens", "the-second-of-two-tokens"];
    let unchanged = reload(first).text();
    assert!(unchanged.contains(r#""applied":[]"#), "nothing has changed: {unchanged}");
    std::fs::write(&file, second).unwrap();
    assert!(reload(first).text().contains(r#""applied":["admin_token_file"]"#));
    assert_eq!((reload(first).status, reload(second).status), (401, 200));
    std::fs::write(&file, "not a token").unwrap();
    assert_eq!((reload(second).status, reload(second).status), (400, 400), "it counts on");
}

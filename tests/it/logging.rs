//! Standard error that is closed, full or not read costs lines of the log and nothing else.

use crate::rig::truth::{get, metric};
use crate::rig::{Client, RouterProcess, Worker, admin_post, post, until};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write, pipe};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A worker with health checks, and one record for each request.
fn settings(worker: &Worker) -> String {
    format!(
        "cores = [0]\npolicy = \"round_robin\"\n[log]\nrequests = true\n\
         [health]\ninterval = \"100ms\"\nunhealthy_after = 1\n\
         [[worker]]\nurl = \"{}\"\nengine = \"openai\"\nmodels = [\"m\"]\n",
        worker.url()
    )
}

/// M3: a refusal of the router has a cause, whatever its status; a model that was not read is
/// missing, and not empty.
#[test]
fn each_refusal_has_a_cause_and_a_window_by_hand_its_caller() {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/api_keys/two.toml");
    let key = "gold-key";
    let worker = Worker::json("{}");
    let router = RouterProcess::configured(&format!(
        "cores = [0]\napi_keys = \"{keys}\"\n[log]\nrequests = true\njson = true\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let ask = |key: &str, model: &str| {
        let body = format!(r#"{{"model":"{model}","prompt":"p"}}"#);
        let text = String::from_utf8(post("/v1/completions", body.as_bytes())).unwrap();
        let field = format!("\r\nauthorization: Bearer {key}\r\n");
        let mut client = Client::connect(router.listen);
        client.send(text.replacen("\r\n", &field, 1).as_bytes());
        client.reply().status
    };
    assert_eq!(ask("wrong", "m"), 401);
    assert_eq!(ask(key, "unknown"), 404);
    let mut operator = Client::connect(router.admin);
    operator.send(&admin_post("/admin/window", br#"{"open":"30s","model":"m"}"#));
    assert_eq!(operator.reply().status, 200);
    assert_eq!(ask(key, "m"), 429);
    let lines = || -> Vec<serde_json::Value> {
        router.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let records =
        || lines().into_iter().filter(|line| line["message"] == "request").collect::<Vec<_>>();
    until("all are in the log", || records().len() == 3);
    for record in records() {
        assert!(record["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{record}");
        assert_ne!(record["model"], "", "{record}");
    }
    let by_hand = |line: &&serde_json::Value| {
        line["message"].as_str().is_some_and(|text| text.contains("opened by hand"))
    };
    let all = lines();
    let opened = all.iter().find(by_hand).expect("the order is in the log");
    assert_eq!((&opened["level"], &opened["model"]), (&"WARN".into(), &"m".into()), "{opened}");
    assert_eq!(opened["open_for"], "30s", "{opened}");
    assert!(opened["by"].as_str().is_some_and(|by| by.starts_with("127.0.0.1")), "{opened}");
    let mut operator = Client::connect(router.admin);
    operator.send(&admin_post("/admin/window", br#"{"close":true}"#));
    assert_eq!(operator.reply().status, 200);
    let of_windows = |line: &serde_json::Value| {
        line["message"].as_str().is_some_and(|text| text.starts_with("rejection window"))
    };
    let windows = || lines().into_iter().filter(of_windows).collect::<Vec<_>>();
    let is_close = |line: &serde_json::Value| {
        line["message"].as_str().is_some_and(|text| text.ends_with("closed by hand"))
    };
    until("the close is in the log", || windows().iter().any(is_close));
    assert_eq!(windows().len(), 2, "a line for each order: {:#?}", windows());
}

/// A request whose head cannot be read was answered without a record.
#[test]
fn a_request_without_a_readable_head_has_a_record() {
    let worker = Worker::json("{}");
    let ask = |router: &RouterProcess, text: &str| {
        let mut client = Client::connect(router.listen);
        client.send(text.as_bytes());
        client.reply().status
    };
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(70_000));
    let heads = [("GET / HTTP/1.1\r\n\r\n", 400), (&long, 414), ("GET / HTTP/9.9\r\n\r\n", 505)];
    let wanted = heads.iter().map(|(_, status)| *status).collect::<Vec<u16>>();

    let json = settings(&worker).replace("requests = true", "requests = true\njson = true");
    let router = RouterProcess::configured(&json);
    let records = || -> Vec<serde_json::Value> {
        let log = router.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &serde_json::Value| line["message"] == "request").collect()
    };
    assert_eq!(heads.map(|(text, _)| ask(&router, text)).as_slice(), wanted);
    until("each has a record", || records().len() == heads.len());
    for (record, status) in records().iter().zip(&wanted) {
        assert_eq!(record["status"], *status, "{record}");
        for name in ["outcome", "cause", "client", "peer", "request_id"] {
            assert!(record[name].as_str().is_some_and(|text| !text.is_empty()), "{record}");
        }
    }

    // Behind a proxy, the client of the request before is not the client of this request.
    let trusted = json.replace("[log]", "[client]\ntrusted = [\"127.0.0.0/8\"]\n[log]");
    let router = RouterProcess::configured(&trusted);
    let mut proxy = Client::connect(router.listen);
    proxy.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 8.8.4.4\r\n\r\n");
    assert_eq!(proxy.reply().status, 200);
    proxy.send(b"GET / HTTP/9.9\r\n\r\n");
    assert_eq!(proxy.reply().status, 505);
    until("both have a record", || {
        router.logged("\"client\":\"8.8.4.4\"") == 1
            && router.logged("\"client\":\"127.0.0.1\"") == 1
    });

    let format = r#"format = "record {client} {status} {outcome} {path} {request_id}""#;
    let plain = settings(&worker).replace("requests = true", &format!("requests = true\n{format}"));
    let router = RouterProcess::configured(&plain);
    assert_eq!(ask(&router, heads[0].0), 400);
    until("it has a record", || router.logged("record 127.0.0.1 400 bad-request - ") == 1);
}

/// M1: a dead fleet has ten lines by name and a line with the exact count of the rest, also if the
/// process ends before the second is over.
#[test]
fn a_dead_fleet_is_ten_lines_and_a_count() {
    const DEAD: usize = 60;
    let worker = |n: usize| {
        // Nothing listens on the discard port.
        format!("[[worker]]\nname = \"gpu{n}\"\nurl = \"http://127.0.1.{}:9\"\n", n + 1)
    };
    let workers: String = (0..DEAD).map(worker).collect();
    let settings = format!("cores = [0]\n[log]\njson = true\n{workers}");
    let router = RouterProcess::configured(&settings);
    let lines = || -> Vec<serde_json::Value> {
        let lines = router.log();
        let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        let is_its = |line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|text| text.contains("worker not reached"))
        };
        lines.filter(is_its).collect()
    };
    let sum = |name: &str| -> u64 { lines().iter().filter_map(|line| line[name].as_u64()).sum() };
    let named = || lines().iter().filter(|line| line["worker"].is_string()).count() as u64;
    until("each worker has a line or counts", || named() + sum("lines") == DEAD as u64);
    // A slow machine takes several seconds.
    assert!(named() <= DEAD as u64 / 2, "{:#?}", lines());
    assert_eq!(sum("workers"), sum("lines"));
    assert_eq!(sum("of_cause"), sum("lines"));
    let all = lines();
    let summed = all.iter().find(|line| line["lines"].is_u64()).expect("a sum");
    assert_eq!(summed["level"], "WARN", "{summed}");
    assert!(summed["cause"].as_str().unwrap().contains("refused"), "{summed}");
}

/// A worker whose health checks fail from the moment that `sick` is sent on.
fn worker() -> (Worker, std::sync::mpsc::Sender<()>) {
    let (sick, is_sick) = std::sync::mpsc::channel();
    let is_sick = std::sync::Mutex::new((is_sick, false));
    let worker = Worker::start(move |seen, stream| {
        let mut state = is_sick.lock().unwrap();
        state.1 |= state.0.try_recv().is_ok();
        if state.1 && seen.head.starts_with("GET") {
            return false;
        }
        let body = r#"{"data":[{"id":"m"}]}"#;
        let reply = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(reply.as_bytes()).is_ok()
    });
    (worker, sick)
}

/// Serves, logs `requests` records into nothing, sees its worker die, and ends when it is told to.
fn lives_without_stderr(
    stderr: impl Into<Stdio>,
    requests: usize,
    broken: impl FnOnce(&RouterProcess),
) {
    let (worker, sick) = worker();
    let mut router = RouterProcess::with_stderr(&settings(&worker), stderr);
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    broken(&router);
    let mut client = Client::connect(router.listen);
    let model = "m".repeat(1_000);
    let ask = format!(r#"{{"model":"{model}","prompt":"hi"}}"#);
    for _ in 0..requests {
        client.send(&post("/v1/completions", ask.as_bytes()));
        assert_eq!(client.reply().status, 404);
    }
    client.send(&post("/v1/completions", crate::rig::ASK));
    assert_eq!(client.reply().status, 200);
    until("lines are dropped", || metric(router.admin, "forebay_log_dropped_total") > 0.5);
    assert_eq!(get(router.admin, "/readyz").status, 200);
    sick.send(()).unwrap();
    until("its worker is down", || get(router.admin, "/workers").text().contains("\"down\""));
    router.signal(Signal::TERM);
    assert_eq!(router.ended().code(), Some(0));
}

#[test]
fn a_router_outlives_who_reads_its_log() {
    let (reader, writer) = pipe().unwrap();
    lives_without_stderr(writer, 10, |_| drop(reader));
}

#[test]
fn a_router_outlives_the_disk_of_its_log() {
    lives_without_stderr(File::options().write(true).open("/dev/full").unwrap(), 10, |_| {});
}

#[test]
fn a_reader_of_the_log_that_stalls_stalls_nothing() {
    let (reader, writer) = pipe().unwrap();
    lives_without_stderr(writer, 5_000, |_| {});
    drop(reader);
}

/// A slow request is in the log with where its time went, and a quick one is not.
#[test]
fn slow_requests_are_in_the_log_with_their_stages() {
    let worker = Worker::start(|seen, stream| {
        if String::from_utf8_lossy(&seen.body).contains("long") {
            std::thread::sleep(Duration::from_millis(400));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\nrank_concurrency_max = 1\n[log]\nslow = \"200ms\"\njson = true\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let ask = |prompt: &str| {
        let mut client = Client::connect(router.listen);
        let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
        client.send(&post("/v1/completions", body.as_bytes()));
        client
    };
    assert_eq!(ask("quick").reply().status, 200);
    // The second waits for the place of the first.
    let mut both = [ask("long"), ask("long")];
    assert!(both.iter_mut().all(|client| client.reply().status == 200));
    until("both are in the log", || router.logged("slow request") == 2);
    let log = router.log();
    let slow = slow_requests(&log);
    let of = |name: &str| slow.iter().map(|line| line[name].as_u64().unwrap()).sum::<u64>();
    assert!(of("engine_ms") >= 790, "{log}");
    assert!((350..5_000).contains(&of("queue_ms")), "{log}");
    assert!(slow.iter().all(|line| line["because"] == "only_candidate"), "{log}");
    assert!(slow.iter().all(|line| line["level"] == "WARN"), "{log}");
}

/// Records have the choice, the times and the tokens, and a word for how a request ended.
#[test]
fn a_record_has_choice_times_and_tokens_and_a_cut_has_a_cause() {
    let worker = Worker::start(|seen, stream| {
        let cached = r#""prompt_tokens_details":{"cached_tokens":4}"#;
        let usage = format!(r#""usage":{{"prompt_tokens":7,"completion_tokens":3,{cached}}}"#);
        let whole = format!("{{\"id\":\"c\",{usage}}}");
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        if body.contains("lost") {
            return false;
        }
        if body.contains("page") {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3";
            return write!(stream, "{head}\r\n\r\n<p>").is_ok();
        }
        let is_cut = body.contains("cut");
        let sent = if is_cut { &whole[..9] } else { &whole };
        let length = whole.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{sent}");
        stream.write_all(head.as_bytes()).is_ok() && !is_cut
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nrequests = true\njson = true\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    for prompt in ["whole", "cut", "lost", "page"] {
        let mut client = Client::connect(router.listen);
        let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
        client.send(&post("/v1/completions?key=secret", body.as_bytes()));
        match prompt {
            "whole" | "page" => assert_eq!(client.reply().status, 200),
            "lost" => assert_eq!(client.reply().status, 502),
            _ => drop(client.bytes(1 << 16)),
        }
    }
    let of = |log: &str| -> Vec<serde_json::Value> {
        let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &serde_json::Value| {
                line["message"] == "request" && line["path"] == "/v1/completions"
            })
            .collect()
    };
    until("all are in the log", || of(&router.log()).len() == 4);
    let log = router.log();
    let [whole, cut, lost, page] = &of(&log)[..] else { panic!("{log}") };
    assert_eq!((&whole["outcome"], &whole["method"]), (&"answered".into(), &"POST".into()));
    assert_eq!(whole["because"], "only_candidate");
    let tokens = ["prompt_tokens", "cached_tokens", "output_tokens"].map(|name| &whole[name]);
    assert_eq!(tokens, [7, 4, 3], "{log}");
    let times = ["read_ms", "queue_ms", "ttft_ms", "total_ms"];
    assert!(times.iter().all(|name| whole[name].is_u64()), "{log}");
    assert_eq!((&cut["outcome"], cut["output_tokens"].is_null()), (&"cut".into(), true), "{log}");
    assert!(cut["cause"].as_str().unwrap().contains("closed"), "{log}");
    assert_eq!((&lost["outcome"], &lost["status"]), (&"upstream-failed".into(), &502.into()));
    assert_eq!(whole["level"], "INFO", "{log}");
    assert_eq!(lost["level"], "WARN", "{log}");
    let name = worker.address.to_string();
    assert!(lost["cause"].as_str().unwrap().contains(&name), "{log}");
    assert!(page["cause"].as_str().unwrap().contains("content type"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

/// A refusal that the client never sees is no answer, and a body that never comes is reading.
#[test]
fn slow_requests_behind_a_busy_engine_and_without_a_body_are_in_the_log() {
    let asked = Arc::new(AtomicUsize::new(0));
    let start = || {
        let asked = Arc::clone(&asked);
        Worker::start(move |_, stream| {
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                return stream.write_all(b"HTTP/1.1 503 \r\ncontent-length: 0\r\n\r\n").is_ok();
            }
            std::thread::sleep(Duration::from_millis(400));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_ok()
        })
    };
    let workers = [start(), start()];
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nslow = \"200ms\"\njson = true\n[timeouts]\nbody = \"300ms\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n\
         [[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        workers[0].url(),
        workers[1].url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let mut client = Client::connect(router.listen);
    client.send(&post("/v1/completions", br#"{"model":"m","prompt":"p"}"#));
    assert_eq!(client.reply().status, 200);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let mut client = Client::connect(router.listen);
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{");
    assert_eq!(client.reply().status, 408);
    until("both are in the log", || router.logged("slow request") == 2);
    let log = router.log();
    let slow = slow_requests(&log);
    assert!(slow[0]["engine_ms"].as_u64().unwrap() >= 390, "{log}");
    assert_eq!((&slow[1]["engine_ms"], &slow[1]["read_ms"]), (&0.into(), &slow[1]["total_ms"]));
}

/// A record must not claim more than the client got. A first answer shows how much the kernel takes
/// for a client that does not read; the lengths of the next answers are around that.
#[test]
fn a_record_has_answered_only_for_a_client_that_gets_the_whole_answer() {
    const STEP_BYTES: usize = 16 << 10;
    let worker = Worker::start(|seen, stream| {
        let bytes = seen.head.split("bytes=").nth(1).and_then(|rest| rest.split(' ').next());
        let bytes = bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&vec![b'a'; bytes]).is_ok()
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nrequests = true\njson = true\n[timeouts]\nwrite = \"{}ms\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        WRITE_MAX.as_millis(),
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let first = unread_answers(&router, &[64 << 20]);
    assert!(!first[0].is_answered, "no kernel takes 64 MB");
    let most = first[0].body_bytes;
    let length = |step: usize| (most + step * STEP_BYTES).saturating_sub(8 * STEP_BYTES);
    let lengths: Vec<usize> = (0..24).map(length).collect();
    let answers = unread_answers(&router, &lengths);
    for answer in &answers {
        let is_whole = answer.body_bytes == answer.length_bytes;
        assert_eq!(answer.is_answered, is_whole, "{answer:?} of {answers:?}");
    }
}

/// `timeouts.write` of the router whose clients do not read.
const WRITE_MAX: Duration = Duration::from_millis(500);

/// A page of the router is one buffer: it is longer than the sockets hold.
#[test]
fn a_page_that_a_client_does_not_take_is_no_answer_in_the_log() {
    let about = "a".repeat(6 << 20);
    let list = format!(r#"{{"data":[{{"id":"m","about":"{about}"}}]}}"#);
    let worker = Worker::start(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", list.len());
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(list.as_bytes()).is_ok()
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nrequests = true\njson = true\n[timeouts]\nwrite = \"{}ms\"\n\
         [[worker]]\nurl = \"{}\"\nengine = \"openai\"\n",
        WRITE_MAX.as_millis(),
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let mut client = slow_client(router.listen);
    client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    until("it has its record", || router.logged("\"endpoint\":\"models\"") == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains("\"endpoint\":\"models\"")).unwrap();
    let record: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&record["outcome"], &record["status"]), (&"cut".into(), &200.into()), "{record}");
    assert_eq!(record["cause"], "the client stopped reading");
    let mut received = Vec::new();
    let _ = client.read_to_end(&mut received);
    assert!(received.len() < about.len(), "{}", received.len());
}

/// An answer to a client that reads nothing until its record is written.
#[derive(Debug)]
struct UnreadAnswer {
    length_bytes: usize,
    /// Bytes that the client can still read then.
    body_bytes: usize,
    /// The record has the outcome `answered`.
    is_answered: bool,
}

fn unread_answers(router: &RouterProcess, lengths: &[usize]) -> Vec<UnreadAnswer> {
    let before = router.logged("\"endpoint\":\"completions\"");
    let asked = lengths.iter().map(|&bytes| {
        let mut client = slow_client(router.listen);
        let ask = post(&format!("/v1/completions?bytes={bytes}"), crate::rig::ASK);
        client.write_all(&ask).unwrap();
        (bytes, client)
    });
    let asked: Vec<_> = asked.collect();
    let written = || router.logged("\"endpoint\":\"completions\"") - before;
    until("each has its record", || written() == asked.len());
    // A client that reads before its time is over would get what the record does not have yet.
    std::thread::sleep(WRITE_MAX + Duration::from_millis(200));
    let log = router.log();
    let records = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    let records: Vec<serde_json::Value> = records.collect();
    let read = |(length_bytes, mut client): (usize, std::net::TcpStream)| {
        let mut received = Vec::new();
        let mut piece = vec![0; 1 << 20];
        let mut head = 0;
        // A connection that was reset has lost the rest as well.
        while let Ok(count @ 1..) = client.read(&mut piece) {
            received.extend_from_slice(&piece[..count]);
            let end = received.windows(4).position(|end| end == b"\r\n\r\n");
            head = end.map_or(0, |at| at + 4);
            if received.len() - head >= length_bytes {
                break;
            }
        }
        let peer = client.local_addr().unwrap().to_string();
        let record = records.iter().find(|record| record["peer"] == *peer).unwrap();
        let is_answered = record["outcome"] == "answered";
        UnreadAnswer { length_bytes, body_bytes: received.len() - head, is_answered }
    };
    asked.into_iter().map(read).collect()
}

/// An engine that dies cuts all of its streams at once: a line with their number, and not a line
/// for each.
#[test]
fn streams_that_a_worker_breaks_off_have_a_line_together() {
    const STREAMS: usize = 8;
    let begun = Arc::new(AtomicUsize::new(0));
    let seen_by_worker = Arc::clone(&begun);
    let worker = Worker::start(move |_, stream| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
            transfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n";
        stream.write_all(head).unwrap();
        seen_by_worker.fetch_add(1, Ordering::SeqCst);
        until("all streams have begun", || seen_by_worker.load(Ordering::SeqCst) == STREAMS);
        false
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let ask = br#"{"model":"m","prompt":"p","stream":true}"#;
    let mut clients: Vec<_> = (0..STREAMS).map(|_| Client::connect(router.listen)).collect();
    clients.iter_mut().for_each(|client| client.send(&post("/v1/completions", ask)));
    assert!(clients.iter_mut().all(|client| !client.reply().complete));
    until("the log has it", || router.logged("broke off answers in the middle") == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains("broke off")).unwrap();
    assert!(line.contains("WARN") && line.contains("retry.mid_stream"), "{line}");
    assert_eq!(log.lines().filter(|line| line.contains("break")).count(), 0, "{log}");
}

/// A client with little room for bytes that it has not read.
fn slow_client(address: std::net::SocketAddr) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.into()
}

fn slow_requests(log: &str) -> Vec<serde_json::Value> {
    let lines = log.lines().filter(|line| line.contains("slow request"));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Words of prompts, answers and engines' errors, at the level that logs most.
#[test]
fn no_text_of_a_prompt_or_an_answer_is_in_the_log() {
    const WORD: &str = "zebrafish";
    let worker = Worker::start(|seen, stream| {
        let body = format!(r#"{{"choices":[{{"text":"{WORD}"}}],"error":{{"message":"{WORD}"}}}}"#);
        let fails = String::from_utf8_lossy(&seen.body).contains("fail");
        let status = if fails { "500 Internal Server Error" } else { "200 OK" };
        let reply = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(reply.as_bytes()).is_ok()
    });
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[log]\nrequests = true\nslow = \"1ms\"\nlevel = \"trace\"\n\
         [health]\nenabled = false\n[[worker]]\nurl = \"{}\"\nmodels = [\"m\"]\n",
        worker.url()
    ));
    until("it is ready", || get(router.admin, "/readyz").status == 200);
    let bodies = [
        format!(r#"{{"model":"m","prompt":"{WORD}","user":"{WORD}"}}"#),
        format!(r#"{{"model":"m","prompt":"fail {WORD}"}}"#),
        format!(r#"{{"model":"m","prompt":"{WORD}"#),
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{WORD}"}}]}}"#),
    ];
    let paths = ["/v1/completions", "/v1/chat/completions?q=zebrafish"];
    let mut asked = 0;
    for path in paths {
        for body in &bodies {
            let mut client = Client::connect(router.listen);
            client.send(&post(path, body.as_bytes()));
            let _ = client.reply();
            asked += 1;
        }
    }
    let explained = get(router.admin, "/debug/overlap?model=m&prompt=zebrafish&text=true");
    assert!(explained.text().contains(WORD), "the caller gets the text of the own prompt");
    let written = || router.logged("INFO request") + router.logged("WARN request");
    until("the records are written", || written() >= asked);
    let log = router.log();
    assert!(!log.contains(WORD), "{log}");
    assert!(!get(router.admin, "/metrics").text().contains(WORD));
    assert!(!get(router.admin, "/workers").text().contains(WORD));
}

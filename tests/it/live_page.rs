//! The live page: its stream says what `/metrics` says, and who may read it.

use crate::rig::truth::get;
use crate::rig::{ASK, Client, Worker, admin_post, config, metric, post, router, until};
use forebay::config::Config;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The first snapshot of the stream.
fn first_snapshot(admin: SocketAddr) -> Value {
    let mut stream = BufReader::new(watch(admin, ""));
    let mut seen = String::new();
    loop {
        let from = seen.len();
        assert!(stream.read_line(&mut seen).expect("the stream goes on") > 0, "ended: {seen}");
        if let Some(data) = seen[from..].strip_prefix("data: ") {
            assert!(seen.contains("text/event-stream"), "{seen}");
            return serde_json::from_str(data).expect("JSON");
        }
    }
}

/// Asks for the stream with these fields.
fn watch(admin: SocketAddr, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let call = format!("GET /live HTTP/1.1\r\nhost: {admin}\r\n{fields}\r\n");
    stream.write_all(call.as_bytes()).unwrap();
    stream
}

/// The status of an answer to a call for the stream.
fn status(admin: SocketAddr, fields: &str) -> String {
    let mut head = [0; 12];
    watch(admin, fields).read_exact(&mut head).expect("an answer");
    String::from_utf8_lossy(&head[9..]).into_owned()
}

/// Value of the only line that begins so.
fn line(metrics: &str, name: &str) -> Option<f64> {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map(|value| value.parse().expect("a number"))
}

#[test]
fn what_the_stream_says_is_what_the_metrics_say() {
    let one = Worker::json("{}");
    let other = Worker::json("{}");
    let handle = router(config(&[&one, &other]));
    for body in [ASK, ASK, b"{nope"] {
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", body));
        client.reply();
    }
    let is_idle =
        || first_snapshot(handle.admin)["ranks"]["in_flight"] == serde_json::json!([0, 0]);
    until("the router is idle", is_idle);
    let shown = first_snapshot(handle.admin);
    let metrics = get(handle.admin, "/metrics").text();
    let said = |name: &str| line(&metrics, &format!("forebay_{name}"));
    let mut compared = 0;
    // Calls of the test itself are none of the data plane's.
    for (name, value) in shown["totals"].as_object().expect("totals") {
        if name.starts_with("io_") {
            continue;
        }
        let said = match name.as_str() {
            "overlap_bytes_total" => Some(metric(&handle, "forebay_overlap_bytes_total{")),
            name => said(name),
        };
        assert_eq!(value.as_f64(), said, "{name}");
        compared += 1;
    }
    let workers = &shown["whole"]["workers"];
    let ranks = &shown["ranks"];
    for (name, column) in ranks.as_object().expect("columns") {
        for (place, value) in column.as_array().expect("a place for each rank").iter().enumerate() {
            let worker = workers[place]["name"].as_str().expect("a name");
            let sample = format!("{name}{{worker=\"{worker}\",dp_rank=\"0\"}}");
            if name != "feed" && name != "report_age_ms" && !name.contains("quiet") {
                assert_eq!(value.as_f64(), said(&sample), "{sample}");
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "{compared} figures");
    let id = shown["router_id"].as_str().expect("an id");
    assert_eq!(Some(id), first_snapshot(handle.admin)["router_id"].as_str());
    assert!(id.starts_with("forebay-"), "{id}");
    let answered = |code: &str| shown["requests_total"][code].as_f64();
    assert_eq!((answered("200"), answered("400")), (Some(2.0), Some(1.0)));
    let refused = "rejected_total{reason=\"bad-json\",endpoint=\"completions\"";
    assert!(metrics.contains(refused), "{metrics}");
    assert_eq!(shown["rejected_total"]["bad-json"], 1);
    // No list, and not an empty list: a reload may bring tenants, and their counts since the start.
    assert!(shown.get("tenants").is_none(), "{shown}");
    let total = &shown["stage_seconds"]["stages"]["total"]["count"];
    assert_eq!(total.as_f64(), said("stage_seconds_count{stage=\"total\"}"));
    let depth = said("queue_depth{model=\"test\"}").or_else(|| said("queue_depth{model=\"m\"}"));
    assert_eq!(shown["pools"][0]["queue_depth"].as_f64(), depth.or(Some(0.0)));
}

/// A viewer that comes late sees the minute before, once.
#[test]
fn the_first_snapshot_has_the_figures_of_the_last_seconds() {
    let worker = Worker::json("{}");
    let config =
        Config { api_keys: Some("tests/data/api_keys/two.toml".into()), ..config(&[&worker]) };
    let handle = router(config);
    let request = String::from_utf8(post("/v1/completions", ASK)).unwrap();
    let request = request.replacen("host:", "authorization: Bearer gold-key\r\nhost:", 1);
    let mut client = Client::connect(handle.listen);
    client.send(request.as_bytes());
    assert_eq!(client.reply().status, 200);
    let history = |shown: &Value| shown["history"].as_array().cloned().unwrap_or_default();
    until("some seconds are remembered", || history(&first_snapshot(handle.admin)).len() >= 3);
    let shown = first_snapshot(handle.admin);
    let past = history(&shown);
    let times: Vec<u64> = past.iter().filter_map(|past| past["uptime_ms"].as_u64()).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 900), "{times:?}");
    assert!(times.last() <= shown["uptime_ms"].as_u64().as_ref(), "{times:?}");
    let last = past.last().expect("an entry");
    assert_eq!(last["requests_total"]["200"], 1);
    assert_eq!(last["pools"][0]["queue_depth"], 0);
    assert_eq!(last["ranks"]["in_flight"], serde_json::json!([0]));
    for name in ["prompt_bytes_total", "overlap_bytes_total", "guessed_bytes_total"] {
        assert!(last["totals"][name].is_u64(), "{name}: {last}");
    }
    assert_eq!(shown["tenants"]["gold"]["answered"], 1, "{}", shown["tenants"]);
    let mut stream = BufReader::new(watch(handle.admin, ""));
    let mut lines = Vec::new();
    while lines.len() < 2 {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).expect("the stream goes on") > 0);
        lines.extend(line.strip_prefix("data: ").map(|data| data.contains("\"history\":")));
    }
    assert_eq!(lines, [true, false]);
}

#[test]
fn events_tell_what_operators_did() {
    let worker = Worker::json("{}");
    let handle = router(config(&[&worker]));
    let name = first_snapshot(handle.admin)["whole"]["workers"][0]["name"].clone();
    let name = name.as_str().expect("a name");
    for (path, body) in [
        (&*format!("/workers/{name}/drain"), &b""[..]),
        (&*format!("/workers/{name}/undrain"), b""),
        ("/admin/window", br#"{"open":"1h"}"#),
    ] {
        let mut client = Client::connect(handle.admin);
        client.send(&admin_post(path, body));
        assert_eq!(client.reply().status, 200, "{path}");
    }
    until("all is told", || {
        let shown = first_snapshot(handle.admin);
        let kinds: Vec<&str> = shown["events"]
            .as_array()
            .expect("events")
            .iter()
            .filter_map(|event| event["kind"].as_str())
            .collect();
        shown["pools"][0]["open"] == true && kinds.ends_with(&["drain", "undrain", "opened"])
    });
}

#[test]
fn viewers_are_few_and_of_this_address() {
    let worker = Worker::json("{}");
    let mut config = config(&[&worker]);
    config.admin_token_file = Some("tests/data/admin_token".into());
    config.admin_read_token_file = Some("tests/data/admin_read_token".into());
    let handle = router(config);
    for page in ["/", "/page/app.js", "/page/uplot.LICENSE"] {
        let reply = get(handle.admin, page);
        assert_eq!(reply.status, 200, "{page} shows nothing, and needs no token");
        assert!(reply.field("content-security-policy").is_some_and(|it| it.contains("'none'")));
    }
    assert_eq!(get(handle.admin, "/page/nothing").status, 404);
    let token = "authorization: Bearer only-to-read\r\n";
    let foreign = format!("{token}sec-fetch-site: cross-site\r\n");
    let own = format!("{token}sec-fetch-site: same-origin\r\n");
    assert_eq!(status(handle.admin, ""), "401");
    assert_eq!(status(handle.admin, &foreign), "403");
    let open: Vec<TcpStream> = (0..16).map(|_| watch(handle.admin, &own)).collect();
    until("no place is left", || status(handle.admin, &own) == "503");
    drop(open);
    until("places are free again", || status(handle.admin, &own) == "200");
}

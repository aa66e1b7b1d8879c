//! Routers in front of prefill and decode workers, and what their requests should look like.

use super::stub::{Step, Stub, reply_bytes};
use super::{ASK, Client, Reply, metric, post, router, until};
use forebay::config::Config;
use forebay::server::ServerHandle;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// What every stub answers while the fleet is being found. It leaves no connection behind.
const WARM: &[u8] = br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#;

/// A worker and further lines of its table.
pub(crate) type Listed<'a> = (&'a Stub, &'a str);

/// One shard, no second look at the workers while a test runs, no breaker. `disaggregation`: lines
/// of that table.
pub(crate) fn pair_config(workers: &[Listed<'_>], disaggregation: &str) -> Config {
    let always = if disaggregation.contains("uncached") { "" } else { "uncached_tokens_min = 0\n" };
    let mut text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\npolicy = \"round_robin\"\n\
         rejection_window = \"0s\"\n[load]\nsource = \"off\"\n[health]\ninterval = \"60s\"\n\
         [breaker]\nfailures = 1000\n[disaggregation]\n{always}{disaggregation}\n"
    );
    for (worker, lines) in workers {
        write!(text, "[[worker]]\nurl = \"{}\"\n{lines}\n", worker.url()).unwrap();
    }
    Config::from_toml(&text).unwrap_or_else(|findings| panic!("{findings:#?}\n{text}"))
}

/// Starts it and waits until every worker of the list has had a request. What the workers do with
/// requests and what they had is as new then.
pub(crate) fn ready(config: Config, workers: &[Listed<'_>]) -> ServerHandle {
    let handle = router(config);
    for (worker, _) in workers {
        worker
            .always(vec![Step::Send(reply_bytes(200, "connection: close\r\n", WARM)), Step::Close]);
    }
    until("every worker takes part", || {
        let mut client = Client::connect(handle.listen);
        client.send(&post("/v1/completions", ASK));
        let status = client.reply().status;
        let all = workers.iter().all(|(worker, _)| !worker.arrivals().is_empty());
        if status != 200 {
            std::thread::sleep(Duration::from_millis(10));
        }
        all && status == 200
    });
    idle(&handle);
    for (worker, _) in workers {
        worker.always(super::stub::answer(b"{}"));
        worker.forget();
    }
    handle
}

/// The same for one prefill and one decode worker that are known by their pages.
pub(crate) fn ready_pair(
    prefill: &Stub,
    decode: &Stub,
    change: impl FnOnce(&mut Config),
) -> ServerHandle {
    let workers = [(prefill, ""), (decode, "")];
    let mut config = pair_config(&workers, "");
    change(&mut config);
    ready(config, &workers)
}

/// Waits until nothing is in flight on any rank; how long that took.
pub(crate) fn idle(handle: &ServerHandle) -> Duration {
    let start = Instant::now();
    until("all leases are given back", || metric(handle, "forebay_in_flight") == 0.0);
    start.elapsed()
}

/// Sends a request on a connection of its own.
pub(crate) fn ask(handle: &ServerHandle, path: &str, body: &str) -> Client {
    ask_with(handle, path, "", body)
}

/// `fields`: further lines of the head.
pub(crate) fn ask_with(handle: &ServerHandle, path: &str, fields: &str, body: &str) -> Client {
    let request = String::from_utf8(post(path, body.as_bytes())).unwrap();
    let request = request.replacen("host: router\r\n", &format!("host: router\r\n{fields}"), 1);
    let mut client = Client::connect(handle.listen);
    client.send(request.as_bytes());
    client
}

/// Prefill legs that went that way: `mesh` to another shard, `local` to their own.
pub(crate) fn legs(handle: &ServerHandle, way: &str) -> f64 {
    metric(handle, &format!("forebay_prefill_legs_{way}_total"))
}

/// The room in a body.
pub(crate) fn room(body: &str) -> u64 {
    number(body, "bootstrap_room").expect("a room")
}

/// A whole number of a body; the last one of that name.
pub(crate) fn number(body: &str, name: &str) -> Option<u64> {
    let (_, rest) = body.rsplit_once(&format!("\"{name}\":"))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A text of a body; the last one of that name.
pub(crate) fn text<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.rsplit_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// A body with further members before its closing brace.
pub(crate) fn spliced(body: &str, members: &str) -> String {
    let brace = body.rfind('}').expect("an object");
    format!("{},{members}{}", &body[..brace], &body[brace..])
}

/// Why the router itself refused.
pub(crate) fn reason(reply: &Reply) -> &str {
    reply.field("x-forebay-reason").unwrap_or("")
}

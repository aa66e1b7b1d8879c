//! States that the log reports: a WARN or an ERROR about a state that lasts has a line at its end.

use super::texts_below;

/// The line that begins a state, and the line that ends the state.
const STATES: [(&str, &str); 56] = [
    ("a shard makes no progress", "the shard makes progress again"),
    ("a shard waits for its core", "the shard makes progress again"),
    ("every request fails on the rank", "requests fail on the rank no more"),
    ("worker is down", "worker is up"),
    ("worker not usable", "worker is up"),
    ("not ready: requests are refused until", "worker is up"),
    ("worker not reached", "worker is up"),
    ("{what}: it takes no traffic; trying on", "worker is up"),
    ("its health is not known", "its health is known again"),
    ("worker fails its health checks", "worker passes its health checks again"),
    ("worker lists no models", "worker lists its models"),
    ("prefill worker gets no requests", "prefill worker is registered"),
    ("asked as before, not at its new address", "worker is at another address now"),
    ("no load reports until it is reached", "following load reports"),
    ("it tells nothing of its load", "it reports its load again"),
    ("no KV events: prompts are not matched", "following KV events"),
    ("the tokenizer of this model does not fit", "fits what the worker caches again"),
    ("prompts of this model are not matched", "\"prompts of this model\""),
    ("nothing learnt of workers", "read again: workers are those of the source"),
    ("nothing learnt of workers", "the fault ends: no source of workers any more"),
    ("workers not added", "the fault ends: no source of workers any more"),
    ("no worker serves the model behind a name", "no name of `[[model]]` lacks this model"),
    ("no worker serves the model of an `[[adapter]]`", "no `[[adapter]]` lacks this model"),
    ("suspect KV events: predictions for this rank", "KV events are suspect no more"),
    ("workers not added", "all workers of the source are added"),
    ("{fault}; tried again until it is", "`workers_state` {}: written again"),
    ("the models of the workers are not kept", "the models of the workers are kept again"),
    ("cannot be written: {error}; the one before stays", "snapshot {path} is written again"),
    ("spans are lost", "the collector takes spans again"),
    ("`jwt.jwks`: {what}; the keys stay", "`jwt.jwks` can be read again"),
    ("rejection window opened: requests get 429", "rejection window closed: no window"),
    ("rejection windows go on", "rejection window closed: no window"),
    ("rejection window opened by hand", "rejection windows closed by hand"),
    ("rejection window opened by hand", "rejection window by hand ended"),
    ("the worker broke off answers", "the worker breaks off no more answers"),
    ("the worker goes on breaking off", "the worker breaks off no more answers"),
    ("the rank fails requests that others serve", "the rank is paused no more"),
    ("the rank {words}", "the rank is ejected no more"),
    ("engines find more of these prompts", "KV events predict these prompts again"),
    ("engines find less of these prompts", "predictions count in full again"),
    ("lost the connection to NATS", "connected to NATS"),
    ("no connection to NATS yet", "connected to NATS"),
    ("no messages of a peer", "connected to a peer"),
    ("a peer has left", "connected to a peer"),
    ("a replica is silent", "replicas came or left"),
    ("without loss; trying on", "another process can take over from this one now"),
    ("the admin API cannot accept", "the admin API accepts connections again"),
    ("certificates not read again", "certificates read again"),
    ("there is no key in it", "API keys read"),
    ("`api_keys` {}: {error}", "API keys read"),
    ("not reloaded: the configuration stays", "configuration reloaded"),
    ("the tokens of before stay", "configuration reloaded"),
    ("tokens are checked as before", "configuration reloaded"),
    ("`{IMAGE_KEY}` {error}", "configuration reloaded"),
    ("TLS to workers: not read again", "configuration reloaded"),
    ("workers are asked about themselves as before", "configuration reloaded"),
];

/// Lines with a word of [`LASTING`] that report an event, or a state of the whole process.
const EVENTS: [&str; 8] = [
    "the fleet is larger than this router's limits",
    "snapshot {} cannot be used",
    "the index is not handed over",
    "the last snapshot is not written in time",
    "the models of the process before are not known",
    "missed KV event batches cannot be replayed",
    "no TLS session can begin",
    "not upgraded; this process goes on",
];

/// Words of a message about a state that lasts.
const LASTING: [&str; 14] = [
    "trying on",
    "tried again",
    "stay",
    "goes on",
    "go on",
    "going on",
    "until",
    "as before",
    "no traffic",
    "not known",
    "waits",
    "lost",
    "cannot",
    "begin",
];

/// Rooms of other commands than the router.
const COMMANDS: [&str; 6] = ["cli", "demo", "record", "shadow", "simulate", "top"];

/// M1: a reader of the log knows whether a state goes on.
#[test]
fn each_state_in_the_log_has_a_line_at_its_end() {
    let code = router_code();
    for (begin, end) in STATES {
        assert!(code.contains(begin), "no line begins with {begin:?}: take it off the list");
        assert!(code.contains(end), "{begin:?} has no end {end:?}");
    }
    let unpaired = unpaired_messages(&code);
    assert!(unpaired.is_empty(), "add the line at the end, and the pair to STATES: {unpaired:#?}");
    let planted = "warn!(worker, \"the moon is lost: \\\n    going on\"); warn!(\"once (x)\")";
    assert_eq!(unpaired_messages(planted), ["the moon is lost: going on"]);
}

fn router_code() -> String {
    let rooms = std::fs::read_dir("src").unwrap().map(|entry| entry.unwrap().file_name());
    let rooms = rooms.map(|name| name.into_string().unwrap());
    let rooms = rooms.filter(|name| !name.contains('.') && !COMMANDS.contains(&&**name));
    rooms.map(|room| joined(&texts_below(&format!("src/{room}"), "rs"))).collect()
}

/// Text with literals of several lines joined.
fn joined(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start())
}

/// Messages of WARN and ERROR about a state that lasts, which neither list has.
fn unpaired_messages(code: &str) -> Vec<String> {
    let code = joined(code);
    let calls = ["warn!(", "error!("].into_iter().flat_map(|name| code.split(name).skip(1));
    let messages = calls.filter_map(|call| {
        let call = call.split(");").next()?;
        call.rsplit('"').nth(1).map(ToOwned::to_owned)
    });
    let is_listed = |message: &str| {
        let begins = STATES.iter().map(|(begin, _)| begin).chain(&EVENTS);
        begins.into_iter().any(|begin| message.contains(begin))
    };
    let lasts = |message: &str| LASTING.iter().any(|word| message.contains(word));
    messages.filter(|message| lasts(message) && !is_listed(message)).collect()
}

//! `forebay explain` of a running router: where a request would go, and why.

use super::answer_text::{count, is_set, json, line, list, table, unwritten, word};
use crate::cli::router_client::RouterArgs;
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Largest body that the admin API takes, plus 1 byte: a larger body is refused there.
const BODY_BYTES_MAX: u64 = (1 << 20) + 1;
const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Flags of `forebay explain` for a single request.
#[derive(Debug, Args)]
#[command(next_help_heading = "One request at a running router")]
pub(crate) struct OverlapArgs {
    /// Body of the request as a file, `-` for standard input
    #[arg(long, value_name = "FILE", group = "request")]
    body: Option<PathBuf>,
    /// A chat of a single user message, instead of a body
    #[arg(long, value_name = "TEXT", group = "request")]
    message: Option<String>,
    /// A plain prompt, instead of a body
    #[arg(long, value_name = "TEXT", group = "request")]
    prompt: Option<String>,
    /// The model that --message or --prompt asks for
    #[arg(long, value_name = "NAME", requires = "request", conflicts_with = "body")]
    model: Option<String>,
    /// Path of the request [default: /v1/completions for --prompt, else /v1/chat/completions]
    #[arg(long, value_name = "PATH", requires = "request")]
    endpoint: Option<String>,
    #[command(flatten)]
    router: RouterArgs,
}

/// A request to explain.
struct AskedRequest {
    endpoint: String,
    body: Vec<u8>,
}

impl OverlapArgs {
    /// Asks the router, and writes the answer.
    pub(crate) async fn report(&self, as_json: bool, out: &mut impl Write) -> Result<(), String> {
        let asked = self.asked()?;
        let client = self.router.client()?;
        let call = client.request(Method::POST, &["debug", "overlap"]);
        let call = call.query(&[("endpoint", &asked.endpoint)]);
        let call = call.header("content-type", "application/json").body(asked.body);
        let answer = client.call(call, "ranks").await?;
        if as_json { json(&answer, out) } else { explained(&answer, out) }
    }

    fn asked(&self) -> Result<AskedRequest, String> {
        let endpoint = |usual: &str| self.endpoint.clone().unwrap_or_else(|| usual.to_owned());
        if let Some(path) = &self.body {
            return Ok(AskedRequest { endpoint: endpoint(CHAT), body: read(path)? });
        }
        let chat = |text: &String| json!([{ "role": "user", "content": text }]);
        let mut body = match (&self.message, &self.prompt) {
            (Some(text), _) => json!({ "messages": chat(text) }),
            (None, prompt) => json!({ "prompt": prompt }),
        };
        if let (Some(model), Some(body)) = (&self.model, body.as_object_mut()) {
            body.insert("model".to_owned(), model.as_str().into());
        }
        let usual = if self.message.is_some() { CHAT } else { COMPLETION };
        Ok(AskedRequest { endpoint: endpoint(usual), body: body.to_string().into_bytes() })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(BODY_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(BODY_BYTES_MAX).read_to_end(&mut bytes))
    };
    read.map(|_| bytes).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn explained(answer: &Value, out: &mut impl Write) -> Result<(), String> {
    let rank_of = |value: &Value| format!("{}/{}", word(value, "worker"), count(value, "dp_rank"));
    let chosen = match answer.get("chosen").filter(|chosen| chosen.is_object()) {
        Some(chosen) => format!("goes to {} ({})", rank_of(chosen), word(answer, "because")),
        None => format!("goes nowhere now: {}", word(answer, "none_because")),
    };
    let policy = word(answer, "policy");
    line(&format!("{}, policy {policy}: {chosen}", word(answer, "model")), out)?;
    if let Some(prefill) = answer.get("prefill_chosen").filter(|rank| rank.is_object()) {
        line(&format!("prefill at {}", rank_of(prefill)), out)?;
    }
    let prompt = answer.get("prompt").unwrap_or(&Value::Null);
    match word(prompt, "not_matched") {
        "" => line(&format!("prompt of {} bytes, matched", count(prompt, "bytes")), out)?,
        why => line(&format!("prompt not matched: {why}"), out)?,
    }
    let heading = ["RANK", "STATE", "ROOM", "RUNS", "CACHED", "TO COMPUTE", "COST"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(list(answer, "ranks").iter().map(|rank| {
        vec![
            rank_of(rank),
            state(rank).to_owned(),
            (if is_set(rank, "has_room") { "yes" } else { "no" }).to_owned(),
            count(rank, "in_flight").to_string(),
            count(rank, "cached_tokens_expected").to_string(),
            count(rank, "uncached_tokens").to_string(),
            number(rank, "cost"),
        ]
    }));
    table(&rows, out).map_err(|error| unwritten(&error))
}

fn state(rank: &Value) -> &str {
    match (is_set(rank, "draining"), is_set(rank, "breaker_open")) {
        (true, _) => "draining",
        (false, true) => "breaker open",
        (false, false) => word(rank, "state"),
    }
}

/// A cost, which may be a fraction.
fn number(value: &Value, name: &str) -> String {
    value.get(name).map_or_else(|| "-".to_owned(), Value::to_string)
}

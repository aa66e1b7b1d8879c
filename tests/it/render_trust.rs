//! A router that renders prompts unlike its engines: hits as without a template, and claims that
//! shrink. The router's `model_dir` has another chat template than the simulated engines.

use crate::rig::truth::{get, metric};
use crate::rig::{Client, RouterProcess, admin_post, any_port, post, until};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const OWN: &str = "tests/data/tokenizer";
const PEOPLE: usize = 16;
const TURNS: usize = 6;
/// Longer than `speculative_ttl` of these routers, and than the control plane takes for a verdict.
const THINKING: Duration = Duration::from_millis(300);
const MORE: &str = "engines find more of these prompts";
const LESS: &str = "engines find less of these prompts";

fn engine() -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    engine_with(text)
}

fn engine_with(text: &EngineText) -> EngineHandle {
    let config = EngineConfig {
        listen: any_port(),
        model: Some("m".to_owned()),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        prefill_tokens_per_s: 1e6,
        itl_ms: 0.5,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

/// The engines' tokenizer, with a change of its chat template.
fn model_dir(change: impl Fn(&str) -> Option<String>) -> tempfile::TempDir {
    let own = Path::new(OWN);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(own.join("tokenizer.json"), dir.path().join("tokenizer.json")).expect("copied");
    let text = std::fs::read_to_string(own.join("tokenizer_config.json")).expect("read");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let template = config["chat_template"].as_str().expect("a template").to_owned();
    config["chat_template"] = change(&template).map_or(Value::Null, Value::String);
    let text = config.to_string();
    std::fs::write(dir.path().join("tokenizer_config.json"), text).expect("written");
    dir
}

/// One more byte behind a system message.
fn one_more_byte(template: &str) -> Option<String> {
    let own = "{{- message.content }}";
    let changed = template.replace(
        own,
        "{{- message.content }}{%- if message.role == 'system' %}{{- '~' }}{%- endif %}",
    );
    assert_ne!(changed, template);
    Some(changed)
}

/// System messages are left out.
fn without_system(template: &str) -> Option<String> {
    let own = "{%- if tools and loop.first and message.role == 'system' %}";
    let changed = template.replace(own, "{%- if message.role == 'system' %}");
    assert_ne!(changed, template);
    Some(changed)
}

/// A fleet of engines, and a router with policy `kv`.
struct RoutedFleet {
    _engines: Vec<EngineHandle>,
    router: RouterProcess,
}

impl RoutedFleet {
    fn new(count: usize, model_dir: &Path, more: &str) -> Self {
        Self::of((0..count).map(|_| engine()).collect(), model_dir, more)
    }

    fn of(engines: Vec<EngineHandle>, model_dir: &Path, more: &str) -> Self {
        let worker = |engine: &EngineHandle| format!("[[worker]]\nurl = \"{}\"\n", engine.url());
        let workers: String = engines.iter().map(worker).collect();
        let dir = model_dir.display();
        let settings = format!(
            "cores = [0]\npolicy = \"kv\"\nmodel_dir = \"{dir}\"\n[approximate]\n\
             speculative_ttl = \"40ms\"\n{more}\n{workers}"
        );
        let router = RouterProcess::configured(&settings);
        let all = engines.len() as f64;
        until("all feeds are live", || metric(router.admin, "forebay_kv_feed_live{") >= all);
        Self { _engines: engines, router }
    }

    fn metric(&self, name: &str) -> f64 {
        metric(self.router.admin, name)
    }
}

/// Answer of an engine.
#[derive(Clone, Debug)]
struct Answer {
    worker: String,
    overlap_tokens: Option<u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    content: String,
}

fn ask(client: &mut Client, messages: &[Value]) -> Answer {
    let body = json!({ "model": "m", "messages": messages, "max_tokens": 4 }).to_string();
    client.send(&post("/v1/chat/completions", body.as_bytes()));
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
    let usage = &answer["usage"];
    Answer {
        worker: reply.field("x-forebay-worker").expect("named").to_owned(),
        overlap_tokens: reply
            .field("x-forebay-overlap-tokens")
            .map(|tokens| tokens.parse().unwrap()),
        prompt_tokens: usage["prompt_tokens"].as_u64().expect("counted"),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
        content: answer["choices"][0]["message"]["content"].as_str().unwrap_or("").to_owned(),
    }
}

/// A text of about 330 bytes.
fn words(about: &str) -> String {
    format!("It is about {about}. ") + &format!("Please say how {about} is meant. ").repeat(9)
}

/// What conversations found.
#[derive(Clone, Copy, Debug, Default)]
struct FoundTokens {
    prompt: u64,
    cached: u64,
    /// Turns that left the worker of their conversation.
    moved: usize,
}

impl FoundTokens {
    fn share(self) -> f64 {
        self.cached as f64 / self.prompt as f64
    }
}

/// Conversations with a common system message, a turn each in turn.
fn talk(fleet: &RoutedFleet) -> FoundTokens {
    let mut client = Client::connect(fleet.router.listen);
    let system = json!({ "role": "system", "content": words("the shared rule of all") });
    let mut talks: Vec<Vec<Value>> = vec![vec![system]; PEOPLE];
    let mut homes: Vec<Option<String>> = vec![None; PEOPLE];
    let mut found = FoundTokens::default();
    for turn in 0..TURNS {
        std::thread::sleep(THINKING);
        for (number, messages) in talks.iter_mut().enumerate() {
            let question = words(&format!("question {turn} of person {number}"));
            messages.push(json!({ "role": "user", "content": question }));
            let answer = ask(&mut client, messages);
            messages.push(json!({ "role": "assistant", "content": answer.content }));
            found.prompt += answer.prompt_tokens;
            found.cached += answer.cached_tokens;
            let home = homes[number].replace(answer.worker.clone());
            found.moved += usize::from(home.is_some_and(|home| home != answer.worker));
        }
    }
    found
}

/// F1: with a template that parts from the engines' text, each turn went to any worker.
#[test]
fn a_wrong_template_costs_no_more_hits_than_none() {
    let none = model_dir(|_| None);
    let wrong = model_dir(one_more_byte);
    let guessed = talk(&RoutedFleet::new(4, none.path(), ""));
    let fleet = RoutedFleet::new(4, wrong.path(), "");
    let netted = talk(&fleet);
    println!("without a template {guessed:?}, with a wrong template {netted:?}");
    assert!(netted.share() > 0.9 * guessed.share(), "{netted:?} against {guessed:?}");
    assert_eq!(fleet.router.logged(MORE), 1, "{}", fleet.router.log());
    let log = fleet.router.log();
    let line = log.lines().find(|line| line.contains(MORE)).expect("the line");
    for word in
        ["WARN", "model=\"m\"", "shape=\"chat_system\"", "predicted_tokens=", "found_tokens="]
    {
        assert!(line.contains(word), "{word}: {line}");
    }
    let off = "forebay_predictions_off{model=\"m\",shape=\"chat_system\",found=\"more\"}";
    assert_eq!(fleet.metric(off), 1.0);
    // Once more, with the verdict: against exact predictions, and against no guesses.
    let later = talk(&fleet);
    let exact = RoutedFleet::new(4, Path::new(OWN), "");
    talk(&exact);
    let ideal = talk(&exact);
    let without = talk(&RoutedFleet::new(4, wrong.path(), "ttl = \"0ms\""));
    println!("later {later:?}, exact {ideal:?}, first without guesses {without:?}");
    assert!(later.share() > 0.95 * ideal.share(), "{later:?} against {ideal:?}");
    assert!(without.share() < 0.85 * netted.share(), "{without:?} against {netted:?}");
}

#[test]
fn no_guess_is_added_while_predictions_hold() {
    let fleet = RoutedFleet::new(3, Path::new(OWN), "");
    let found = talk(&fleet);
    let again = talk(&fleet);
    println!("{found:?} {again:?}");
    assert_eq!(fleet.router.logged(MORE) + fleet.router.logged(LESS), 0);
    assert_eq!(fleet.metric("forebay_predictions_off{"), 0.0);
    let tokens = |by: &str| {
        let name = "forebay_compared_tokens_total{model=\"m\",shape=\"chat_system\",by=";
        fleet.metric(&format!("{name}\"{by}\"}}"))
    };
    assert!(tokens("prediction") > 0.0);
    // Less only where an event was late.
    assert!(tokens("prediction") > 0.9 * tokens("engine"), "{:?}", tokens("engine"));
}

/// The router leaves out the system message, so that the rest looks like another prompt.
#[test]
fn claims_shrink_where_engines_find_less() {
    let dir = model_dir(without_system);
    let fleet = RoutedFleet::new(1, dir.path(), "");
    let mut client = Client::connect(fleet.router.listen);
    let user = json!({ "role": "user", "content": words("one and the same").repeat(2) });
    let plain = ask(&mut client, std::slice::from_ref(&user));
    until("the events are here", || {
        std::thread::sleep(THINKING);
        ask(&mut client, std::slice::from_ref(&user)).overlap_tokens
            >= Some(plain.prompt_tokens - 32)
    });
    let mut number = 0;
    let mut with_system = || {
        number += 1;
        let system = json!({ "role": "system", "content": words(&format!("rule {number}")) });
        std::thread::sleep(THINKING);
        ask(&mut client, &[system, user.clone()])
    };
    let first = with_system();
    assert!(first.overlap_tokens > Some(100) && first.cached_tokens < 32, "{first:?}");
    until("claims shrink", || with_system().overlap_tokens <= Some(32));
    assert_eq!(fleet.router.logged(LESS), 1, "{}", fleet.router.log());
    let off = "forebay_predictions_off{model=\"m\",shape=\"chat_system\",found=\"less\"}";
    assert_eq!(fleet.metric(off), 1.0);
    let plain_again = ask(&mut client, std::slice::from_ref(&user));
    assert!(plain_again.overlap_tokens >= Some(100), "{plain_again:?}: another shape");
}

/// Issue 39: only the log named an engine with a chat template unlike that of its siblings. A drain
/// of the siblings brings it requests.
#[test]
fn an_engine_with_another_template_than_the_others_is_a_concern() {
    let dir = model_dir(one_more_byte);
    let odd = engine_with(&EngineText::load(Some(dir.path())).expect("a tokenizer"));
    let name = odd.url().trim_start_matches("http://").to_owned();
    let engines = vec![engine(), engine(), odd];
    let others: Vec<String> = engines.iter().take(2).map(EngineHandle::url).collect();
    let fleet = RoutedFleet::of(engines, Path::new(OWN), "");
    let ready = || get(fleet.router.admin, "/readyz").text();
    let concern = format!("1 of 1 ranks have another tokenizer or chat template: {name}");
    talk(&fleet);
    for url in others {
        let other = url.trim_start_matches("http://");
        let path = format!("/workers/{other}/drain");
        let mut admin = Client::connect(fleet.router.admin);
        admin.send(&admin_post(&path, b""));
        assert_eq!(admin.reply().status, 200, "{other}");
    }
    until("the concern", || {
        talk(&fleet);
        ready().contains(&concern)
    });
    let log = fleet.router.log();
    let line = log.lines().find(|line| line.contains(MORE)).expect("the line");
    assert!(line.contains(&format!("workers=\"{name}\"")), "{line}");
    // On a busy host the engine has enough answers before the drain, and again after it.
    assert!((1..=2).contains(&fleet.router.logged(MORE)), "{log}");
}

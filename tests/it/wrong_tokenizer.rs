//! A tokenizer that is not the engine's matches no prompt. The log and `/workers` say so.

use crate::rig::truth::{feed, metric, until_feed};
use crate::rig::{Client, RouterProcess, any_port, post, until};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use serde_json::{Value, json};
use std::path::Path;

const OWN: &str = "tests/data/tokenizer";
const MISMATCH: &str = "does not fit what the worker caches";
const SHARED: &str = "several models have the tokenizer of the one `model_dir`";

/// An engine with the built-in tokenizer, which does not say where its files are.
fn engine(model: &str) -> EngineHandle {
    let config = EngineConfig {
        listen: any_port(),
        model: Some(model.to_owned()),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        prefill_tokens_per_s: 1e6,
        itl_ms: 0.5,
        ..EngineConfig::default()
    };
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

fn router(model_dir: &Path, engines: &[&EngineHandle]) -> RouterProcess {
    let worker = |engine: &&EngineHandle| format!("[[worker]]\nurl = \"{}\"\n", engine.url());
    let workers: String = engines.iter().map(worker).collect();
    let dir = model_dir.display();
    let settings = format!("cores = [0]\npolicy = \"kv\"\nmodel_dir = \"{dir}\"\n{workers}");
    let router = RouterProcess::configured(&settings);
    until_feed(router.admin, "live");
    router
}

/// Another tokenizer: the same bytes, and none of the words.
pub(crate) fn bytes_only() -> tempfile::TempDir {
    let text = std::fs::read_to_string(Path::new(OWN).join("tokenizer.json")).expect("read");
    let mut file: Value = serde_json::from_str(&text).expect("JSON");
    let vocabulary = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocabulary.retain(|_, id| id.as_u64().is_some_and(|id| id < 256));
    file["model"]["merges"] = json!([]);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).expect("written");
    dir
}

/// So many prompts, each with a beginning of its own and of some blocks.
fn ask(router: &RouterProcess, prompts: usize) {
    let mut client = Client::connect(router.listen);
    for number in 0..prompts {
        let prompt =
            format!("Rule {number}. ") + &"The answer is there for the other one. ".repeat(16);
        let body = json!({ "model": "m", "prompt": prompt, "max_tokens": 1 }).to_string();
        client.send(&post("/v1/completions", body.as_bytes()));
        assert_eq!(client.reply().status, 200);
    }
}

/// Asks with more and more prompts until the feed says that: what an engine publishes before it has
/// noted the router as a subscriber is lost. Returns how many prompts it took.
fn ask_until(router: &RouterProcess, text: &str) -> usize {
    let mut prompts = 0;
    until(&format!("the feed's text is {text}"), || {
        prompts += 10;
        ask(router, prompts);
        feed(router.admin, 0)["text"] == text
    });
    prompts
}

#[test]
fn a_tokenizer_that_is_not_the_engines_is_reported_once() {
    let engine = engine("m");
    let other = bytes_only();
    let router = router(other.path(), &[&engine]);
    assert!(feed(router.admin, 0)["text"].is_null(), "nothing has come yet");
    let asked = ask_until(&router, "mismatch");
    assert_eq!(feed(router.admin, 0)["state"], "live");
    until("the log has it", || router.logged(MISMATCH) == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains(MISMATCH)).expect("the line");
    let dir = other.path().display().to_string();
    assert!(
        line.contains("WARN") && line.contains(&dir) && line.contains("set `model_dir`"),
        "{line}"
    );
    let unread = || metric(router.admin, "forebay_kv_events_total{kind=\"stored\",result=\"no");
    let before = unread();
    ask(&router, asked + 30);
    until("more has come", || unread() > before);
    assert_eq!(router.logged(MISMATCH), 1, "once");
}

#[test]
fn the_engines_own_tokenizer_and_none_are_no_mismatch() {
    let engine = engine("m");
    let own = router(Path::new(OWN), &[&engine]);
    ask_until(&own, "ok");
    let nothing = tempfile::tempdir().expect("a directory");
    let without = router(nothing.path(), &[&engine]);
    assert_eq!(feed(without.admin, 0)["text"], "none");
    assert_eq!((own.logged(MISMATCH), without.logged(MISMATCH)), (0, 0));
    assert_eq!((own.logged(SHARED), without.logged(SHARED)), (0, 0));
}

#[test]
fn one_model_dir_for_several_models_is_reported() {
    let first = engine("m");
    let second = engine("n");
    let router = router(Path::new(OWN), &[&first, &second]);
    until("the log has it", || router.logged(SHARED) == 1);
    let log = router.log();
    let line = log.lines().find(|line| line.contains(SHARED)).expect("the line");
    assert!(line.contains("WARN") && line.contains("m, n") && line.contains(OWN), "{line}");
}

//! O9: chats with images. The router names images in the body, and finds prompts behind them.

use crate::rig::truth::explained;
use crate::rig::{Client, Publisher, Replay, Worker, admin_post, config, post, router, until};
use flate2::read::GzDecoder;
use forebay::config::{Config, ConfigSource, EngineKind, Flags, Policy, Reloader};
use forebay::record::FileReader;
use forebay::server::start_reloadable;
use serde_json::{Value, json};
use std::fs::{copy, read_to_string, write};
use std::io::Read;
use std::path::Path;
use tempfile::TempDir;

const CHATS: &str = "/v1/chat/completions";
/// As `tools/real_engines_full images` gives it to the router.
const SECRET: &str = "a-secret-of-the-tests";
const CAPTURE: &str = "tests/data/kv_events/vllm-0.32.0-images";

/// The model of `tests/data/vision_model`, and the secret.
fn vision() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new("tests/data");
    for file in [
        "tokenizer/tokenizer_config.json",
        "vision_model/config.json",
        "vision_model/chat_template.jinja",
    ] {
        let from = data.join(file);
        copy(&from, dir.path().join(from.file_name().unwrap())).unwrap();
    }
    let parsed = |file: &str| -> Value {
        serde_json::from_str(&read_to_string(data.join(file)).unwrap()).unwrap()
    };
    let mut tokenizer = parsed("tokenizer/tokenizer.json");
    let more = parsed("vision_model/added_tokens.json");
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    write(dir.path().join("image_key"), SECRET).unwrap();
    dir
}

/// A router with policy `kv` before a vLLM with that model.
fn sees(worker: &Worker, dir: &TempDir) -> Config {
    let mut config = config(&[worker]);
    config.policy = Policy::Kv;
    config.model_dir = Some(dir.path().into());
    config.image_key_file = Some(dir.path().join("image_key"));
    config.workers[0].engine = Some(EngineKind::Vllm);
    config.workers[0].models = vec!["m".into()];
    config
}

fn image(data: &str) -> Value {
    let url = format!("data:image/png;base64,{data}");
    json!({ "type": "image_url", "image_url": { "url": url } })
}

fn chat(parts: &Value) -> String {
    let messages = json!([{ "role": "user", "content": parts }]);
    json!({ "model": "m", "messages": messages, "max_tokens": 3 }).to_string()
}

/// What the worker gets of a body.
fn sent(client: &mut Client, worker: &Worker, body: &str) -> String {
    client.send(&post(CHATS, body.as_bytes()));
    assert_eq!(client.reply().status, 200);
    String::from_utf8(worker.next().body).unwrap()
}

/// Small ones and large ones, which are scanned elsewhere.
#[test]
fn images_get_names_and_nothing_else_changes() {
    let worker = Worker::json("{}");
    let dir = vision();
    let handle = router(sees(&worker, &dir));
    let mut client = Client::connect(handle.listen);
    let words = json!({ "type": "text", "text": "what is this" });
    for bytes in [40, 100_000, 3_000_000] {
        let [one, other] = ["A", "B"].map(|letter| image(&letter.repeat(bytes)));
        let body = chat(&json!([words, one, other, words, one]));
        let mut got: Value = serde_json::from_str(&sent(&mut client, &worker, &body)).unwrap();
        let parts = got["messages"][0]["content"].as_array_mut().unwrap();
        let names: Vec<Value> = parts
            .iter_mut()
            .filter_map(|part| part.as_object_mut().unwrap().remove("uuid"))
            .collect();
        assert_eq!(names.len(), 3, "{bytes}");
        assert!(names[0] == names[2] && names[0] != names[1]);
        assert_eq!(names[0].as_str().unwrap().len(), 32);
        assert_eq!(got, serde_json::from_str::<Value>(&body).unwrap(), "{bytes}");
    }
    let own = image("AAAA").as_object().map(|part| {
        let mut part = part.clone();
        part.insert("uuid".into(), "mine".into());
        part
    });
    for parts in [
        json!("a text"),
        json!([words]),
        json!([words, { "type": "image_url", "image_url": { "url": "https://a/b.png" } }]),
        json!([own]),
    ] {
        let body = chat(&parts);
        assert_eq!(sent(&mut client, &worker, &body), body);
    }
}

#[test]
fn without_the_secret_bodies_stay_as_they_are() {
    let worker = Worker::json("{}");
    let dir = vision();
    let mut config = sees(&worker, &dir);
    config.image_key_file = None;
    let handle = router(config);
    let body = chat(&json!([image("AAAA")]));
    assert_eq!(sent(&mut Client::connect(handle.listen), &worker, &body), body);
}

/// Another secret gives images other names; without a secret they get none.
#[test]
fn a_reload_reads_the_secret_again() {
    let worker = Worker::json("{}");
    let dir = vision();
    let path = dir.path().join("forebay.toml");
    let secret = dir.path().join("image_key");
    let without = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ncores = [0]\npolicy = \"kv\"\n\
         model_dir = \"{}\"\n[health]\nenabled = false\n[[worker]]\nurl = \"{}\"\n\
         engine = \"vllm\"\nmodels = [\"m\"]\n",
        dir.path().display(),
        worker.url()
    );
    let with = format!("image_key_file = \"{}\"\n{without}", secret.display());
    write(&path, &without).unwrap();
    let source = ConfigSource { file: Some(path.clone()), flags: Flags::default() };
    let config = source.load().unwrap().usable().unwrap();
    let handle = start_reloadable(config.clone(), false, Reloader::new(source, config)).unwrap();
    let reload = |text: &str, of: &str| -> Value {
        write(&path, text).unwrap();
        write(&secret, of).unwrap();
        let mut client = Client::connect(handle.admin);
        client.send(&admin_post("/admin/reload", b""));
        let reply: Value = serde_json::from_slice(&client.reply().body).unwrap();
        assert_eq!(reply["needs_restart"], json!([]));
        reply["applied"].clone()
    };
    let mut client = Client::connect(handle.listen);
    let body = chat(&json!([image("AAAA")]));
    let mut name = || {
        let got: Value = serde_json::from_str(&sent(&mut client, &worker, &body)).unwrap();
        got["messages"][0]["content"][0]["uuid"].as_str().map(str::to_owned)
    };
    assert_eq!(name(), None);
    assert_eq!(reload(&with, SECRET), json!(["image_key_file"]));
    until("images get names", || name().is_some());
    let first = name();
    assert_eq!(reload(&with, SECRET), json!([]), "nothing has changed");
    assert_eq!(name(), first);
    assert_eq!(reload(&with, "another-secret-of-the-tests"), json!(["image_key_file"]));
    until("the names are other ones", || name() != first);
    assert!(name().is_some());
    assert_eq!(reload(&with, SECRET), json!(["image_key_file"]));
    until("the names are those of before", || name() == first);
    assert_eq!(reload(&without, SECRET), json!(["image_key_file"]));
    until("no image gets a name", || name().is_none());
}

/// The events of a real vLLM, and the chats that made them.
#[test]
fn a_chat_is_found_behind_its_images() {
    let mut lines = String::new();
    let file = std::fs::File::open(format!("{CAPTURE}.chats.gz")).unwrap();
    GzDecoder::new(file).read_to_string(&mut lines).unwrap();
    let rows: Vec<(u64, usize, &str)> = lines
        .lines()
        .map(|line| {
            let columns: Vec<&str> = line.splitn(4, '\t').collect();
            (columns[0].parse().unwrap(), columns[2].parse().unwrap(), columns[3])
        })
        .collect();
    let behind =
        |row: &&(u64, usize, &str)| row.1 >= 320 && row.2.matches("image_url\":{").count() > 2;
    let &(at_ns, found, body) = rows.iter().rev().find(behind).expect("a chat with images");
    let worker = Worker::json("{}");
    let dir = vision();
    let publisher = Publisher::start(0, Replay::Topic);
    let mut config = sees(&worker, &dir);
    config.workers[0].models = vec!["tiny".into()];
    config.workers[0].kv_events = vec![format!("tcp://{}", publisher.live)];
    let handle = router(config);
    until("subscribed", || publisher.subscribers() == 1);
    let mut reader = FileReader::open(Path::new(&format!("{CAPTURE}.kvrec"))).unwrap();
    loop {
        let end = reader.next_chunk().unwrap();
        for message in reader.messages() {
            let [_, _, payload] = message.frames() else { continue };
            let seconds = f64::from_be_bytes(*payload[2..].first_chunk().unwrap());
            if seconds * 1e9 < at_ns as f64 {
                publisher.say(payload);
            }
        }
        if end.is_some() {
            break;
        }
    }
    let mut client = Client::connect(handle.admin);
    // The last token is computed in any case, so the engine may find a block less than it holds.
    let held = found / 32..=found / 32 + 1;
    until("found behind the images", || {
        held.contains(&explained(&mut client, CHATS, body.as_bytes())[0])
    });
    let other = body.replacen(";base64,iVBORw0KGgo", ";base64,jVBORw0KGgo", 1);
    let blocks = explained(&mut client, CHATS, other.as_bytes())[0];
    assert!(blocks < found / 32, "another image at the first place: {blocks}");
}

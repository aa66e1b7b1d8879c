//! O5: forms with files, as audio comes. The model stands in the form.

use crate::rig::{Client, Reply, Worker, config, metric, router, until};
use forebay::config::{Config, ModelConfig};
use forebay::server::ServerHandle;
use std::path::PathBuf;

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

fn form(model: &str, file: &[u8]) -> Vec<u8> {
    let head = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
                Content-Type: audio/wav\r\n\r\n";
    let model = format!(
        "\r\n--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n"
    );
    [head.as_bytes(), file, model.as_bytes()].concat()
}

fn send(client: &mut Client, fields: &str, body: &[u8]) -> Reply {
    let head = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\n{fields}\
         content-type: multipart/form-data; boundary=x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send(&[head.as_bytes(), body].concat());
    client.reply()
}

/// Workers for `speech` and `text`, each with one of them.
fn before(workers: [&Worker; 2], change: impl FnOnce(&mut Config)) -> ServerHandle {
    let mut config = config(&workers);
    for (worker, model) in config.workers.iter_mut().zip(["speech", "text"]) {
        worker.models = vec![model.to_owned()];
    }
    change(&mut config);
    let router = router(config);
    until("both are up", || (metric(&router, "forebay_worker_up") - 2.0).abs() < 0.5);
    router
}

#[test]
fn a_form_goes_to_a_worker_of_its_model_byte_for_byte() {
    let [speech, text] = [Worker::json("{}"), Worker::json("{}")];
    let router = before([&speech, &text], |_| {});
    let mut client = Client::connect(router.listen);
    for bytes in [0, 1_000, 100_000, 700_000, 3_000_000] {
        let file: Vec<u8> = (0..bytes).map(|at: u32| at.to_le_bytes()[0] ^ 0x5a).collect();
        let body = form("speech", &file);
        assert_eq!(send(&mut client, "", &body).status, 200);
        let seen = speech.next();
        assert!(seen.body == body, "{bytes} bytes");
        assert!(seen.head.contains("boundary=x"), "{}", seen.head);
    }
    let unknown = send(&mut client, "", &form("other", b"a"));
    assert!(unknown.status == 404 && unknown.text().contains("`other`"), "{}", unknown.text());
    let none = send(&mut client, "", b"--x--\r\n");
    assert_eq!(none.status, 404, "a path of engines is one by its model: {}", none.text());
    assert!(text.seen.try_recv().is_err());
}

#[test]
fn a_form_is_renamed_and_keys_decide_by_its_model() {
    let [speech, text] = [Worker::json("{}"), Worker::json("{}")];
    let router = before([&speech, &text], |config| {
        config.api_keys = Some(PathBuf::from("tests/data/api_keys/two.toml"));
        let model = ModelConfig { name: "m".into(), to: "speech".into(), weight: 1 };
        config.models = vec![model];
    });
    let mut client = Client::connect(router.listen);
    // The key `some-key` is for the model `m`.
    let key = "x-api-key: some-key\r\n";
    assert_eq!(send(&mut client, key, &form("m", b"RIFF")).status, 200);
    assert!(speech.next().body == form("speech", b"RIFF"));
    assert_eq!(send(&mut client, key, &form("speech", b"RIFF")).status, 403);
}

#[test]
fn what_engines_may_read_in_two_ways_reaches_none() {
    let [speech, text] = [Worker::json("{}"), Worker::json("{}")];
    let router = before([&speech, &text], |_| {});
    let mut client = Client::connect(router.listen);
    let twice = form("speech", b"a");
    let again = b"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntext\r\n--x--\r\n";
    let twice = [&twice[..twice.len() - 4], again].concat();
    let refused = send(&mut client, "", &twice);
    assert_eq!((refused.status, refused.field("x-forebay-reason")), (400, Some("bad-request")));
    assert!(refused.text().contains("`model` is given twice"), "{}", refused.text());
    // The router would read JSON where an engine reads a form.
    let hidden = br#"{"model":"speech","x":"&model=text&y="}"#;
    let head = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\
         content-type: application/x-www-form-urlencoded\r\n\r\n",
        hidden.len()
    );
    client.send(&[head.as_bytes(), hidden].concat());
    assert_eq!(client.reply().status, 400);
    let owned = form("speech", b"a");
    let owned = String::from_utf8(owned).unwrap().replace("\"file\"", "\"bootstrap_host\"");
    assert_eq!(send(&mut client, "", owned.as_bytes()).status, 400);
    assert!(speech.seen.try_recv().is_err() && text.seen.try_recv().is_err());
}

/// Issue 35, F3: forms of common clients were a 400.
#[test]
fn forms_with_codings_charsets_and_quotes_are_passed_on() {
    let [speech, text] = [Worker::json("{}"), Worker::json("{}")];
    let router = before([&speech, &text], |_| {});
    let mut client = Client::connect(router.listen);
    let file = "Content-Disposition: form-data; name=\"file\"; \
                filename=\"a \\\"b\\\"; id=7.wav\"\r\n\
                Content-Transfer-Encoding: Binary\r\n\r\nRIFF";
    let model = "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\
                 Content-Disposition: form-data; name=model\r\n\r\nspeech";
    let body = format!("\r\n--x\r\n{file}\r\n--x\r\n{model}\r\n--x--\r\n\r\n");
    for parameters in [";charset=UTF-8;boundary=x", "; boundary=\"x\"; charset=\"utf-8\";"] {
        let head = format!(
            "POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\n\
             content-type: multipart/form-data{parameters}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(&[head.as_bytes(), body.as_bytes()].concat());
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{parameters}: {}", reply.text());
        let seen = speech.next();
        assert!(seen.body == body.as_bytes() && seen.head.contains(parameters), "{}", seen.head);
    }
    let coded = body.replace("8bit", "base64");
    assert_eq!(send(&mut client, "", coded.as_bytes()).status, 400);
}

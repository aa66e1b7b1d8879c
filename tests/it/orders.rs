//! The commands of every day against a running router.

use crate::rig::{ASK, Client, Gate, RouterProcess, Worker, port_for_later, post, until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

const TOKEN: &str = "s3cret-of-the-admin";

/// What a command printed, and how it ended.
struct CommandOutput {
    code: Option<i32>,
    out: String,
    error: String,
}

/// Runs the program with these words, then with the further words.
fn output_of(words: &str, more: &[&str]) -> CommandOutput {
    let ran = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(words.split_whitespace())
        .args(more)
        .env_remove("FOREBAY_ADMIN_TOKEN")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: ran.status.code(), out: text(ran.stdout), error: text(ran.stderr) }
}

/// A router with a token in front of `w0` and `w1`, and the file of the token.
fn guarded(workers: &[&Worker], more: &str) -> (RouterProcess, tempfile::NamedTempFile) {
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), format!("{TOKEN}\n")).unwrap();
    let listed: String = workers
        .iter()
        .enumerate()
        .map(|(number, worker)| {
            let address = worker.address;
            format!(
                "[[worker]]\nname = \"w{number}\"\nurl = \"http://{address}\"\nmodels = [\"m\"]\n"
            )
        })
        .collect();
    let text = format!(
        "cores = [0]\nadmin_token_file = {:?}\n{more}\n[health]\nenabled = false\n{listed}",
        token.path()
    );
    (RouterProcess::configured(&text), token)
}

#[test]
fn workers_are_shown_drained_and_brought_back() {
    let held = Gate::start();
    let other = Worker::json("{}");
    let (router, _token) = guarded(&[&held.worker, &other], "policy = \"round_robin\"");
    let file = router.config();
    let file = file.to_str().unwrap();
    let at = format!("--router {}", router.admin);

    let shown = output_of("workers -c", &[file]);
    assert_eq!((shown.code, &*shown.error), (Some(0), ""), "{}", shown.out);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[0].starts_with("WORKER  STATE"), "{}", shown.out);
    assert!(lines[1].starts_with("w0") && lines[1].contains("up"), "{}", shown.out);
    let json: Value = serde_json::from_str(&output_of("workers --json -c", &[file]).out).unwrap();
    assert_eq!(json["workers"][1]["name"], "w1");
    assert_eq!(output_of("workers w1 -c", &[file]).out.lines().count(), 2, "one alone");

    let refused = output_of(&format!("drain w0 {at}"), &[]);
    assert_eq!((refused.code, &*refused.out), (Some(1), ""));
    assert!(refused.error.contains("--token-file"), "{}", refused.error);

    // One of two goes to the worker that holds its requests.
    let mut clients = [0, 1].map(|_| Client::connect(router.listen));
    clients.iter_mut().for_each(|client| client.send(&post("/v1/completions", ASK)));
    held.holds(1);
    let drained = output_of("drain w0 --wait=600ms -c", &[file]);
    assert_eq!(drained.code, Some(1), "{}", drained.out);
    assert!(drained.out.contains("w0 drains: 1 request in flight"), "{}", drained.out);
    assert!(drained.error.contains("after 600ms"), "{}", drained.error);
    held.open();
    let drained = output_of("drain w0 --wait -c", &[file]);
    assert_eq!((drained.code, &*drained.error), (Some(0), ""));
    assert!(drained.out.ends_with("w0 is drained and idle: its engine can stop\n"));
    assert!(output_of("workers w0 -c", &[file]).out.contains("draining"));
    let back = output_of("undrain w0 --wait -c", &[file]);
    assert_eq!((back.code, &*back.out), (Some(0), "w0 takes requests\n"), "{}", back.error);

    let unknown = output_of("drain nobody -c", &[file]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.error.contains("no worker is called \"nobody\""), "{}", unknown.error);
}

#[test]
fn windows_a_reload_and_an_explanation_are_one_command_each() {
    let workers = [Worker::json("{}"), Worker::json("{}")];
    let (router, _token) = guarded(&[&workers[0], &workers[1]], "policy = \"kv\"");
    let file = router.config();
    let file = file.to_str().unwrap();

    let open = output_of("window open 30s --model m -c", &[file]);
    assert_eq!((open.code, &*open.error), (Some(0), ""));
    assert!(open.out.contains(" open ") && open.out.contains("hand"), "{}", open.out);
    assert!(output_of("window -c", &[file]).out.contains(" open "));
    let closed = output_of("window close -c", &[file]);
    assert!(closed.out.contains(" closed ") && !closed.out.contains(" open "), "{}", closed.out);
    let missing = ["window open", "window wide", "window --model m", "window 5s"];
    let forms = ["window open x", "window open 2h", "window open 0s", "window close 5s"];
    for wrong in missing.into_iter().chain(forms) {
        let ran = output_of(wrong, &[]);
        assert_eq!(ran.code, Some(2), "{wrong}");
        assert!(ran.error.starts_with("error: "), "{wrong}: {}", ran.error);
    }
    let unknown = output_of("window open 1s --model gone -c", &[file]);
    assert!(unknown.code == Some(1) && unknown.error.contains("gone"), "{}", unknown.error);

    let read = format!("read {file}\n");
    let same = output_of("reload -c", &[file]);
    let wanted = format!("{read}no key has changed; files that keys name were read again\n");
    assert_eq!((same.out, &*same.error), (wanted, ""));
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::copy(file, other.path()).unwrap();
    let at = format!("--router {} -c", router.admin);
    let of_other = output_of(&format!("reload {at}"), &[other.path().to_str().unwrap()]);
    assert!(of_other.error.contains("was not read: the router reads"), "{}", of_other.error);
    router.edit(|text| text.replace("policy = \"kv\"", "policy = \"random\""));
    assert_eq!(output_of("reload -c", &[file]).out, format!("{read}applied: policy\n"));
    router.edit(|text| text.replace("policy = \"random\"", "polici = \"kv\""));
    let token = format!("{TOKEN}\n");
    let token_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token_file.path(), token).unwrap();
    let at = format!("reload --router {} --token-file", router.admin);
    let refused = output_of(&at, &[token_file.path().to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.out.contains("unknown key `polici`"), "{}", refused.out);
    assert!(refused.error.contains("not reloaded"), "{}", refused.error);
    router.edit(|text| text.replace("polici = ", "policy = "));
    output_of("reload -c", &[file]);

    let explained = output_of("explain --model m --message hello -c", &[file]);
    assert_eq!((explained.code, &*explained.error), (Some(0), ""));
    assert!(explained.out.contains("m, policy kv: goes to w"), "{}", explained.out);
    assert!(explained.out.contains("w0/0") && explained.out.contains("w1/0"), "{}", explained.out);
    let json = output_of("explain --model m --prompt hello --json -c", &[file]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["endpoint"], "completions");
    for wrong in ["explain", "explain --prompt a --message b", "explain --body f --model m"] {
        assert_eq!(output_of(wrong, &[]).code, Some(2), "{wrong}");
    }
    let unknown = output_of("explain --model gone --prompt x -c", &[file]);
    assert!(unknown.code == Some(1) && unknown.error.contains("gone"), "{}", unknown.error);
}

#[test]
fn a_router_that_is_not_there_is_named_with_what_to_do() {
    let nowhere = port_for_later();
    let said = output_of(&format!("workers --router {nowhere}"), &[]);
    assert_eq!(said.code, Some(1));
    let wanted = format!("forebay: {nowhere}: Connection refused");
    assert!(said.error.starts_with(&wanted), "{}", said.error);
    assert!(said.error.contains("does the router run"), "{}", said.error);
    assert_eq!(output_of(&format!("workers --admin {nowhere}"), &[]).error, said.error);
}

/// Each server that is no admin API, and the reason that a command gives.
#[test]
fn a_command_at_a_wrong_port_says_what_answers_there() {
    let web = Worker::start(|_, stream| {
        let page = b"HTTP/1.1 404 Nope\r\nserver: web/1\r\ncontent-length: 5\r\n\r\n<html";
        stream.write_all(page).is_ok()
    });
    // It happens to have the members of each answer of a router.
    let list = Worker::json(
        r#"{"workers":[],"ranks":[],"pools":[],"applied":[],"in_flight":0,"endpoint":"x"}"#,
    );
    let tls = Worker::start(|_, stream| {
        let alert = b"\x15\x03\x03\x00\x02\x02\x0a";
        stream.write_all(alert).unwrap();
        false
    });
    // It has the metrics of a router, and no answer of a router.
    let copy = Worker::start(|seen, stream| {
        let metrics = "forebay_build_info{version=\"0.1.0\"} 1\n";
        let body = if seen.head.contains(" /metrics ") { metrics } else { r#"{"ok":true}"# };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).is_ok()
    });
    let (router, token) = guarded(&[&web], "");
    let token = token.path().to_str().unwrap();
    for words in ["workers", "workers w0", "window", "reload", "drain w0 --wait", "undrain w0"] {
        let ran = output_of(&format!("{words} --router {} --token-file", copy.address), &[token]);
        assert_eq!((ran.code, &*ran.out), (Some(1), ""), "{words}");
        assert!(ran.error.contains("no admin API"), "{words}: {}", ran.error);
    }
    let words = ["workers", "window", "window open 1s", "reload", "drain w0", "undrain w0"];
    let further = ["explain --model m --prompt p", "top --once"];
    for words in words.into_iter().chain(further) {
        let error = |at: &str| {
            let ran = output_of(&format!("{words} --router {at} --token-file"), &[token]);
            assert_eq!(ran.code, Some(1), "{words}: {}", ran.error);
            ran.error
        };
        let said = error(&web.address.to_string());
        assert!(said.contains("no admin API") && said.contains("web/1"), "{words}: {said}");
        let said = error(&list.address.to_string());
        assert!(said.contains("no admin API"), "{words}: {said}");
        let said = error(&router.listen.to_string());
        assert!(said.contains("port for clients"), "{words}: {said}");
        let said = error(&tls.address.to_string());
        assert!(said.contains("https://"), "{words}: {said}");
        let said = error(&format!("https://{}", router.admin));
        assert!(said.contains("http://"), "{words}: {said}");
    }
}

/// The admin API as a router before the field `x-forebay-admin` has it.
fn without_the_field(admin: SocketAddr) -> Worker {
    Worker::start(move |seen, stream| {
        let mut router = TcpStream::connect(admin).unwrap();
        let head = seen.head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        router.write_all(head.as_bytes()).unwrap();
        router.write_all(&seen.body).unwrap();
        let mut router = BufReader::new(router);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            router.read_line(&mut line).unwrap();
            if !line.starts_with("x-forebay-admin") && stream.write_all(line.as_bytes()).is_err() {
                return false;
            }
        }
        let mut piece = [0; 4_096];
        loop {
            match router.read(&mut piece) {
                Ok(length) if length > 0 && stream.write_all(&piece[..length]).is_ok() => {}
                _ => return false,
            }
        }
    })
}

/// M7: commands of this version work with a router from before the field that names its admin API,
/// with a warning.
#[test]
fn commands_work_with_an_older_router_and_warn() {
    let worker = Worker::json("{}");
    let (router, token) = guarded(&[&worker], "");
    let older = without_the_field(router.admin);
    let token = token.path().to_str().unwrap();
    let of = |words: &str| {
        output_of(&format!("{words} --router {} --token-file", older.address), &[token])
    };
    for (words, wanted) in [
        ("workers", "w0"),
        ("top --once", "w0"),
        ("explain --model m --prompt p", "w0"),
        ("drain w0", "w0"),
    ] {
        let ran = of(words);
        assert_eq!(ran.code, Some(0), "{words}: {}", ran.error);
        assert!(ran.out.contains(wanted), "{words}: {}", ran.out);
        let warned = ran.error.contains("older build") && ran.error.contains("version 0.1.0");
        assert!(warned, "{words}: {}", ran.error);
    }
    let unknown = of("drain w9");
    assert_eq!(unknown.code, Some(1), "{}", unknown.out);
    assert!(unknown.error.contains("no worker"), "{}", unknown.error);
    let refused = output_of(&format!("drain w0 --router {}", older.address), &[]);
    assert!(refused.error.contains("--token-file"), "{}", refused.error);
}

/// An order must work while the file has faults, for example in the middle of an edit.
#[test]
fn a_command_reads_of_the_file_only_where_the_router_is() {
    let worker = Worker::json("{}");
    let (router, _token) = guarded(&[&worker], "");
    let file = router.config();
    let file = file.to_str().unwrap();
    router.edit(|text| text.replace("cores = [0]", "cores = [0]\npolicyy = \"kv\""));
    let shown = output_of("workers -c", &[file]);
    assert_eq!((shown.code, &*shown.error), (Some(0), ""), "{}", shown.out);
    router.edit(|text| text.replace("admin = ", "admin = 7 #"));
    let shown = output_of("workers -c", &[file]);
    assert!(shown.code == Some(1) && shown.error.contains("`admin`"), "{}", shown.error);
    router.edit(|text| text.replace("admin = 7 #", "admin = ").replace("[health]", "[health"));
    let shown = output_of("workers -c", &[file]);
    assert!(shown.code == Some(1) && shown.error.contains("forebay.toml:"), "{}", shown.error);
}

/// A worker that never comes up has its reason in the log, once, and wherever it is shown.
#[test]
fn a_worker_that_is_not_up_has_a_reason() {
    let other = Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let gone = port_for_later();
    let router = RouterProcess::configured(&format!(
        "cores = [0]\n[health]\ninterval = \"100ms\"\n\
         [[worker]]\nname = \"other\"\nurl = \"{}\"\n\
         [[worker]]\nname = \"gone\"\nurl = \"http://{gone}\"\n",
        other.url()
    ));
    let error = |name: &str| {
        let shown = output_of(&format!("workers {name} --json --router {}", router.admin), &[]).out;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["error"].as_str().unwrap_or_default().to_owned()
    };
    until("both have a reason", || !error("other").is_empty() && !error("gone").is_empty());
    assert!(error("gone").contains("Connection refused"), "{}", error("gone"));
    assert!(error("other").contains("503"), "{}", error("other"));
    let table = output_of(&format!("workers --router {}", router.admin), &[]).out;
    assert!(table.contains("Connection refused") && table.contains("503"), "{table}");
    for name in ["other", "gone"] {
        let words = format!("worker=\"{name}\"");
        let log = router.log();
        let lines = log.lines().filter(|line| line.contains("WARN") && line.contains(&words));
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() == 1 && lines[0].contains("help="), "{lines:?}");
    }
}

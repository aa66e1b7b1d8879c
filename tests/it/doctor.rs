//! V7: `forebay doctor` finds what is planted, and nothing where nothing is.

use crate::rig::truth::get;
use crate::rig::{Certificates, RouterProcess, any_port, port_for_later, until};
use crate::wrong_tokenizer::bytes_only;
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText, EngineWire};
use std::net::TcpListener;
use std::process::Command;

const TOKENIZER: &str = "tests/data/tokenizer";

/// An engine with all that the router can use, but for what `change` changes.
fn engine(change: impl FnOnce(&mut EngineConfig)) -> EngineHandle {
    let mut config = EngineConfig {
        listen: any_port(),
        model: Some("m".to_owned()),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        replay: Some("tcp://127.0.0.1:0".into()),
        ..EngineConfig::default()
    };
    change(&mut config);
    let text = EngineText::load(None).expect("the built-in tokenizer");
    Engine::start_with(config, text).expect("the engine starts")
}

/// What the doctor says of this configuration, and whether it found nothing. `first`: what its
/// shell does before.
fn doctor(first: &str, text: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    // A line of the text may say where it listens instead.
    let own = |key: &str| match text.contains(&format!("{key} =")) {
        true => String::new(),
        false => format!("{key} = \"{}\"\n", port_for_later()),
    };
    std::fs::write(&file, format!("{}{}{text}", own("listen"), own("admin"))).unwrap();
    let shell = format!("{first}exec \"$0\" doctor -c \"$1\"");
    let command = ["-c", &shell, env!("CARGO_BIN_EXE_forebay")];
    let ran = Command::new("sh").args(command).arg(&file).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{said}");
    (ran.status.success(), said)
}

/// A router of one core in front of these, small enough for any limit of files.
fn before(engines: &[&EngineHandle], more: &str) -> String {
    let worker = |engine: &&EngineHandle| format!("[[worker]]\nurl = \"{}\"\n", engine.url());
    let workers: String = engines.iter().map(worker).collect();
    format!(
        "cores = [0]\nmodel_dir = \"{TOKENIZER}\"\n{more}\n\
         [limits]\nconnections_max = 100\nin_flight_max = 100\n{workers}"
    )
}

/// The findings of one machine or worker.
fn of<'a>(said: &'a str, name: &str) -> Vec<&'a str> {
    said.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[test]
fn a_model_without_a_template_and_an_encoder_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    std::fs::copy(format!("{TOKENIZER}/tokenizer.json"), place("tokenizer.json")).unwrap();
    let one = engine(|_| {});
    let config = before(&[&one], "").replace(TOKENIZER, folder.path().to_str().unwrap());
    for (config_json, words) in [
        (r#"{"model_type":"deepseek_v32"}"#, "chats of `m` by guesses"),
        (r#"{"model_type":"gpt_oss"}"#, "chats of `m` by the Harmony encoder"),
    ] {
        std::fs::write(place("config.json"), config_json).unwrap();
        let (is_well, said) = doctor("", &config);
        let found = of(&said, &format!("worker {}", one.url()));
        assert!(found.len() == 1 && found[0].ends_with(words), "{said}");
        assert!(found[0].starts_with("ok, ") && is_well, "{said}");
    }
}

#[test]
fn where_nothing_is_wrong_nothing_is_found() {
    let engines = [engine(|_| {}), engine(|config| config.wire = EngineWire::Sglang)];
    let (is_well, said) = doctor("", &before(&[&engines[0], &engines[1]], ""));
    let words = [
        "vLLM, m, 1 rank, endpoint of KV events, prefix caching, limit learned from load reports",
        "SGLang with its Rust server, m, 1 rank, endpoint of KV events, prefix caching, \
         limit 64 (declared)",
    ];
    for (engine, words) in engines.iter().zip(words) {
        let found = of(&said, &format!("worker {}", engine.url()));
        assert_eq!(found, [format!("ok, {words}")], "{said}");
    }
    // A machine of tests may have no io_uring.
    let others: Vec<_> =
        of(&said, "machine").into_iter().filter(|found| !found.starts_with("io_uring")).collect();
    assert!(others.iter().all(|found| found.starts_with("ok, ")), "{said}");
    assert_eq!(is_well, said.ends_with("nothing found\n"), "{said}");
}

#[test]
fn each_planted_fault_of_an_engine_is_found() {
    let engines = [
        engine(|config| (config.kv_events, config.replay) = (None, None)),
        engine(|config| config.prefix_caching = false),
        engine(|config| {
            config.wire = EngineWire::Sglang;
            config.prefix_caching = false;
        }),
        engine(|config| config.replay = None),
    ];
    let all: Vec<_> = engines.iter().collect();
    let gone = port_for_later();
    let text = before(&all, "rank_concurrency_max = 7")
        + &format!("[[worker]]\nurl = \"http://{gone}\"\n");
    let (is_well, said) = doctor("", &text);
    assert!(!is_well, "{said}");
    let found = |engine: &EngineHandle| of(&said, &format!("worker {}", engine.url())).join("\n");
    let [silent, forgetful, sglang, no_replay] = &engines;
    assert!(found(silent).starts_with("no KV events"), "{said}");
    assert!(found(silent).contains("--kv-events-config"), "{said}");
    assert!(found(forgetful).contains("--no-enable-prefix-caching"), "{said}");
    assert!(found(sglang).contains("--disable-radix-cache"), "{said}");
    assert!(found(no_replay).starts_with("no replay"), "{said}");
    assert!(found(silent).ends_with("\nis vLLM, m, 1 rank, prefix caching, limit 7 (configured)"));
    assert!(of(&said, &format!("worker http://{gone}"))[0].starts_with("not reached"), "{said}");
}

#[test]
fn events_behind_a_closed_port_and_a_wrong_tokenizer_are_found() {
    let closed = port_for_later();
    let other = bytes_only();
    let engine = engine(|_| {});
    let dir = other.path().display();
    let text = before(&[&engine], "")
        + &format!("model_dir = \"{dir}\"\nkv_events = [\"tcp://{closed}\"]\n");
    let (_, said) = doctor("", &text);
    let found = of(&said, &format!("worker {}", engine.url())).join("\n");
    assert!(found.contains(&format!("KV events at tcp://{closed} cannot be reached")), "{said}");
    assert!(found.contains("is not that of the engine's `m`"), "{said}");
}

/// The configuration, the file and a name may all lead to the same worker.
#[test]
fn a_worker_of_several_sources_has_a_single_line() {
    let [listed, of_file] = [(); 2].map(|()| engine(|_| {}));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.toml");
    let worker = |engine: &EngineHandle| format!("[[worker]]\nurl = \"{}\"\n", engine.url());
    std::fs::write(&file, worker(&listed) + &worker(&of_file)).unwrap();
    let names = [&listed, &of_file].map(EngineHandle::url);
    let sources = format!("[discovery]\nfile = {file:?}\ndns = {names:?}");
    let (_, said) = doctor("", &before(&[&listed], &sources));
    for name in names {
        assert_eq!(of(&said, &format!("worker {name}")).len(), 1, "{said}");
    }
}

/// A port that takes connections is not yet a ZeroMQ socket, nor the right kind of socket.
#[test]
fn events_at_a_port_of_another_kind_are_found() {
    // The configuration shows an HTTP port of a worker, and not the port of another server.
    let [engine, other] = [(); 2].map(|()| engine(|_| {}));
    let own = engine.url().replace("http:", "tcp:");
    let (_, said) = doctor("", &format!("{}kv_events = [\"{own}\"]\n", before(&[&engine], "")));
    assert!(said.contains(&format!("error: {own} is the HTTP port of {}", engine.url())), "{said}");
    let http = other.url().replace("http:", "tcp:");
    let replay = engine_endpoint(&engine, "replay_endpoint");
    let events = engine_endpoint(&engine, "endpoint");
    for (keys, what) in [
        (format!("kv_events = [\"{http}\"]"), format!("KV events at {http} cannot be read")),
        (format!("kv_events = [\"{replay}\"]"), format!("KV events at {replay} cannot be read")),
        (format!("replay = [\"{http}\"]"), format!("replay of KV events at {http} cannot be")),
        (format!("replay = [\"{events}\"]"), format!("replay of KV events at {events} cannot be")),
    ] {
        let (_, said) = doctor("", &format!("{}{keys}\n", before(&[&engine], "")));
        let found = of(&said, &format!("worker {}", engine.url())).join("\n");
        assert!(found.contains(&what) && found.contains("--kv-events-config"), "{keys}: {said}");
    }
    // The announced replay stays beside a configured publisher.
    let (_, said) = doctor("", &format!("{}kv_events = [\"{events}\"]\n", before(&[&engine], "")));
    let found = of(&said, &format!("worker {}", engine.url())).join("\n");
    assert!(found.starts_with("ok, "), "{said}");
}

/// Issue 39: workers with each other's endpoints, and an endpoint of two workers.
#[test]
fn suspect_kv_events_are_found() {
    let engines = [(); 2].map(|()| engine(|_| {}));
    let places = [&engines[0], &engines[1]].map(|engine| engine_endpoint(engine, "endpoint"));
    let [first, second] = &places;
    let found = |endpoints: [&String; 2]| {
        let tables = engines.iter().zip(endpoints).map(|(engine, endpoint)| {
            format!("[[worker]]\nurl = \"{}\"\nkv_events = [\"{endpoint}\"]\n", engine.url())
        });
        let (_, said) = doctor("", &(before(&[], "") + &tables.collect::<String>()));
        let worker = format!("worker {}", engines[0].url());
        of(&said, &worker).join("\n")
    };
    let other = engines[1].url();
    let crossed = found([second, first]);
    let cause = format!("{second} has the KV events of {other}");
    assert!(
        crossed.contains(&cause) && crossed.contains(&format!("announces {first}")),
        "{crossed}"
    );
    let shared = found([second, second]);
    assert!(shared.contains(&format!("{second} is followed for {other} too")), "{shared}");
    assert!(found([first, second]).starts_with("ok, "));
}

/// Issue 39: keys that the engine contradicts had the help of other faults, or none.
#[test]
fn keys_that_the_engine_contradicts_are_named_with_the_right_value() {
    let engine = engine(|_| {});
    let base = before(&[&engine], "");
    let found = |keys: &str| {
        let (_, said) = doctor("", &format!("{base}{keys}\n"));
        of(&said, &format!("worker {}", engine.url())).join("\n")
    };
    for (keys, what, help, misleading) in [
        ("ranks = 3", "`ranks` is 3, and the engine has 1", "`ranks = 1`", "start vLLM"),
        (
            "models = [\"x\"]",
            "`models` has \"x\", and the engine lists \"m\"",
            "or remove",
            "model_dir",
        ),
        ("engine = \"sglang\"", "`engine` is \"sglang\"", "correct `engine`", "role"),
        (
            "engine = \"sglang\"\nrole = \"both\"",
            "`engine` is \"sglang\"",
            "`engine = \"vllm\"`",
            "start SGLang",
        ),
        ("health_path = \"/nowhere\"", "fails its health check", "correct `health_path`", "`url`"),
    ] {
        let found = found(keys);
        assert!(found.contains(what) && found.contains(help), "{keys}: {found}");
        assert!(!found.contains(misleading), "{keys}: {found}");
    }
    let alias = "[[model]]\nname = \"chat\"\nto = \"gone\"";
    let (_, said) = doctor("", &format!("{base}{alias}\n"));
    let line = "[[model]] \"chat\": `to` is \"gone\", which no worker serves. help: correct `to`";
    assert!(said.contains(line) && said.ends_with("1 finding\n"), "{said}");
}

/// An endpoint that the engine reports.
pub(crate) fn engine_endpoint(engine: &EngineHandle, key: &str) -> String {
    let sources = get(engine.addr(), "/kv_event_sources");
    let sources: serde_json::Value = serde_json::from_slice(&sources.body).unwrap();
    sources["0"][key].as_str().expect(key).replace("//*:", "//127.0.0.1:")
}

#[test]
fn each_planted_fault_of_the_machine_is_found() {
    let engine = engine(|_| {});
    let text = before(&[&engine], "");
    let (_, said) = doctor("ulimit -n 200; ", &text);
    assert!(of(&said, "machine").join("\n").contains("200 open files are allowed"), "{said}");
    let (_, said) = doctor("", &text.replace("cores = [0]", "cores = [0, 4095]"));
    let found = of(&said, "machine").join("\n");
    assert!(found.contains("`cores`: this process may not use core 4095"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (_, said) = doctor("", &format!("listen = \"{address}\"\n{text}"));
    let found = of(&said, "machine").join("\n");
    let process = format!("process {} (", std::process::id());
    assert!(found.contains(&format!("`listen` {address} is in use: {process}")), "{said}");
    let (is_well, said) = doctor("", "polcy = \"kv\"\n");
    assert!(!is_well && said.contains("did you mean `policy`"), "{said}");
}

#[test]
fn a_router_that_runs_is_no_fault_with_tls_too() {
    let certificates = Certificates::new();
    let pair = certificates.sign("router", &["localhost"]);
    let engine = engine(|_| {});
    let text = before(&[&engine], "");
    for tls in [String::new(), format!("[tls]\ncert = {:?}\nkey = {:?}\n", pair.cert, pair.key)] {
        let router = RouterProcess::configured(&format!("{text}{tls}"));
        until("it is ready", || get(router.admin, "/readyz").status == 200);
        let listen = format!("listen = \"{}\"\n", router.listen);
        let admin = format!("admin = \"{}\"\n", router.admin);
        let (_, said) = doctor("", &format!("{listen}{admin}{text}{tls}"));
        assert!(!said.contains("in use"), "{said}");
        // A certificate of a private authority is sent alone, and is right.
        let note = "ok, \"localhost\" is sent alone: clients have to trust its issuer";
        assert_eq!(said.contains(note), !tls.is_empty(), "{said}");
        // Issue 39: a router of another configuration was silent.
        let (_, said) = doctor("", &format!("{listen}{text}{tls}"));
        let process = format!(": process {} (", router.process());
        let what = format!("`listen` {} is in use by a router with another `admin`", router.listen);
        assert!(said.contains(&format!("machine: {what}{process}")), "{said}");
        assert_eq!(router.logged("upgrade"), 0, "{}", router.log());
    }
}

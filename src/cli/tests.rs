//! Tests of the command line.

use super::*;
use clap::error::ErrorKind;
use forebay_config::{Policy, all_keys, load};
use forebay_sim_engine::{EngineRefusal, EngineRole, EngineWire, KvConnector};
use std::time::Duration;

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace())
}

fn serve(line: &str) -> commands::serve::ServeArgs {
    match parse(line).unwrap().command {
        Command::Serve(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    CommandLine::command().debug_assert();
}

#[test]
fn every_documented_flag_of_serve_is_taken() {
    let args = serve(
        "forebay serve --listen 127.0.0.1:1 --admin 127.0.0.1:2 --cores 0,1 --worker http://a:1 --worker http://b:1 \
         --engine vllm --health off --kv-events - --kv-events tcp://b:5557 --policy round_robin \
         --rank-concurrency-max 8 --queue-mode endpoint --queue-depth-max 3 --queue-wait-max 10s \
         --rejection-window 1s --nats nats://127.0.0.1:4222",
    );
    let loaded = load(None, &args.flags());
    assert_eq!(loaded.findings, []);
    assert_eq!(loaded.config.cores, [0, 1]);
    assert_eq!(loaded.config.policy, Policy::RoundRobin);
    assert_eq!(loaded.config.workers.len(), 2);
    assert_eq!(loaded.config.workers[1].kv_events, ["tcp://b:5557"]);
    assert_eq!(loaded.config.flow.rank_concurrency_max, Some(8));
}

#[test]
fn every_key_with_a_flag_is_completed_and_in_the_man_page() {
    let mut script = Vec::new();
    clap_complete::generate(clap_complete::Shell::Bash, &mut definition(), "forebay", &mut script);
    let script = String::from_utf8(script).unwrap();
    let folder = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(definition(), folder.path()).unwrap();
    let page = std::fs::read_to_string(folder.path().join("forebay-serve.1")).unwrap();
    let flags: Vec<_> = all_keys().iter().filter_map(|entry| entry.key.flag).collect();
    assert!(flags.len() > 15, "{flags:?}");
    for flag in flags {
        assert!(script.contains(&format!("--{} ", flag.name)), "{}", flag.name);
        assert!(page.contains(&flag.name.replace('-', "\\-")), "{}", flag.name);
    }
    assert!(script.contains("round_robin"), "words are completed");
}

#[test]
fn an_unknown_command_is_reported() {
    assert_eq!(parse("forebay tap").unwrap_err().kind(), ErrorKind::InvalidSubcommand);
}

/// Issue 39: `--prefill URL PORT`, as SGLang's router takes it, had no hint.
#[test]
fn values_behind_a_flag_of_another_router_have_a_hint() {
    let hint = |line: &str| {
        let mut error = parse(line).unwrap_err();
        super::suggest_flag(&mut error, &definition(), line.split(' ').nth(1));
        error.to_string()
    };
    for port in ["9001", "none"] {
        let shown = hint(&format!("forebay serve --prefill http://a:1 {port} --decode http://b:1"));
        assert!(shown.contains("tip: leave out the bootstrap port"), "{shown}");
    }
    let shown = hint("forebay serve --worker http://a:1 http://b:1");
    assert!(shown.contains("--worker URL --worker URL"), "{shown}");
    let shown = hint("forebay serve --workers http://a:1");
    assert!(shown.contains("--worker") && !shown.contains("tip: give each"), "{shown}");
}

#[test]
fn the_engine_takes_every_documented_flag() {
    let line = "forebay engine --listen 127.0.0.1:1 --model m --wire vllm --ranks 2 --kv-events tcp://127.0.0.1:5557 \
                --replay tcp://127.0.0.1:5657 --kv-blocks 9 --block-size 16 --concurrency 3 \
                --prefill-tokens-per-s 1000 --itl-ms 2.5 --role both \
                --queued-max 0 --refuse 429 --dev-mode --log-times f";
    let Command::Engine(args) = parse(line).unwrap().command else { panic!("not an engine") };
    let config = args.config();
    assert!(config.check().is_ok());
    assert_eq!((config.ranks, config.kv_blocks, config.block_size), (2, 9, 16));
    assert_eq!((config.concurrency, config.model.as_deref()), (3, Some("m")));
    assert_eq!((config.queued_max, config.refusal), (Some(0), EngineRefusal::TooMany));
    assert!(config.dev_mode && config.log_times.is_some());
    let line = "forebay engine --listen 127.0.0.1:1 --wire sglang --role prefill --bootstrap-port 8998 \
                --register-after 2s --bootstrap-timeout 1m --waiting-timeout 30s --prefill-lost-after 5s \
                --abort-on-close-after 0s --kv-connector nixl-push --engine-id E --kv-lease 10s --push-timeout 1m \
                --kv-load-timeout 250ms";
    let Command::Engine(args) = parse(line).unwrap().command else { panic!("not an engine") };
    let config = args.config();
    assert_eq!((config.wire, config.role), (EngineWire::Sglang, EngineRole::Prefill));
    let transfer = config.transfer;
    assert_eq!(transfer.bootstrap_port, Some(8_998));
    assert_eq!(transfer.vllm.connector, KvConnector::NixlPush);
    assert_eq!(transfer.vllm.kv_load_timeout, Duration::from_millis(250));
    assert_eq!(transfer.sglang.abort_on_close_after, Some(Duration::ZERO));
    assert!(parse("forebay engine").is_err(), "--listen is needed");
    assert!(parse("forebay engine --listen 127.0.0.1:1 --refuse 500").is_err());
    assert!(parse("forebay demo --seconds 10 --json f").is_ok());
    assert!(parse("forebay demo --seconds 0").is_err());
}

#[test]
fn check_reports_every_finding_and_an_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forebay.toml");
    let report = |text: &str, more: &str| {
        std::fs::write(&path, text).unwrap();
        let line = format!("forebay check -c {} {more}", path.display());
        let Command::Check(args) = parse(&line).unwrap().command else { panic!("not a check") };
        let mut out = Vec::new();
        let code = commands::check::report(&args, &mut out).unwrap();
        (format!("{code:?}"), String::from_utf8(out).unwrap())
    };
    let (code, out) = report("lisen = 1\n[[worker]]\nurl = \"x\"\n", "");
    assert_eq!(code, format!("{:?}", ExitCode::FAILURE));
    assert!(
        out.contains("forebay.toml:1:1: error: unknown key `lisen`. help: did you mean `listen`?"),
        "{out}"
    );
    assert!(out.contains("forebay.toml:3:7: error: `url` \"x\""), "{out}");
    assert!(out.ends_with("forebay.toml: 2 errors, 0 warnings\n"), "{out}");

    let (code, out) = report("[[worker]]\nurl = \"http://a:1\"\napi_key = \"hidden\"\n", "--print");
    assert_eq!(code, format!("{:?}", ExitCode::SUCCESS));
    assert!(out.contains("ok, 1 worker\n") && out.contains("policy = \"kv\""), "{out}");
    assert!(!out.contains("hidden"));

    let (code, out) = report("cores = [0, 4095]\n[[worker]]\nurl = \"http://a:1\"\n", "");
    assert_eq!(code, format!("{:?}", ExitCode::SUCCESS), "another machine may have the core");
    let warning = "forebay.toml:1:9: warning: `cores`: this process may not use core 4095. help: ";
    assert!(out.contains(warning) && out.ends_with("0 errors, 1 warning\n"), "{out}");

    let file = dir.path().join("workers.toml");
    let by_file = format!("[discovery]\nfile = {file:?}\ndns = [\"http://engines:8000\"]\n");
    let (code, out) = report(&by_file, "");
    assert_eq!(code, format!("{:?}", ExitCode::FAILURE), "{out}");
    assert!(out.contains("workers.toml cannot be read: No such file"), "{out}");
    std::fs::write(&file, "[[worker]]\nurll = \"http://a:1\"\n").unwrap();
    let (code, out) = report(&by_file, "");
    assert_eq!(code, format!("{:?}", ExitCode::FAILURE), "{out}");
    assert!(out.contains("workers.toml:2:1: error: unknown key `worker.urll`"), "{out}");
    std::fs::write(&file, "[[worker]]\nurl = \"http://a:1\"\n").unwrap();
    let (code, out) = report(&by_file, "--print");
    assert_eq!(code, format!("{:?}", ExitCode::SUCCESS), "{out}");
    let sum = format!("ok, 1 worker of {}, workers of http://engines:8000\n", file.display());
    assert!(out.contains(&sum) && !out.contains("http://a:1"), "{out}");

    let Command::Check(args) = parse("forebay check -c /nonexistent").unwrap().command else {
        panic!()
    };
    assert!(
        commands::check::report(&args, &mut Vec::new())
            .unwrap_err()
            .contains("cannot read /nonexistent")
    );
}

#[test]
fn top_takes_every_documented_flag() {
    assert!(parse("forebay top --router https://r:9090 --once --token-file t --ca-file c").is_ok());
    let Command::Top(args) = parse("forebay top --router ftp://r").unwrap().command else {
        panic!("not a top")
    };
    assert!(commands::top::checked(&args).err().unwrap().contains("http://"));
}

#[test]
fn record_and_replay_take_every_documented_flag() {
    let line = "forebay record --from tcp://a:1 --from ipc:///b --topic kv@ --seconds 3 --out f";
    let Command::Record(args) = parse(line).unwrap().command else { panic!("not a record") };
    assert_eq!((args.from.len(), args.topic.as_str(), args.seconds), (2, "kv@", Some(3)));
    for bad in ["--out f", "--from tcp://a:1", "--from tcp://a:1 --out f --seconds 0"] {
        assert!(parse(&format!("forebay record {bad}")).is_err(), "{bad}");
    }
    let line =
        "forebay replay f --speed 2.5 --publish tcp://127.0.0.1:1 --subscribers 2 --linger 3";
    assert!(parse(line).is_ok());
    for bad in ["", "f --speed 0", "f --linger 3", "f --publish tcp://a:1 --model-dir d"] {
        assert!(parse(&format!("forebay replay {bad}")).is_err(), "{bad}");
    }
}

#[test]
fn replay_prints_its_result_and_reports_a_truncated_file() {
    use forebay_record::{FileWriter, RecordedMessage, RecordingHeader, SourceKind, SourceName};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.kvrec");
    let source = SourceName {
        endpoint: "tcp://gpu1:5557".to_owned(),
        topic: String::new(),
        kind: SourceKind::Events,
    };
    let header = RecordingHeader { started_unix_ns: 1_000_000_000, sources: vec![source] };
    let mut writer = FileWriter::create(&path, &header).unwrap();
    let mut payload =
        b"\x92\xca\0\0\0\0\x91\x95\xabBlockStored\x91\x01\xc0\x94\x05\x06\x07\x08\x04".to_vec();
    let stored: [&[u8]; 3] = [b"", &0_u64.to_be_bytes(), &payload.clone()];
    writer.push(&RecordedMessage::new(5, 0, &stored).unwrap()).unwrap();
    writer.flush().unwrap();
    payload.truncate(9);
    let broken: [&[u8]; 3] = [b"", &1_u64.to_be_bytes(), &payload];
    writer.push(&RecordedMessage::new(2_500_000_000, 0, &broken).unwrap()).unwrap();
    writer.finish().unwrap();
    let replay = |more: &str| {
        let line = format!("forebay replay {} {more}", path.display());
        let Command::Replay(args) = parse(&line).unwrap().command else { panic!("not a replay") };
        let mut out = Vec::new();
        commands::replay::replayed(&args, &mut out).map(|()| String::from_utf8(out).unwrap())
    };
    let out = replay("--speed max").unwrap();
    for line in [
        "2 messages of 1 sources in 2.500 s, 0 lost connections, recorded at 1970-01-01T00:00:01Z",
        "events stored applied: 1\n",
        "batches refused: 1\n",
        // An undecodable event may be a removal, so earlier blocks no longer count.
        "ranks reset by undecodable: 1\n",
        "rank 0 tcp://gpu1:5557: 0 blocks of 4 tokens\n",
        " entries (2 at most) in ",
        "ns per event, 2 operations",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let with_text = replay("--model-dir tests/data/tokenizer").unwrap();
    assert!(with_text.contains("0 blocks of 4 tokens"), "{with_text}");

    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    let out = replay("").unwrap();
    assert!(
        out.contains("1 messages of")
            && out.contains("1 blocks of 4 tokens")
            && out.contains("the recording ends early, at byte"),
        "{out}"
    );
    std::fs::remove_file(&path).unwrap();
    let notes = SourceName { kind: SourceKind::Requests, ..header.sources[0].clone() };
    let header = RecordingHeader { sources: vec![notes], ..header };
    FileWriter::create(&path, &header).unwrap().finish().unwrap();
    for more in ["", "--publish tcp://127.0.0.1:1"] {
        let error = replay(more).unwrap_err();
        assert!(error.contains("no KV events: read it by `forebay explain"), "{error}");
    }
    std::fs::write(&path, b"GIF89a").unwrap();
    let error = replay("").unwrap_err();
    assert!(error.contains("a.kvrec: not a recording of KV events"), "{error}");
    assert!(replay("--publish udp://x").is_err());
}

/// The library compares letters, and named `--queue-mode`.
#[test]
fn an_unknown_flag_has_the_flag_of_its_words() {
    for (wrong, near) in [
        ("--max-queue-depth", "--queue-depth-max"),
        ("--queue-depth", "--queue-depth-max"),
        ("--loglevel", "--log-level"),
        ("--kv-event", "--kv-events"),
        ("--port", "--listen"),
        ("--bind-addr", "--listen"),
    ] {
        let Err(mut error) = parse(&format!("forebay serve {wrong} 5")) else { panic!("{wrong}") };
        super::suggest_flag(&mut error, &super::definition(), Some("serve"));
        let text = error.to_string();
        assert!(text.contains(&format!("'{near}'")), "{text}");
    }
}

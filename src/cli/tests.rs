//! The command line as people type it.

use super::*;
use crate::config::{Policy, load};
use clap::CommandFactory;
use clap::error::ErrorKind;

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace())
}

fn serve(line: &str) -> serve::ServeArgs {
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
         --rank-concurrency-max 8 --queue-mode off",
    );
    let loaded = load(None, &args.flags());
    assert_eq!(loaded.findings, []);
    assert_eq!(loaded.config.cores, [0, 1]);
    assert_eq!(loaded.config.policy, Policy::RoundRobin);
    assert_eq!(loaded.config.workers.len(), 2);
    assert_eq!(loaded.config.workers[1].kv_events, ["tcp://b:5557"]);
    assert_eq!(loaded.config.rank_concurrency_max, 8);
}

#[test]
fn what_is_not_built_is_said_so() {
    for flag in [
        "--queue-mode pool",
        "--queue-mode endpoint",
        "--queue-depth-max 3",
        "--queue-wait-max 10s",
        "--rejection-window 1s",
        "--nats nats://127.0.0.1:4222",
        "--policy session",
    ] {
        let args = serve(&format!("forebay serve --worker http://a:1 {flag}"));
        let found = load(None, &args.flags()).findings;
        assert_eq!(found.len(), 1, "{flag}");
        assert!(found[0].what.contains("not available in this version"), "{flag}: {}", found[0]);
    }
    for command in ["simulate", "record", "replay", "top"] {
        assert_eq!(
            parse(&format!("forebay {command}")).unwrap_err().kind(),
            ErrorKind::InvalidSubcommand
        );
    }
}

#[test]
fn the_engine_takes_every_documented_flag() {
    let line = "forebay engine --listen 127.0.0.1:1 --model m --wire vllm --ranks 2 --kv-events tcp://127.0.0.1:5557 \
                --replay tcp://127.0.0.1:5657 --kv-blocks 9 --block-size 16 --concurrency 3 \
                --prefill-tokens-per-s 1000 --itl-ms 2.5 --role both";
    let Command::Engine(args) = parse(line).unwrap().command else { panic!("not an engine") };
    let config = args.config();
    assert!(config.check().is_ok());
    assert_eq!((config.ranks, config.kv_blocks, config.block_size), (2, 9, 16));
    assert_eq!((config.concurrency, config.model.as_deref()), (3, Some("m")));
    assert!(parse("forebay engine").is_err(), "--listen is needed");
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
        let code = check::report(&args, &mut out).unwrap();
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
    assert!(out.contains("ok, 1 workers") && out.contains("policy = \"kv\""), "{out}");
    assert!(!out.contains("hidden"));

    let Command::Check(args) = parse("forebay check -c /nonexistent").unwrap().command else {
        panic!()
    };
    assert!(
        check::report(&args, &mut Vec::new()).unwrap_err().contains("cannot read /nonexistent")
    );
}

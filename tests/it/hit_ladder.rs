//! Requests of a router in a recording, and where the hits of the recording went.

use crate::kv_routing::{Person, engine, follow, kv_router, settle};
use crate::rig::{any_port, until};
use forebay::engine::EngineHandle;
use forebay::record::{FileReader, RequestNote};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

/// All that is in the file by now.
fn notes(path: &Path) -> Vec<Vec<u8>> {
    let mut notes = Vec::new();
    let Ok(mut reader) = FileReader::open(path) else { return notes };
    while let Ok(end) = reader.next_chunk() {
        let frames = reader.messages().filter_map(|message| message.frames().first().copied());
        notes.extend(frames.map(<[u8]>::to_vec));
        if end.is_some() {
            break;
        }
    }
    notes
}

/// What `forebay explain` says.
fn explained(path: &Path) -> Value {
    let said = Command::new(PROGRAM).args(["explain", "--json", "--recording"]).arg(path).output();
    let said = said.expect("the program runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).expect("JSON")
}

#[test]
fn a_recording_of_requests_has_the_hits_that_engines_tell_and_no_text() {
    let engines = [engine(any_port(), 1), engine(any_port(), 1)];
    let both: [&EngineHandle; 2] = [&engines[0], &engines[1]];
    let handle = kv_router(&both, vec![0]);
    let lost = follow(&handle, &both);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.kvrec");
    let mut recorder = Command::new(PROGRAM)
        .args(["record", "--router", &format!("http://{}", handle.admin), "--out"])
        .arg(&path)
        .stdout(Stdio::null())
        .spawn()
        .expect("the program runs");
    let is_list = |note: &Vec<u8>| matches!(RequestNote::decode(note), Some(RequestNote::Ranks(_)));
    until("the router tells of its ranks", || notes(&path).iter().any(is_list));
    let mut cached = 0;
    let mut turns = 0;
    let mut people = ["first", "second"].map(|name| Person::new(handle.listen, name));
    for turn in 0..3 {
        for person in &mut people {
            cached += person.ask(&format!("Question {turn}?")).1;
            settle(&handle, &both, lost);
            turns += 1;
        }
    }
    let is_end = |note: &Vec<u8>| matches!(RequestNote::decode(note), Some(RequestNote::Ended(_)));
    until("the last end is in the file", || {
        notes(&path).iter().filter(|note| is_end(note)).count() == turns
    });
    let pid = Pid::from_child(&recorder);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert!(recorder.wait().expect("it ends").success());
    for note in notes(&path) {
        assert!(!note.windows(10).any(|part| part == b"Rule about"), "text in a recording");
    }
    let ladder = explained(&path);
    assert_eq!(ladder["requests"], turns, "{ladder}");
    assert_eq!(ladder["rungs"]["reached"]["tokens"], cached, "{ladder}");
    let possible = ladder["rungs"]["possible"]["tokens"].as_u64().unwrap();
    let steps = ladder["steps"].as_object().unwrap().values();
    let sum: i64 = steps.map(|step| step.as_i64().unwrap()).sum();
    assert_eq!(i64::try_from(possible).unwrap() - i64::try_from(cached).unwrap(), sum);
    // Each person's turns follow each other on one rank, and nothing had to go: what was possible,
    // but for parts that end elsewhere than blocks. These prompts are short: about 7 parts each.
    let prompts = ladder["prompt_tokens"].as_u64().unwrap();
    assert!(possible > prompts / 3 && sum.unsigned_abs() < prompts / 5, "{ladder}");
}

//! Replays the seed corpora through the fuzzers' checks, then small changes of them: every rule
//! that a fuzz target watches is also a test of the stable tool chain.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops where it finds a fault"
)]

use proptest::collection;
use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::select;
use std::path::Path;

#[path = "../../fuzz/checks/chat_encoder.rs"]
mod chat_encoder;
#[path = "../../fuzz/checks/kv_transfer.rs"]
pub(crate) mod kv_transfer;
#[path = "../../fuzz/checks/config.rs"]
mod config;
#[path = "../../fuzz/checks/http_body.rs"]
mod http_body;
#[path = "../../fuzz/checks/http_head.rs"]
mod http_head;
#[path = "../../fuzz/checks/index_events.rs"]
mod index_events;
#[path = "../../fuzz/checks/form.rs"]
mod form;
#[path = "../../fuzz/checks/json_scan.rs"]
pub(crate) mod json_scan;

#[path = "../../fuzz/checks/kv_decode.rs"]
mod kv_decode;
#[path = "../../fuzz/checks/load_report.rs"]
mod load_report;
#[path = "../../fuzz/checks/mid_stream.rs"]
mod mid_stream;
#[path = "../../fuzz/checks/proxy_header.rs"]
mod proxy_header;
#[path = "../../fuzz/checks/recording.rs"]
mod recording;
#[path = "../../fuzz/checks/replica.rs"]
mod replica;
#[path = "../../fuzz/checks/snapshot.rs"]
mod snapshot;
#[path = "../../fuzz/checks/srv_answer.rs"]
mod srv_answer;
#[path = "../../fuzz/checks/tls.rs"]
mod tls;
#[path = "../../fuzz/checks/token.rs"]
mod token;
#[path = "../../fuzz/checks/usage.rs"]
mod usage;
#[path = "../../fuzz/checks/zmtp.rs"]
mod zmtp;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "{target} has too few seeds");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Cuts, doubles, drops and overwrites bytes of a seed, each edit taken from one word.
fn changed(seed: &[u8], edits: &[u32]) -> Vec<u8> {
    const TEMPTING: &[u8] = b"\r\n\0 \t:;,\"\\{}[]0f\x7f\xff/-eu";
    let mut bytes = seed.to_vec();
    for edit in edits {
        let at = usize::try_from(edit >> 8).unwrap() % (bytes.len() + 1);
        let byte = TEMPTING[usize::try_from(edit >> 3 & 0x1f).unwrap() % TEMPTING.len()];
        match edit & 7 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => bytes[at] = byte,
            4 if at < bytes.len() => bytes[at] ^= 1 << (edit >> 3 & 7),
            5 => {
                let tail = bytes[at..].to_vec();
                bytes.truncate((at + tail.len().min(16)).min(bytes.len()));
                bytes.extend(tail);
            }
            _ => bytes.insert(at, b"\r\n"[usize::try_from(edit >> 3 & 1).unwrap()]),
        }
    }
    bytes
}

macro_rules! target {
    ($name:ident) => {
        mod $name {
            use super::{ProptestConfig, any, changed, proptest, seeds};

            #[test]
            fn seeds_hold() {
                for seed in seeds(stringify!($name)) {
                    super::super::$name::check(&seed);
                }
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

                #[test]
                fn changed_seeds_hold(
                    edits in proptest::collection::vec(any::<u32>(), 1..4),
                    pick in any::<usize>(),
                ) {
                    let seeds = seeds(stringify!($name));
                    for offset in 0..16 {
                        let seed = &seeds[(pick % seeds.len() + offset) % seeds.len()];
                        super::super::$name::check(&changed(seed, &edits));
                    }
                }

                #[test]
                fn any_bytes_hold(bytes in any::<Vec<u8>>()) {
                    super::super::$name::check(&bytes);
                }
            }
        }
    };
}

mod replay {
    use super::{ProptestConfig, any, changed, proptest, seeds};

    target!(chat_encoder);
    target!(http_head);
    target!(http_body);
    target!(json_scan);
    target!(form);
    target!(kv_transfer);
    target!(kv_decode);
    target!(load_report);
    target!(mid_stream);
    target!(proxy_header);
    target!(config);
    target!(recording);
    target!(replica);
    target!(snapshot);
    target!(srv_answer);
    target!(index_events);
    target!(tls);
    target!(token);
    target!(usage);
    target!(zmtp);
}

/// Parameters of a part that readers of different kinds may take apart in different ways.
fn parameters() -> impl Strategy<Value = String> {
    let name = select(&["name", "filename", "filename*", "name*", "x", "size", "xname"][..]);
    const WORDS: [&str; 13] = [
        "model",
        "name",
        "file",
        "=",
        ";",
        " ",
        "\\\"",
        "\\\\",
        "\\",
        "a",
        "name=model",
        "; name=\"",
        "%22",
    ];
    let value = collection::vec(select(&WORDS[..]).prop_map(str::to_owned), 0..4);
    let parameter = (name, value, any::<bool>()).prop_map(|(name, value, is_quoted)| {
        let value = value.concat();
        if is_quoted { format!("; {name}=\"{value}\"") } else { format!(";{name}={value}") }
    });
    collection::vec(parameter, 0..3).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// Issue 35: a form is refused where readers of quotes and escapes differ, and only there.
    #[test]
    fn readers_of_forms_agree(
        before in parameters(),
        name in select(&["name=model", "name=\"model\"", "name=\"file\""][..]),
        behind in parameters(),
    ) {
        let head = format!("Content-Disposition: form-data{before}; {name}{behind}");
        form::check(format!("\r\n--b\r\n{head}\r\n\r\nm\r\n--b--\r\n\r\n").as_bytes());
    }
}

//! Any bytes as a name server's answer about SRV records. Must hold: an accepted answer is one to
//! the question, and has the targets that a plain reading of its records finds.

use forebay_config::WorkerUrl;
use forebay_discovery::{srv_answer, srv_question};
use std::collections::BTreeSet;

/// Panics when a rule above is broken. After a first byte of 255 comes the whole message; else
/// flags, the count of records, and what follows the question.
pub(crate) fn check(data: &[u8]) {
    let question = srv_question(0x1234, "_http._tcp.engines.example").expect("a name");
    let message = match *data {
        [255, ref whole @ ..] => whole.to_vec(),
        [flags, more_flags, count, ref rest @ ..] => {
            let mut message = question.clone();
            message[2] = flags;
            message[3] = more_flags;
            message[7] = count;
            message.extend(rest);
            message
        }
        _ => data.to_vec(),
    };
    let Ok(said) = srv_answer(&question, &message) else { return };
    assert_eq!(message[..2], question[..2], "another question's");
    assert_eq!((message[2] & 0x82, message[3] & 0x0f), (0x80, 0), "no whole answer");
    assert!(said.targets.is_sorted_by(|a, b| a < b), "not sorted, or one twice");
    let (found, ttl) = records(&message, question.len());
    let targets = said.targets.iter().map(|target| (target.host.clone(), target.port));
    assert_eq!(targets.collect::<BTreeSet<_>>(), found);
    assert!(!found.is_empty());
    assert_eq!(said.ttl.as_secs(), ttl);
    for target in &said.targets {
        let url = format!("http://{}:{}", target.host, target.port);
        assert!(WorkerUrl::parse(&url).is_ok(), "{url}");
    }
}

/// Targets of the SRV records, and the least time that they hold.
fn records(message: &[u8], mut at: usize) -> (BTreeSet<(String, u16)>, u64) {
    let count = u16::from_be_bytes([message[6], message[7]]);
    let mut found = BTreeSet::new();
    let mut least = u64::MAX;
    for _ in 0..count {
        while message[at] != 0 && message[at] < 0xc0 {
            at += 1 + usize::from(message[at]);
        }
        at += if message[at] == 0 { 1 } else { 2 };
        let field = |place: usize| {
            u64::from(u16::from_be_bytes([message[at + place], message[at + place + 1]]))
        };
        let kind = field(0);
        let class = field(2);
        let length = field(8);
        let ttl = field(4) << 16 | field(6);
        if (kind, class) == (33, 1) {
            least = least.min(if ttl >= 1 << 31 { 0 } else { ttl });
            let port = u16::try_from(field(14)).expect("two bytes");
            let host = labels(message, at + 16, 0).join(".").to_ascii_lowercase();
            if port > 0 && !host.is_empty() {
                found.insert((host, port));
            }
        }
        at += 10 + usize::try_from(length).expect("two bytes");
    }
    (found, least)
}

/// The labels from there on. Whoever accepts a name that leads in a circle is caught here.
fn labels(message: &[u8], at: usize, followed: usize) -> Vec<String> {
    assert!(followed < 256, "a name leads in a circle");
    let length = usize::from(message[at]);
    match length {
        0 => Vec::new(),
        0xc0.. => {
            let place = (length & 0x3f) << 8 | usize::from(message[at + 1]);
            labels(message, place, followed + 1)
        }
        _ => {
            let label = String::from_utf8_lossy(&message[at + 1..at + 1 + length]).into_owned();
            let mut all = vec![label];
            all.extend(labels(message, at + 1 + length, followed + 1));
            all
        }
    }
}

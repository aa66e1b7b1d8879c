//! Messages between replicas, and their encoding. Sans-IO.
//!
//! # Subjects
//! | subject | when | content |
//! |---|---|---|
//! | `<prefix>.v1.window` | a rejection window opens or closes | `windows`: only these changed |
//! | `<prefix>.v1.load` | every second (`full`), and after a change | `ranks` and open `windows` |
//! | `<prefix>.v1.hello` | a replica started, or reconnected | nothing more |
//! | `<prefix>.v1.bye` | a replica drains | nothing more; it is removed at once |
//!
//! A full load has all ranks and all open windows. A change is sent within milliseconds. All
//! replicas answer a `hello` with a full load.
//!
//! The version is in the subject: messages of other versions do no harm and are counted. Within a
//! version, fields are only ever added; unknown fields are ignored and counted.
//!
//! # Messages
//! JSON: an operator can read it with `nats sub 'forebay.>'`, any language can write it, and at a
//! few hundred messages a second it costs as much as some requests. `replica` is a process (random,
//! new with each start), `name` is for operators, `seq` counts the messages of that process,
//! whatever their subject. Times are relative, so clocks need not agree.
//!
//! A window opens, and another closes early:
//! ```json
//! {"replica":"5be1c0ffee15600d","name":"router-a","seq":17,
//!  "windows":[{"models":["llama","llama-lora"],"remaining_ms":1000}]}
//! {"replica":"5be1c0ffee15600d","name":"router-a","seq":18,
//!  "windows":[{"models":["llama","llama-lora"],"remaining_ms":0}]}
//! {"replica":"5be1c0ffee15600d","name":"router-a","seq":20,
//!  "prefill_windows":[{"models":["llama"],"remaining_ms":700}]}
//! ```
//! `hand_ms` of a window is the rest for which an operator holds it open, up to `remaining_ms`. A
//! replica without that field takes the window for a full queue's:
//! ```json
//! {"replica":"5be1c0ffee15600d","name":"router-a","seq":21,
//!  "windows":[{"models":["llama"],"remaining_ms":600000,"hand_ms":600000}]}
//! ```
//! Windows of ranks that serve the prefill leg are in `prefill_windows` instead. A pool is named by
//! its models, an engine's rank by the authority of its worker's URL and its `dp` number: replicas
//! have to be configured with the same URLs. Load:
//! ```json
//! {"replica":"5be1c0ffee15600d","name":"router-a","seq":19,"heard":[["00000000000000a7",230]],
//!  "ranks":[{"worker":"10.0.0.5:8000","dp":0,"prefill":512,
//!            "places":{"held":3,"max":4,"claim":4,"want":5,"grants":[[1,0]]},
//!            "kv":{"held":9000,"max":64000,"claim":32000,"want":17000,"by":1}}]}
//! ```
//! - `heard`: for each replica, the `seq` up to which all its messages were received and applied.
//!   It counts only if no message of the sender is missing since its last full message, as it
//!   determines which grants the sender's last claims respond to. In the members below, 0 is the
//!   sender, 1 the first replica of `heard`, and so on.
//! - `held`: requests (`places`) or tokens (`kv`) of this replica there. `max`: the rank's total
//!   limit; 0 or absent: no limit, and the next four are meaningless.
//! - `claim`: the sender will not exceed this before its next message about the rank. `want`: its
//!   demand; above `max`: it needs the whole rank.
//! - `by`: the rank's steward in the sender's view. `grants`: grants of the sender as steward, by
//!   replica.
//! - `prefill`: prompt tokens sent and not yet answered. Other replicas add them to the rank's
//!   queue.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use thiserror::Error;

/// Longest message that is read or written.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Longest name of a replica, worker or model.
const NAME_BYTES_MAX: usize = 512;
/// Part of every subject.
pub(crate) const VERSION: &str = "v1";

/// Identifies a process of a replica.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(pub u64);

/// Kind of a message: the last word of its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// A window opens or closes.
    Window,
    /// The sender's load on its ranks.
    Load,
    /// The sender has started, or reconnected.
    Hello,
    Bye,
}

/// A message of any kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) replica: ReplicaId,
    pub(crate) name: String,
    pub(crate) seq: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) full: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) heard: Vec<(ReplicaId, u64)>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) ranks: Vec<RankWord>,
    #[serde(flatten)]
    pub(crate) windows: MessageWindows,
    /// Fields of a later version.
    #[serde(flatten)]
    pub(crate) unknown: Map<String, Value>,
}

/// The windows of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MessageWindows {
    #[serde(default, skip_serializing_if = "is_default", rename = "windows")]
    answer: Vec<WindowWord>,
    /// Windows of ranks that serve the prefill leg. A separate field: a replica that does not know
    /// it must not apply them to the models' own windows.
    #[serde(default, skip_serializing_if = "is_default", rename = "prefill_windows")]
    prefill: Vec<WindowWord>,
}

/// Pool of a model that a window closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowLeg {
    /// Ranks that respond to clients.
    Answer,
    /// Ranks that serve the prefill leg.
    Prefill,
}

impl WindowLeg {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Prefill => "prefill",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowWord {
    pub(crate) models: Vec<String>,
    /// Rest of the window, of any origin.
    pub(crate) remaining_ms: u64,
    /// Rest of the window that an operator opened; 0 for none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) hand_ms: u64,
}

/// A replica's load on a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankWord {
    pub(crate) worker: String,
    #[serde(default)]
    pub(crate) dp: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) prefill: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) places: UseWord,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) kv: UseWord,
}

/// Usage of a rank's places or KV tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UseWord {
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) held: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) max: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) claim: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) want: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) by: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) grants: Vec<(usize, u64)>,
}

/// Reason to refuse a message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum WireError {
    #[error("longer than {MESSAGE_BYTES_MAX} bytes")]
    Oversized,
    #[error("{0}")]
    Malformed(String),
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl MessageKind {
    pub(crate) const ALL: [Self; 4] = [Self::Window, Self::Load, Self::Hello, Self::Bye];

    /// Last word of the subject, and the label of metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Load => "load",
            Self::Hello => "hello",
            Self::Bye => "bye",
        }
    }

    /// Subject of messages of this kind.
    #[must_use]
    pub fn subject(self, prefix: &str) -> String {
        subject(prefix, self.word())
    }

    /// Kind of a message of this version; `None` for other subjects.
    pub(crate) fn of_subject(subject: &str) -> Option<Self> {
        let word = word_of(subject)?;
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Subject of messages with this last word.
pub(crate) fn subject(prefix: &str, word: &str) -> String {
    format!("{prefix}.{VERSION}.{word}")
}

/// The last word of a subject of this version, which may have a prefix.
pub(crate) fn word_of(subject: &str) -> Option<&str> {
    let (rest, word) = subject.rsplit_once('.')?;
    (rest.rsplit('.').next() == Some(VERSION)).then_some(word)
}

/// Subjects to subscribe to: all versions, so that foreign messages are counted.
pub(crate) fn all_subjects(prefix: &str) -> String {
    format!("{prefix}.*.*")
}

impl Message {
    /// # Errors
    /// [`WireError`] for an invalid message of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::Oversized);
        }
        let message: Self = serde_json::from_slice(bytes)
            .map_err(|error| WireError::Malformed(error.to_string()))?;
        let models = message.windows().flat_map(|(_, window)| &window.models);
        let workers = message.ranks.iter().map(|rank| &rank.worker);
        let is_long =
            models.chain(workers).chain([&message.name]).any(|name| name.len() > NAME_BYTES_MAX);
        if is_long {
            Err(WireError::Malformed("a name is too long".to_owned()))
        } else {
            Ok(message)
        }
    }

    /// Windows in this message.
    pub(crate) fn windows(&self) -> impl Iterator<Item = (WindowLeg, &WindowWord)> {
        let MessageWindows { answer, prefill } = &self.windows;
        let answer = answer.iter().map(|window| (WindowLeg::Answer, window));
        answer.chain(prefill.iter().map(|window| (WindowLeg::Prefill, window)))
    }

    pub(crate) fn set_windows(&mut self, windows: Vec<(WindowLeg, WindowWord)>) {
        let (prefill, answer): (Vec<_>, Vec<_>) =
            windows.into_iter().partition(|(leg, _)| *leg == WindowLeg::Prefill);
        let words =
            |of: Vec<(WindowLeg, WindowWord)>| of.into_iter().map(|(_, word)| word).collect();
        self.windows = MessageWindows { answer: words(answer), prefill: words(prefill) };
    }

    /// # Errors
    /// [`WireError::Oversized`] if receivers would refuse it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, WireError> {
        let bytes =
            serde_json::to_vec(self).map_err(|error| WireError::Malformed(error.to_string()))?;
        if bytes.len() > MESSAGE_BYTES_MAX { Err(WireError::Oversized) } else { Ok(bytes) }
    }

    /// The replica with that number in this message.
    pub(crate) fn replica_at(&self, number: usize) -> Option<ReplicaId> {
        match number.checked_sub(1) {
            None => Some(self.replica),
            Some(position) => self.heard.get(position).map(|(replica, _)| *replica),
        }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ReplicaId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReplicaId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let number = (text.len() <= 16).then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| serde::de::Error::custom("a replica is 16 hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOCUMENTED: [&str; 5] = [
        r#"{"replica":"5be1c0ffee15600d","name":"router-a","seq":17,"windows":[{"models":["llama","llama-lora"],"remaining_ms":1000}]}"#,
        r#"{"replica":"5be1c0ffee15600d","name":"router-a","seq":19,"heard":[["00000000000000a7",230]],"ranks":[{"worker":"10.0.0.5:8000","dp":0,"prefill":512,"places":{"held":3,"max":4,"claim":4,"want":5,"grants":[[1,0]]},"kv":{"held":9000,"max":64000,"claim":32000,"want":17000,"by":1}}]}"#,
        r#"{"replica":"5be1c0ffee15600d","name":"router-a","seq":1}"#,
        r#"{"replica":"5be1c0ffee15600d","name":"router-a","seq":20,"prefill_windows":[{"models":["llama"],"remaining_ms":700}]}"#,
        concat!(
            r#"{"replica":"5be1c0ffee15600d","name":"router-a","seq":21,"#,
            r#""windows":[{"models":["llama"],"remaining_ms":600000,"hand_ms":600000}]}"#,
        ),
    ];

    #[test]
    fn the_documented_messages_are_what_is_written() {
        for text in DOCUMENTED {
            let message = Message::decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(message.encode().unwrap()).unwrap(), text);
        }
        let load = Message::decode(DOCUMENTED[1].as_bytes()).unwrap();
        assert_eq!(load.replica_at(0), Some(ReplicaId(0x5be1_c0ff_ee15_600d)));
        assert_eq!(load.replica_at(load.ranks[0].kv.by), Some(ReplicaId(0xa7)));
        assert_eq!(load.replica_at(2), None);
    }

    #[test]
    fn what_is_unknown_is_kept_apart() {
        let text =
            r#"{"replica":"1","name":"n","seq":1,"colour":"red","ranks":[{"worker":"w","x":1}]}"#;
        let message = Message::decode(text.as_bytes()).unwrap();
        assert_eq!(message.unknown.len(), 1);
        assert_eq!(message.ranks[0].places, UseWord::default());
    }

    #[test]
    fn subjects_tell_kind_and_version() {
        assert_eq!(MessageKind::Load.subject("a.b"), "a.b.v1.load");
        for kind in MessageKind::ALL {
            assert_eq!(MessageKind::of_subject(&kind.subject("forebay")), Some(kind));
        }
        assert_eq!(MessageKind::of_subject("v1.load"), Some(MessageKind::Load));
        for foreign in ["forebay.v2.load", "v2.load", "forebay.v1.other", "load", "", "v1.load.x"] {
            assert_eq!(MessageKind::of_subject(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
        assert_eq!(Message::decode(&long), Err(WireError::Oversized));
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        let text = format!(r#"{{"replica":"1","name":"{name}","seq":1}}"#);
        assert!(matches!(Message::decode(text.as_bytes()), Err(WireError::Malformed(_))));
        for text in [r#"{"replica":"x","name":"","seq":1}"#, r#"{"name":"","seq":1}"#, "[]", ""] {
            assert!(Message::decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn damaged_messages_do_not_panic(at in 0_usize..280, with in any::<u8>()) {
            let mut bytes = DOCUMENTED[1].as_bytes().to_vec();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            let _ = Message::decode(&bytes);
        }
    }
}

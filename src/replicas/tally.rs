//! Outcomes of messages, for `/metrics`.

use super::wire::{MessageKind, WireError};
use std::collections::BTreeMap;

/// Outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MessageOutcome {
    /// Passed to the NATS client, or to each reading peer.
    Sent,
    /// Not connected, or the client or a peer is behind: dropped.
    Dropped,
    /// Too long to send.
    TooLongToSend,
    /// Too long to read.
    TooLongToRead,
    /// Read, and applied to the state.
    Taken,
    /// Not a valid message.
    Malformed,
    /// Of another version, or of an unknown kind.
    Foreign,
    /// Sent by this replica: a broker returns own messages.
    Own,
    /// Not newer than the last received message.
    Stale,
    /// From a replica beyond the limit.
    TooMany,
}

/// Counts of messages; bounded in number.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<(Option<MessageKind>, MessageOutcome), u64>,
    unknown_fields: u64,
}

impl MessageOutcome {
    /// Outcome of an unreadable message.
    pub(crate) const fn of_fault(fault: &WireError) -> Self {
        match fault {
            WireError::Oversized => Self::TooLongToRead,
            WireError::Malformed(_) => Self::Malformed,
        }
    }

    /// Labels `direction` and `result` of metrics.
    pub(crate) const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Sent => ("out", "ok"),
            Self::Dropped => ("out", "dropped"),
            Self::TooLongToSend => ("out", "oversized"),
            Self::TooLongToRead => ("in", "oversized"),
            Self::Taken => ("in", "ok"),
            Self::Malformed => ("in", "malformed"),
            Self::Foreign => ("in", "foreign"),
            Self::Own => ("in", "own"),
            Self::Stale => ("in", "stale"),
            Self::TooMany => ("in", "too_many"),
        }
    }
}

impl Tally {
    /// Counts a message; `None` for an unknown kind.
    pub(crate) fn count(&mut self, kind: Option<MessageKind>, outcome: MessageOutcome) {
        *self.counts.entry((kind, outcome)).or_default() += 1;
    }

    pub(crate) fn count_unknown_fields(&mut self, count: usize) {
        self.unknown_fields += u64::try_from(count).unwrap_or(u64::MAX);
    }

    pub(crate) const fn unknown_fields(&self) -> u64 {
        self.unknown_fields
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<MessageKind>, MessageOutcome, u64)> {
        self.counts.iter().map(|((kind, outcome), count)| (*kind, *outcome, *count))
    }
}

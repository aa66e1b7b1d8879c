//! What became of the messages, for `/metrics`.

use super::wire::{MessageKind, WireError};
use std::collections::BTreeMap;

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MessageOutcome {
    /// Handed to the NATS client, or to each peer that reads.
    Sent,
    /// Not connected, or the client or a peer is behind: not sent.
    Dropped,
    /// Too long to send.
    TooLong,
    /// Too long to read.
    Oversized,
    /// Heard.
    Taken,
    /// No message.
    Malformed,
    /// Of another version, or of an unknown kind.
    Foreign,
    /// This replica's own.
    Own,
    /// Older than what was heard.
    Stale,
    /// Of a replica too many.
    TooMany,
}

/// Counts; few, whatever comes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<(Option<MessageKind>, MessageOutcome), u64>,
    unknown_fields: u64,
}

impl MessageOutcome {
    /// Of a message that cannot be read.
    pub(crate) const fn of_fault(fault: &WireError) -> Self {
        match fault {
            WireError::Oversized => Self::Oversized,
            WireError::Malformed(_) => Self::Malformed,
        }
    }

    /// Labels `direction` and `result` of metrics.
    pub(crate) const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Sent => ("out", "ok"),
            Self::Dropped => ("out", "dropped"),
            Self::TooLong => ("out", "oversized"),
            Self::Oversized => ("in", "oversized"),
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
    /// Counts a message; `None` for one of no known kind.
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

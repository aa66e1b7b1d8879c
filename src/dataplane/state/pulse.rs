//! Signs of life of the engine behind a rank. Body bytes prove that the engine works; a head may
//! come from its HTTP server alone. Each shard counts for itself and reports to the control plane
//! with its tick.

use forebay_base::NanosSinceStart;
use forebay_board::{FirstBytes, RankSigns};
use std::cell::Cell;

/// Signs of a rank, as seen by this shard.
#[derive(Debug, Default)]
pub(crate) struct EnginePulse {
    /// Streams sent without a body byte received.
    awaited: Cell<u32>,
    /// Body chunks received, wrapping.
    answers: Cell<u32>,
    /// `answers` at the last report to the control plane.
    shown: Cell<u32>,
    first_bytes: Cell<FirstBytes>,
}

impl EnginePulse {
    /// Reports changes since the last call to the control plane.
    pub(crate) fn show(&self, signs: &RankSigns) {
        if self.shown.replace(self.answers.get()) != self.answers.get() {
            signs.show_answers();
        }
        if self.awaited.get() > 0 {
            signs.show_awaited();
        }
        let first_bytes = self.first_bytes.take();
        if first_bytes.count > 0 {
            signs.add_first_bytes(first_bytes);
        }
    }
}

/// An attempt at a rank, from send to drop. Each open stream holds such a watch, so the watch is
/// small.
#[derive(Debug)]
pub(crate) struct PulseWatch<'a> {
    pulse: &'a EnginePulse,
    sent_at: NanosSinceStart,
    /// Prompt tokens that the rank had to compute at `sent_at`, including this prompt.
    tokens: u32,
    /// True for a stream before its first byte.
    awaits: Cell<bool>,
}

impl<'a> PulseWatch<'a> {
    /// Starts an attempt at a rank that has `tokens` prompt tokens to compute.
    pub(crate) fn new(
        pulse: &'a EnginePulse,
        is_stream: bool,
        sent_at: NanosSinceStart,
        tokens: u64,
    ) -> Self {
        pulse.awaited.set(pulse.awaited.get().saturating_add(u32::from(is_stream)));
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Self { pulse, sent_at, tokens, awaits: Cell::new(is_stream) }
    }

    /// Counts a body chunk. `first_at`: time of the first chunk of a stream.
    #[inline]
    pub(crate) fn count_chunk(&self, first_at: Option<NanosSinceStart>) {
        self.pulse.answers.set(self.pulse.answers.get().wrapping_add(1));
        if self.settle()
            && let Some(first_at) = first_at
        {
            let waited_us = first_at.since(self.sent_at) / 1_000;
            let first = FirstBytes { count: 1, waited_us, tokens: self.tokens.into() };
            self.pulse.first_bytes.set(self.pulse.first_bytes.get().plus(first));
        }
    }

    /// True for the first byte of a stream.
    fn settle(&self) -> bool {
        let awaits = self.awaits.replace(false);
        if awaits {
            debug_assert!(self.pulse.awaited.get() > 0, "a stream counted twice");
            self.pulse.awaited.set(self.pulse.awaited.get().saturating_sub(1));
        }
        awaits
    }
}

impl Drop for PulseWatch<'_> {
    fn drop(&mut self) {
        let _ = self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_awaited_until_its_first_byte_or_its_end() {
        let pulse = EnginePulse::default();
        let signs = RankSigns::default();
        let shown = || {
            pulse.show(&signs);
            (signs.take_awaited(), signs.take_answers(), signs.take_first_bytes().count)
        };
        assert_eq!(shown(), (false, false, 0));
        let new = |is_stream| PulseWatch::new(&pulse, is_stream, NanosSinceStart(1_000), 100);
        let stream = new(true);
        let other = new(true);
        assert_eq!((shown(), shown()), ((true, false, 0), (true, false, 0)), "reported again");
        stream.count_chunk(Some(NanosSinceStart(5_000)));
        assert_eq!(shown(), (true, true, 1));
        stream.count_chunk(Some(NanosSinceStart(6_000)));
        drop(other);
        assert_eq!(shown(), (false, true, 0), "the first byte counts once");
        drop(stream);
        let whole = new(false);
        assert_eq!(shown(), (false, false, 0), "no stream is awaited");
        whole.count_chunk(None);
        assert_eq!(shown(), (false, true, 0));
    }
}

//! What answers show of the engine behind a rank. Bytes of a body come from the engine; a head may
//! come from its HTTP server alone. Kept by one shard, which tells the control plane with its tick.

use forebay_base::NanosSinceStart;
use forebay_fleet::worker::{FirstBytes, RankSigns};
use std::cell::Cell;

/// One rank, as this shard sees it.
#[derive(Debug, Default)]
pub(crate) struct EnginePulse {
    /// Streams sent of whose body no byte has come.
    awaited: Cell<u32>,
    /// Changes with each piece of a body.
    answers: Cell<u32>,
    /// The same, as the control plane was told last.
    shown: Cell<u32>,
    first_bytes: Cell<FirstBytes>,
}

impl EnginePulse {
    /// Tells the control plane what was seen since the last call.
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

/// A request on its way to a rank and back. Dropped at the end of the attempt, whatever happened.
/// Each open stream holds one, so it is small.
#[derive(Debug)]
pub(crate) struct PulseWatch<'a> {
    pulse: &'a EnginePulse,
    /// When the request left.
    sent_at: NanosSinceStart,
    /// Prompt tokens that the rank had to compute then, its own among them.
    tokens: u32,
    /// It is a stream that waits for its first byte.
    awaits: Cell<bool>,
}

impl<'a> PulseWatch<'a> {
    /// A request leaves for the rank, which has so many prompt tokens to compute.
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

    /// A piece of the body has come. `first_at`: when the first one of a stream did.
    #[inline]
    pub(crate) fn hear(&self, first_at: Option<NanosSinceStart>) {
        self.pulse.answers.set(self.pulse.answers.get().wrapping_add(1));
        if self.settle()
            && let Some(first_at) = first_at
        {
            let waited_us = first_at.since(self.sent_at) / 1_000;
            let one = FirstBytes { count: 1, waited_us, tokens: self.tokens.into() };
            self.pulse.first_bytes.set(self.pulse.first_bytes.get().plus(one));
        }
    }

    /// True for the first byte of a stream.
    fn settle(&self) -> bool {
        let awaits = self.awaits.replace(false);
        if awaits {
            debug_assert!(self.pulse.awaited.get() > 0, "a stream that came twice");
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
        assert_eq!((shown(), shown()), ((true, false, 0), (true, false, 0)), "said again");
        stream.hear(Some(NanosSinceStart(5_000)));
        assert_eq!(shown(), (true, true, 1));
        stream.hear(Some(NanosSinceStart(6_000)));
        drop(other);
        assert_eq!(shown(), (false, true, 0), "the first byte counts once");
        drop(stream);
        let whole = new(false);
        assert_eq!(shown(), (false, false, 0), "no stream is awaited");
        whole.hear(None);
        assert_eq!(shown(), (false, true, 0));
    }
}

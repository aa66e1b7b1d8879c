//! Work of the encoders, counted for tests and the fuzzer: a text of a caller must not cost more
//! than a few steps for each byte that is read or written. Without the feature `count_steps`
//! nothing is counted.

#[cfg(any(test, feature = "count_steps"))]
use std::cell::Cell;

/// Work since the start of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderSteps {
    /// Bytes and values that were read, some of them several times.
    pub read: u64,
    /// Bytes that were written, also into texts that were given up.
    pub written: u64,
}

#[cfg(any(test, feature = "count_steps"))]
thread_local! {
    static STEPS: Cell<EncoderSteps> = const { Cell::new(EncoderSteps { read: 0, written: 0 }) };
}

/// Work of this thread so far.
#[must_use]
pub fn encoder_steps() -> EncoderSteps {
    #[cfg(any(test, feature = "count_steps"))]
    return STEPS.get();
    #[cfg(not(any(test, feature = "count_steps")))]
    EncoderSteps::default()
}

/// Counts bytes or values that were read.
#[inline]
pub(crate) fn count_read(count: usize) {
    add(count, 0);
}

/// Counts bytes that were written.
#[inline]
pub(crate) fn count_written(count: usize) {
    add(0, count);
}

#[cfg(any(test, feature = "count_steps"))]
fn add(read: usize, written: usize) {
    let before = STEPS.get();
    let sum = |before: u64, more: usize| before.saturating_add(more.try_into().unwrap_or(u64::MAX));
    STEPS.set(EncoderSteps { read: sum(before.read, read), written: sum(before.written, written) });
}

#[cfg(not(any(test, feature = "count_steps")))]
#[inline]
const fn add(_: usize, _: usize) {}

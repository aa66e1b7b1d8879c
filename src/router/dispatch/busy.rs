//! How engines say that they have no room.

/// How engines say that they have no room: vLLM `--max-num-queued-reqs` and SGLang
/// `--max-queued-requests` answer 503, others 429 or 529.
#[must_use]
pub const fn has_no_room(status: u16) -> bool {
    matches!(status, 429 | 503 | 529)
}

/// `Retry-After` in seconds; a date is not read.
#[must_use]
pub fn retry_after_s(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

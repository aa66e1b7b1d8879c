//! Responses of engines without room.

/// Status codes of an engine without room: 503 from vLLM (`--max-num-queued-reqs`) and SGLang
/// (`--max-queued-requests`), 429 or 529 from other servers.
#[must_use]
pub const fn has_no_room(status: u16) -> bool {
    matches!(status, 429 | 503 | 529)
}

/// `Retry-After` in seconds; a date is not read.
#[must_use]
pub fn retry_after_s(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

//! Faults of JSON text.

use thiserror::Error;

/// Why text is no JSON that is read. Positions are byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// The text has no value.
    #[error("it is empty")]
    Empty,
    /// Not UTF-8 (RFC 8259 section 8.1).
    #[error("it is not UTF-8 at byte {at}")]
    Encoding {
        /// First byte that is wrong.
        at: usize,
    },
    /// Not JSON, or bytes after the value.
    #[error("syntax error at byte {at}")]
    Syntax {
        /// Where the cursor stopped.
        at: usize,
    },
    /// Half of a surrogate pair, which UTF-8 text cannot hold; engines refuse it too.
    #[error("lone surrogate in an escape at byte {at}")]
    LoneSurrogate {
        /// Where the escape starts.
        at: usize,
    },
    /// Nested deeper than [`JSON_DEPTH_MAX`](forebay_base::limits::JSON_DEPTH_MAX).
    #[error("it is nested too deep at byte {at}")]
    Depth {
        /// Where the level too many opens.
        at: usize,
    },
    /// 4 GiB or more.
    #[error("it is too long")]
    TooLong,
}

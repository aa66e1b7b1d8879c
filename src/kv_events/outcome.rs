//! Outcomes of events, for counters.

/// Outcome of an event, the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The event is in the index as a whole, or changes nothing there.
    Applied,
    /// The medium does not count, or belongs to another process.
    Elsewhere,
    /// The attention group does not keep whole prefixes.
    OtherGroup,
    /// The parent is unknown, and the blocks wait for it.
    Orphaned,
    /// The parent is unknown, and there is no room to wait for it.
    ParentUnknown,
    /// An unknown hash without tokens.
    HashUnknown,
    /// Tokens and hashes do not match in number.
    Unpaired,
    /// The block contains an image, embeddings or other content that is not text.
    NotText,
    /// There is no tokenizer, or the tokenizer lacks a token.
    NoText,
    /// A block without bytes, or longer than the limit of the index.
    BlockLength,
    /// The hash already has other bytes: the engine does not chain its hashes, or there is a loop.
    Conflict,
    /// The rank is at its limit of entries, or a text is.
    Full,
    /// An event type that this version does not support.
    UnknownType,
    /// Bytes that are no event.
    Malformed,
}

impl BatchOutcome {
    /// True if further parts of a long event may be applied after this outcome.
    pub(super) fn continues(self) -> bool {
        !matches!(
            self,
            Self::Elsewhere
                | Self::OtherGroup
                | Self::Unpaired
                | Self::Conflict
                | Self::Full
                | Self::Malformed
        )
    }

    pub const ALL: [(Self, &'static str); 14] = [
        (Self::Applied, "applied"),
        (Self::Elsewhere, "elsewhere"),
        (Self::OtherGroup, "other_group"),
        (Self::Orphaned, "orphaned"),
        (Self::ParentUnknown, "parent_unknown"),
        (Self::HashUnknown, "hash_unknown"),
        (Self::Unpaired, "unpaired"),
        (Self::NotText, "not_text"),
        (Self::NoText, "no_text"),
        (Self::BlockLength, "block_length"),
        (Self::Conflict, "conflict"),
        (Self::Full, "full"),
        (Self::UnknownType, "unknown_type"),
        (Self::Malformed, "malformed"),
    ];
}

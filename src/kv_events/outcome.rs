//! What became of an event.

/// The words are the metrics label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// All of it is in the index, or nothing of it concerned the index anew.
    Applied,
    /// Lies in a medium that does not count, or with another process.
    Elsewhere,
    /// Belongs to an attention group that forgets.
    OtherGroup,
    /// Its parent was never seen: kept until it is.
    Orphaned,
    /// Its parent was never seen, and there is no room to wait for it.
    ParentUnknown,
    /// A hash without tokens that nothing is known of.
    HashUnknown,
    /// Tokens and hashes do not match in number.
    Unpaired,
    /// Holds an image, embeddings or other things that are not text.
    NotText,
    /// No tokenizer, or a token that it does not know.
    NoText,
    /// A block without bytes, or longer than the index knows.
    BlockLength,
    /// A hash that stands for other bytes already: an engine whose hashes are not chained, or a
    /// loop.
    Conflict,
    /// The rank's entries have reached their limit, or those of one text have.
    Full,
    /// An event type that this version does not know.
    UnknownType,
    /// Bytes that are no event.
    Malformed,
}

impl BatchOutcome {
    /// May further parts of a long event be taken after this one?
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

    /// All, with their metrics label.
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

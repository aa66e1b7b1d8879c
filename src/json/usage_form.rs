//! Where answers report their tokens.

/// The place of the report in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageForm {
    /// `usage` of an answer of JSON.
    Usage,
    /// `usage` of any event of a stream.
    UsageStream,
    /// `meta_info` of an answer of SGLang in JSON: of each prompt of a batch.
    MetaInfo,
    /// `meta_info` in each event of a stream.
    MetaInfoStream,
}

impl UsageForm {
    /// Is the answer a stream of events?
    #[must_use]
    pub const fn is_stream(self) -> bool {
        matches!(self, Self::UsageStream | Self::MetaInfoStream)
    }

    /// Does each object count? Of `usage` and of a stream, the last.
    pub(crate) const fn adds_objects(self) -> bool {
        matches!(self, Self::MetaInfo)
    }

    pub(crate) const fn key(self) -> &'static [u8] {
        match self {
            Self::Usage | Self::UsageStream => b"usage",
            Self::MetaInfo | Self::MetaInfoStream => b"meta_info",
        }
    }
}

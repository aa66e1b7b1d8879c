//! Short tags of callers and models, for words of a rank's cell that record the scope of failures.

use forebay_base::ModelIndex;
use forebay_base::limits::MODELS_MAX;

/// A short tag of a caller or a model, or the tag for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) const BITS: u32 = 11;
    pub(crate) const SEVERAL: Self = Self((1 << Self::BITS) - 1);

    /// Callers may share a tag: then the failures of either count against the requests of both.
    pub(crate) const fn of_caller(caller: u32) -> Self {
        Self(caller % Self::SEVERAL.0)
    }

    pub(crate) const fn of_model(model: ModelIndex) -> Self {
        // The index is below `MODELS_MAX`, so each model has a unique tag.
        Self(model.0 as u32 % Self::SEVERAL.0)
    }

    pub(crate) const fn of(bits: u32) -> Self {
        Self(bits & Self::SEVERAL.0)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// The tag if both are the same, else several.
    pub(crate) fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::SEVERAL }
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        self == Self::SEVERAL || self == other
    }
}

const _: () = assert!(499 + Witness::ONLY_REFUSED < 1 << Witness::STATUS_BITS);
const _: () = assert!(MODELS_MAX < Tag::SEVERAL.0 as usize);

/// The callers and models of failed requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) caller: Tag,
    pub(crate) model: Tag,
    /// Status of the last failure, 0 to 799.
    pub(crate) status: u16,
    /// Each failure was a refusal (3xx, 4xx) of a whole request.
    pub(crate) has_only_refused: bool,
}

impl Witness {
    const STATUS_BITS: u32 = u32::BITS - 2 * Tag::BITS;
    /// Added to the status of refusals alone, which are 300 to 499.
    const ONLY_REFUSED: u32 = 500;
    const STATUS_MAX: u32 = 799;

    pub(crate) fn word(self) -> u32 {
        let status = u32::from(self.status).min(Self::STATUS_MAX);
        let status = match self.has_only_refused && (300..500).contains(&status) {
            true => status + Self::ONLY_REFUSED,
            false => status,
        };
        (self.caller.bits() << Tag::BITS | self.model.bits()) << Self::STATUS_BITS | status
    }

    pub(crate) fn of(word: u32) -> Self {
        let status = word & ((1 << Self::STATUS_BITS) - 1);
        let has_only_refused = status > Self::STATUS_MAX;
        let status = if has_only_refused { status - Self::ONLY_REFUSED } else { status };
        Self {
            caller: Tag::of(word >> (Self::STATUS_BITS + Tag::BITS)),
            model: Tag::of(word >> Self::STATUS_BITS),
            status: u16::try_from(status).unwrap_or(0),
            has_only_refused,
        }
    }
}

//! Callers and models, by short names, as words of a rank's cell: of whom failures speak.

use forebay_base::ModelIndex;
use forebay_base::limits::MODELS_MAX;

/// Who asks for what: the caller and the model of a request, as far as blame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// A hash of the tenant, or of the client's address where clients have no keys.
    pub caller: u32,
    /// The model that the request is for.
    pub model: ModelIndex,
    /// No rank is left for the request that is not paused: pauses do not count.
    pub is_forced: bool,
}

/// A short name of one caller or one model, or the word for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    pub(super) const BITS: u32 = 11;
    pub(super) const SEVERAL: Self = Self((1 << Self::BITS) - 1);

    /// Callers share tags: then the failures of one are held against the requests of the other.
    pub(super) const fn of_caller(caller: u32) -> Self {
        Self(caller % Self::SEVERAL.0)
    }

    pub(super) const fn of_model(model: ModelIndex) -> Self {
        // The index is below `MODELS_MAX`, so each model has a tag of its own.
        Self(model.0 as u32 % Self::SEVERAL.0)
    }

    pub(super) const fn of(bits: u32) -> Self {
        Self(bits & Self::SEVERAL.0)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// Both are the same, or several.
    pub(super) fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::SEVERAL }
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self == Self::SEVERAL || self == other
    }
}

const _: () = assert!(MODELS_MAX < Tag::SEVERAL.0 as usize);

/// The callers and models whose requests failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) caller: Tag,
    pub(super) model: Tag,
    /// Status of the last failure, 0 to 999.
    pub(super) status: u16,
}

impl Witness {
    const STATUS_BITS: u32 = u32::BITS - 2 * Tag::BITS;

    pub(super) fn word(self) -> u32 {
        let status = u32::from(self.status).min((1 << Self::STATUS_BITS) - 1);
        (self.caller.bits() << Tag::BITS | self.model.bits()) << Self::STATUS_BITS | status
    }

    pub(super) fn of(word: u32) -> Self {
        let status = word & ((1 << Self::STATUS_BITS) - 1);
        Self {
            caller: Tag::of(word >> (Self::STATUS_BITS + Tag::BITS)),
            model: Tag::of(word >> Self::STATUS_BITS),
            status: u16::try_from(status).unwrap_or(0),
        }
    }
}

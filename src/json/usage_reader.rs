//! The reader of the tokens of an answer, for all APIs.

use crate::usage_finder::UsageFinder;
use crate::usage_form::UsageForm;
use crate::usage_glance::UsageGlance;
use crate::usage_scan::UsageScan;
use forebay_base::TokenUsage;

/// Reads the tokens of an answer as the answer passes. Both ways share the reader of an object: a
/// glance takes an object anywhere in the answer, a scan only in its place.
#[derive(Debug)]
pub enum UsageReader {
    /// Nothing is billed: a search of each read.
    Glance(UsageGlance),
    /// The answer is billed: objects count by their place, and events are counted.
    Scan(Box<UsageScan>),
}

impl UsageReader {
    /// For an answer of which nothing is billed.
    #[must_use]
    pub const fn glance(form: UsageForm) -> Self {
        Self::Glance(UsageGlance::new(form))
    }

    /// For an answer that is billed.
    #[must_use]
    pub fn scan(form: UsageForm) -> Self {
        Self::Scan(Box::new(UsageScan::new(form)))
    }

    /// Takes the next bytes of the body. True if a scan has counted an event that may have a token.
    /// Only a glance uses `finder`.
    pub fn feed(&mut self, finder: &UsageFinder, data: &[u8]) -> bool {
        match self {
            Self::Glance(glance) => {
                glance.feed(finder, data);
                false
            }
            Self::Scan(scan) => scan.feed(data),
        }
    }

    /// The tokens that the engine has reported.
    #[must_use]
    pub fn usage(&self) -> Option<TokenUsage> {
        match self {
            Self::Glance(glance) => glance.numbers().usage(),
            Self::Scan(scan) => scan.usage(),
        }
    }

    /// Cached tokens of the prompt, where the engine reports them.
    #[must_use]
    pub fn cached(&self) -> Option<u64> {
        match self {
            Self::Glance(glance) => glance.numbers().cached(),
            Self::Scan(scan) => scan.cached(),
        }
    }

    /// The scan of an answer that is billed.
    #[must_use]
    pub const fn as_scan(&self) -> Option<&UsageScan> {
        match self {
            Self::Glance(_) => None,
            Self::Scan(scan) => Some(scan),
        }
    }

    /// The scan of an answer that is billed, to go on with the rest of a stream.
    #[must_use]
    pub fn into_scan(self) -> Option<Box<UsageScan>> {
        match self {
            Self::Glance(_) => None,
            Self::Scan(scan) => Some(scan),
        }
    }
}

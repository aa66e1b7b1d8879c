//! Detects a tokenizer that does not fit the engine. Nearly all stored blocks then contain ids that
//! the vocabulary of this router lacks.

use forebay_base::DpRank;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Blocks with unknown ids before a verdict.
const UNKNOWN_MIN: u32 = 32;
/// A mismatch has more blocks with unknown ids than this for each readable block.
const UNKNOWN_PER_READABLE: u32 = 32;
/// Counts are halved here, so that the verdict follows recent blocks.
const COUNTED_MAX: u32 = 1_024;
/// No vocabulary has ids from here on; SGLang writes hashes of images as such ids.
const IMAGE_IDS_FROM: u32 = 1_000_000;

/// Whether blocks of a rank and the tokenizer fit; `/workers` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFit {
    /// The tokenizer decodes blocks of the rank.
    Ok,
    /// Nearly all blocks contain tokens that the tokenizer lacks.
    Mismatch,
    /// There is no tokenizer for the model.
    NoTokenizer,
}

impl TextFit {
    /// The word in `/workers`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Mismatch => "mismatch",
            Self::NoTokenizer => "none",
        }
    }
}

/// Counts of readable and unreadable blocks. Neither images nor readable text behind them count.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    readable: u32,
    unknown: u32,
    is_mismatch: bool,
}

impl Evidence {
    /// Counts a block that the tokenizer decoded.
    pub(crate) fn readable(&mut self) {
        self.readable += 1;
        self.judge();
    }

    /// Counts a block without media that has an id that the vocabulary lacks.
    pub(crate) fn unknown(&mut self, token_ids: &[u32]) {
        if token_ids.iter().any(|id| *id >= IMAGE_IDS_FROM) {
            return;
        }
        self.unknown += 1;
        self.judge();
    }

    /// `None` before the first evidence.
    pub(crate) fn verdict(&self) -> Option<TextFit> {
        match (self.is_mismatch, self.readable) {
            (true, _) => Some(TextFit::Mismatch),
            (false, 0) => None,
            (false, _) => Some(TextFit::Ok),
        }
    }

    /// Updates the verdict. A mismatch ends at a higher share of readable blocks than it begins at,
    /// so that a mix near the limit is reported once.
    fn judge(&mut self) {
        self.is_mismatch = if self.is_mismatch {
            self.readable < self.unknown
        } else {
            self.unknown >= UNKNOWN_MIN && self.readable * UNKNOWN_PER_READABLE < self.unknown
        };
        if self.readable + self.unknown >= COUNTED_MAX {
            // Round up, so that a single readable block does not become 0.
            self.readable = self.readable.div_ceil(2);
            self.unknown /= 2;
        }
    }
}

/// Source of a feed's tokenizer, for the log.
#[derive(Clone, Debug)]
pub(crate) struct TextSource {
    pub(crate) model: Arc<str>,
    pub(crate) dir: Option<Arc<Path>>,
}

impl TextSource {
    /// Logs a mismatch and its remedy, or its end.
    pub(crate) fn log(&self, is_mismatch: bool, worker: &str, dp_rank: DpRank) {
        if !is_mismatch {
            info!(
                model = &*self.model,
                worker,
                dp_rank = dp_rank.0,
                "the tokenizer of this model fits what the worker caches again"
            );
            return;
        }
        warn!(
            model = &*self.model,
            model_dir = self.dir.as_deref().map(|dir| tracing::field::display(dir.display())),
            worker,
            dp_rank = dp_rank.0,
            "the tokenizer of this model does not fit what the worker caches: no prompt can be \
             matched there; set `model_dir` of this worker to the files of the model that it serves"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(readable: u32, unknown: u32) -> Evidence {
        let mut evidence = Evidence::default();
        (0..readable).for_each(|_| evidence.readable());
        (0..unknown).for_each(|_| evidence.unknown(&[2_236]));
        evidence
    }

    #[test]
    fn only_many_unknown_ids_and_next_to_no_text_are_a_mismatch() {
        for (readable, unknown, verdict) in [
            (0, 0, None),
            (1, 0, Some(TextFit::Ok)),
            (0, 31, None),
            (0, 32, Some(TextFit::Mismatch)),
            (1, 32, Some(TextFit::Ok)),
            (1, 33, Some(TextFit::Mismatch)),
            (40, 500, Some(TextFit::Ok)),
            (1, 100_000, Some(TextFit::Mismatch)),
            (100_000, 500, Some(TextFit::Ok)),
        ] {
            assert_eq!(of(readable, unknown).verdict(), verdict, "{readable} {unknown}");
        }
    }

    #[test]
    fn it_recovers_soon_and_does_not_flap() {
        let mut evidence = of(0, 100_000);
        for count in 1..COUNTED_MAX {
            evidence.readable();
            if evidence.verdict() == Some(TextFit::Ok) {
                assert!(count > UNKNOWN_MIN, "a few readable blocks end no mismatch");
                return;
            }
        }
        panic!("never recovered");
    }

    #[test]
    fn images_are_no_sign() {
        let mut evidence = Evidence::default();
        (0..1_000).for_each(|_| evidence.unknown(&[5, 1_000_000 + 77]));
        assert_eq!(evidence.verdict(), None);
    }
}

//! Cards of models. The card of a model does not depend on which worker answers first, so it is the
//! same after a restart and at each replica.

use super::{Fleet, KnownWorker};
use forebay_discovery::ServedModel;
use forebay_text::context_tokens;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model that its workers serve with different lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnequalLengths {
    pub(crate) model: Arc<str>,
    pub(crate) shortest: ModelLength,
    pub(crate) longest: ModelLength,
}

/// Tokens of prompt and output together, and the names of the workers with this length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelLength {
    pub(crate) tokens: u64,
    pub(crate) workers: Vec<Arc<str>>,
}

impl Fleet {
    /// The card of the worker with the shortest length, because a prompt may go to each worker. Of
    /// equal lengths, the first address decides. Empty where no worker has a card.
    pub(super) fn card_of(&self, name: &str) -> Arc<str> {
        let cards = self.workers.iter().filter_map(|known| {
            let card = &served(known, name)?.card_json;
            Some((context_tokens(card).unwrap_or(u64::MAX), &known.shown.authority, card))
        });
        let first = cards.min_by_key(|(tokens, authority, _)| (*tokens, *authority));
        first.map_or_else(|| "".into(), |(_, _, card)| Arc::clone(card))
    }

    /// Models that their workers serve with different lengths. An adapter has the length of its
    /// model.
    pub(crate) fn unequal_lengths(&self) -> Vec<UnequalLengths> {
        let models = self.models.names.iter();
        models.filter_map(|name| unequal(name, self.lengths(name))).collect()
    }

    /// The lengths of a model, each with its workers.
    fn lengths(&self, name: &str) -> BTreeMap<u64, Vec<Arc<str>>> {
        let mut lengths: BTreeMap<u64, Vec<Arc<str>>> = BTreeMap::new();
        for known in &self.workers {
            let card = served(known, name).filter(|served| served.parent.is_none());
            if let Some(tokens) = card.and_then(|card| context_tokens(&card.card_json)) {
                lengths.entry(tokens).or_default().push(Arc::clone(&known.shown.name));
            }
        }
        lengths
    }
}

fn unequal(model: &Arc<str>, lengths: BTreeMap<u64, Vec<Arc<str>>>) -> Option<UnequalLengths> {
    let mut lengths = lengths.into_iter().map(|(tokens, workers)| ModelLength { tokens, workers });
    let shortest = lengths.next()?;
    let longest = lengths.next_back()?;
    Some(UnequalLengths { model: Arc::clone(model), shortest, longest })
}

fn served<'a>(known: &'a KnownWorker, name: &str) -> Option<&'a ServedModel> {
    known.description.as_ref()?.served(name)
}

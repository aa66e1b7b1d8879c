//! A model as shards see it: its ranks, its place in the index, its text.

use super::Leg;
use forebay_base::{PoolIndex, RankIndex};
use forebay_index::ModelRoots;
use forebay_text::Vocabulary;
use forebay_text::chat::{ChatTemplate, EngineRules};
use std::sync::Arc;

/// The model of this name takes requests for names that no worker lists. An engine cannot list it.
pub const ANY_MODEL: &str = "*";

/// One model name and who serves it.
#[derive(Clone, Debug)]
pub struct Model {
    /// As clients write it.
    pub name: Arc<str>,
    /// Its object in the answer of `GET /v1/models`, as JSON text: of its workers, that of the
    /// shortest context.
    pub card_json: Arc<str>,
    /// Ranks that serve it, in index order, whatever their state.
    pub ranks: Vec<RankIndex>,
    /// The pool of those that answer: they serve whole requests or decode legs.
    pub pool: PoolIndex,
    /// The pool of those that prefill for others, when there are any.
    pub prefill_pool: Option<PoolIndex>,
    /// Where the index has its prompts.
    pub roots: ModelRoots,
    /// How its prompts become bytes; `None` when no tokenizer was found (then they are matched by
    /// guesses only). Of the first configured worker that has one, also where workers of different
    /// engines serve the model.
    pub text: Option<Arc<ModelText>>,
    /// What the name stands for.
    pub kind: ModelKind,
}

/// What the name of a model stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelKind {
    /// A model, or another name of one.
    #[default]
    Base,
    /// A LoRA adapter of another model, with blocks of its own.
    Adapter,
    /// A name without ranks that a present worker is known for: it lists the name no more, or has
    /// not answered since the start.
    Expected,
}

impl Model {
    /// Is it a LoRA adapter?
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        self.kind == ModelKind::Adapter
    }

    /// Does a present worker serve it, or is one known for it?
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.kind == ModelKind::Expected || !self.ranks.is_empty()
    }

    /// Does it stand for all names that no worker lists?
    #[must_use]
    pub fn is_any(&self) -> bool {
        &*self.name == ANY_MODEL
    }

    /// The pool of the ranks that serve a leg.
    #[must_use]
    pub fn pool_of(&self, leg: Leg) -> PoolIndex {
        self.prefill_pool.filter(|_| leg == Leg::Prefill).unwrap_or(self.pool)
    }
}

/// How the prompts of a model become the bytes that its engine sees.
#[derive(Debug)]
pub struct ModelText {
    /// Token id to bytes.
    pub vocabulary: Arc<Vocabulary>,
    /// The chat template; `None` for models without one.
    pub chat_template: Option<ChatTemplate>,
    /// The engine whose way of reading requests is followed.
    pub rules: EngineRules,
}

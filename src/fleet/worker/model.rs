//! A model as shards use it: its ranks, its place in the index, its text.

use super::Leg;
use forebay_base::{PoolIndex, RankIndex, WorkerIndex};
use forebay_index::ModelRoots;
use forebay_text::Vocabulary;
use forebay_text::chat::{ChatEncoder, ChatTemplate, EngineRules};
use std::ops::Deref;
use std::sync::Arc;

/// Name of the model that serves names which no worker lists. An engine cannot list it.
pub const ANY_MODEL: &str = "*";

/// A model name and its ranks.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name that clients send.
    pub name: Arc<str>,
    /// Its object in the answer of `GET /v1/models`, as JSON text: the object of its worker with
    /// the shortest context.
    pub card_json: Arc<str>,
    /// Ranks that serve the model, in index order, whatever their state.
    pub ranks: Vec<RankIndex>,
    /// Pool of the ranks that answer: they serve whole requests or decode legs.
    pub pool: PoolIndex,
    /// Pool of the prefill ranks, if there are any.
    pub prefill_pool: Option<PoolIndex>,
    /// Roots of its prompts in the index.
    pub roots: ModelRoots,
    /// Converts prompts to bytes; `None` if no tokenizer was found (then prompts are matched by
    /// guesses only).
    pub text: Option<EngineTexts>,
    pub kind: ModelKind,
}

/// A text of a model for each of its engines' rules: that of the first configured worker with a
/// tokenizer, to which this dereferences, and the texts of engines with other rules.
#[derive(Clone, Debug)]
pub struct EngineTexts {
    first: Arc<ModelText>,
    more: Box<[Arc<ModelText>]>,
}

impl EngineTexts {
    /// Takes the texts in the order of their workers; `None` for an empty list.
    #[must_use]
    pub fn from_list(texts: Vec<Arc<ModelText>>) -> Option<Self> {
        let mut texts = texts.into_iter();
        Some(Self { first: texts.next()?, more: texts.collect() })
    }

    /// The texts by other rules. A prompt counts as rendered only where all texts agree, because a
    /// prompt is rendered before its worker is chosen.
    #[must_use]
    pub fn more(&self) -> &[Arc<ModelText>] {
        &self.more
    }
}

impl Deref for EngineTexts {
    type Target = Arc<ModelText>;

    fn deref(&self) -> &Arc<ModelText> {
        &self.first
    }
}

/// Kind of a model name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelKind {
    /// A model, or an alias of a model.
    #[default]
    Base,
    /// A LoRA adapter of another model, with its own blocks.
    Adapter,
    /// A name without ranks that a present worker may serve: it no longer lists the name, or has
    /// not answered since the start.
    Expected,
    /// A model without a worker that this worker served before. The worker lists other models now.
    Dropped(WorkerIndex),
}

impl Model {
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        self.kind == ModelKind::Adapter
    }

    /// Does a present worker serve the model, or is a present worker expected to?
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.kind == ModelKind::Expected || !self.ranks.is_empty()
    }

    /// Is this the model for all names that no worker lists?
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

/// Converts the prompts of a model to the bytes that its engine processes.
#[derive(Debug)]
pub struct ModelText {
    /// Token id to bytes.
    pub vocabulary: Arc<Vocabulary>,
    /// The encoder that the engine uses instead of the template.
    pub chat_encoder: Option<ChatEncoder>,
    /// The chat template; `None` for models without a template.
    pub chat_template: Option<ChatTemplate>,
    /// Request parsing rules of the model's engine.
    pub rules: EngineRules,
}

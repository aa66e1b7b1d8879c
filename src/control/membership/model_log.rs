//! What the log says of models: their tokenizers, chat templates and lengths.

use super::super::fleet::{Fleet, ModelLength, UnequalLengths};
use forebay_discovery::FoundText;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Names of models or workers that one log line holds.
const LOGGED_NAMES_MAX: usize = 8;

/// What a description brought, once per change. Before the fleet takes the description.
pub(in crate::control) fn say_new(
    fleet: &Fleet,
    texts: &BTreeMap<Arc<str>, FoundText>,
    needs_text: bool,
) {
    for (model, found) in texts {
        if fleet.is_noted(model, &found.note) {
            continue;
        }
        if found.text.is_none() && needs_text {
            let why = &*found.note;
            warn!(model = &**model, why, "prompts of this model are not matched");
        } else {
            info!(model = &**model, text = found.note, "prompts of this model");
        }
    }
}

/// The directory for all serves several models: each time that a further one comes.
pub(in crate::control) fn say_shared(before: &[Arc<str>], now: &[Arc<str>], dir: Option<&Path>) {
    let grew = now.iter().any(|model| !before.contains(model));
    let (true, true, Some(dir)) = (grew, now.len() > 1, dir) else { return };
    warn!(
        models = named(now),
        model_dir = %dir.display(),
        "several models have the tokenizer of the one `model_dir` for all: it fits at most one \
         of them, unless they share it; set `model_dir` of each [[worker]] to the files of its own model"
    );
}

/// Workers serve a model with different lengths: each time that this changes.
pub(in crate::control) fn say_lengths(before: &[UnequalLengths], now: &[UnequalLengths]) {
    for unequal in now.iter().filter(|unequal| !before.contains(unequal)) {
        let UnequalLengths { model, shortest, longest } = unequal;
        warn!(
            model = &**model,
            shortest = in_words(shortest),
            longest = in_words(longest),
            "workers serve this model with different `max_model_len`: its card has the shortest, \
             and longer prompts fail at some workers; start them with the same length, or serve \
             the model under two names"
        );
    }
}

fn in_words(ModelLength { tokens, workers }: &ModelLength) -> String {
    format!("{tokens} at {}", named(workers))
}

/// The first of these names, for the log.
pub(in crate::control) fn named(models: &[Arc<str>]) -> String {
    let shown: Vec<&str> = models.iter().take(LOGGED_NAMES_MAX).map(|name| &**name).collect();
    let more = models.len().saturating_sub(LOGGED_NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

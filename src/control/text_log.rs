//! What the log says of the models' tokenizers and chat templates.

use super::fleet::Fleet;
use forebay_discovery::FoundText;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Model names of a worker that one log line holds.
const LOGGED_MODELS_MAX: usize = 8;

/// What a description brought, once per change. Before the fleet takes the description.
pub(super) fn say_new(fleet: &Fleet, texts: &BTreeMap<Arc<str>, FoundText>, needs_text: bool) {
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
pub(super) fn say_shared(before: &[Arc<str>], now: &[Arc<str>], dir: Option<&Path>) {
    let grew = now.iter().any(|model| !before.contains(model));
    let (true, true, Some(dir)) = (grew, now.len() > 1, dir) else { return };
    warn!(
        models = named(now),
        model_dir = %dir.display(),
        "several models have the tokenizer of the one `model_dir` for all: it fits at most one \
         of them, unless they share it; set `model_dir` of each [[worker]] to the files of its own model"
    );
}

/// The first of these models, for the log.
pub(super) fn named(models: &[Arc<str>]) -> String {
    let shown: Vec<&str> = models.iter().take(LOGGED_MODELS_MAX).map(|name| &**name).collect();
    let more = models.len().saturating_sub(LOGGED_MODELS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

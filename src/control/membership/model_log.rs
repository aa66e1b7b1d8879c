//! Log lines about models: tokenizers, chat templates, lengths, lists.

use super::super::fleet::{
    Fleet, ListNews, ModelLength, OmittedParts, SharedEngine, UnequalLengths,
};
use forebay_base::WorkerIndex;
use forebay_discovery::{FoundText, Listing};
use forebay_fleet::worker::EngineLosses;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Most names of models or workers in a log line.
const LOGGED_NAMES_MAX: usize = 8;

/// Logs each new text of a description. Runs before the fleet takes the description.
pub(super) fn log_texts(fleet: &Fleet, texts: &BTreeMap<Arc<str>, FoundText>, needs_text: bool) {
    for (model, found) in texts {
        if fleet.has_note(model, &found.note) {
            continue;
        }
        if found.text.is_none() && needs_text {
            let why = &*found.note;
            let help = "set `model_dir`";
            warn!(model = &**model, why, help, "prompts of this model are not matched");
        } else {
            info!(model = &**model, text = found.note, "prompts of this model");
        }
    }
}

/// Logs that several models share the common directory, whenever a further model does.
pub(super) fn log_sharing(before: &[Arc<str>], now: &[Arc<str>], dir: Option<&Path>) {
    let grew = now.iter().any(|model| !before.contains(model));
    let (true, true, Some(dir)) = (grew, now.len() > 1, dir) else { return };
    warn!(
        models = named(now),
        model_dir = %dir.display(),
        "several models have the tokenizer of the one `model_dir` for all: it fits at most one \
         of them, unless they share it; set `model_dir` of each [[worker]] to the files of its own model"
    );
}

/// Logs different lengths of a model, whenever they change.
pub(super) fn log_lengths(before: &[UnequalLengths], now: &[UnequalLengths]) {
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

/// Logs a worker with a missing list of models, and the return of the list.
pub(super) fn log_list(fleet: &mut Fleet, worker: WorkerIndex) {
    let ListNews { lost, is_back } = fleet.take_list_news(worker);
    let name = name_of(fleet, worker);
    if let Some((fault, does)) = lost {
        warn!(worker = name, fault, does, help = Listing::HELP, "worker lists no models");
    } else if is_back {
        let models = named(&fleet.model_names(worker));
        info!(worker = name, models, "worker lists its models");
    }
}

/// Logs a worker that serves other models than `before`. A lost model mostly means that the engine
/// was started with other flags.
pub(super) fn log_other_models(fleet: &Fleet, worker: WorkerIndex, before: &[Arc<str>]) {
    let now = fleet.model_names(worker);
    if before.is_empty() || *before == *now {
        return;
    }
    let name = name_of(fleet, worker);
    let dropped = fleet.dropped_models(worker);
    let is_dropped = before.iter().any(|model| dropped.contains(model));
    let before = named(before);
    let models = named(&now);
    if is_dropped {
        let help = EngineLosses::MODELS_HELP;
        warn!(worker = name, before, models, help, "worker serves other models now");
    } else {
        info!(worker = name, before, models, "worker serves other models now");
    }
}

/// Logs ranks and models of a description that have no place in the fleet.
pub(super) fn log_left_out(left: &OmittedParts) {
    if left.ranks + left.models > 0 {
        warn!(
            ranks = left.ranks,
            models = left.models,
            "the fleet is larger than this router's limits: these take no traffic"
        );
    }
}

/// Logs two workers that are the same engine, or may be.
pub(super) fn log_shared_engine(found: &SharedEngine) {
    let SharedEngine { first, second, address, is_certain } = found;
    if *is_certain {
        warn!(
            worker = &**second,
            same_as = &**first,
            %address,
            "one engine by two addresses: requests use only the other worker; remove one of them"
        );
    } else {
        warn!(
            worker = &**second,
            same_as = &**first,
            %address,
            "two names of one address: if they are one engine, remove one of the workers"
        );
    }
}

/// Logs URLs of orders without a worker. Each start logs workers that a source has yet to list.
pub(super) fn log_unlisted(urls: &[Arc<str>]) {
    if !urls.is_empty() {
        info!(
            count = urls.len(),
            workers = named(urls),
            "no worker has these URLs of `workers_state`: an order counts once discovery lists its \
             worker"
        );
    }
}

fn name_of(fleet: &Fleet, worker: WorkerIndex) -> String {
    fleet.name(worker).map_or_else(String::new, |name| name.to_string())
}

fn in_words(ModelLength { tokens, workers }: &ModelLength) -> String {
    format!("{tokens} at {}", named(workers))
}

/// The first names of the models, for the log.
fn named(models: &[Arc<str>]) -> String {
    let shown: Vec<&str> = models.iter().take(LOGGED_NAMES_MAX).map(|name| &**name).collect();
    let more = models.len().saturating_sub(LOGGED_NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

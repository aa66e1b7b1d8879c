//! Labels of legs, roles and routes in an explanation.

use forebay_base::RankIndex;
use forebay_fleet::trust::{GuessUse, RequestShape, SHARES};
use forebay_fleet::worker::{FleetSnapshot, Leg, Model};
use forebay_index::GuessKind;
use forebay_prompt::render::{RenderMethod, Unrenderable};
use forebay_select::{NoPair, PromptOverlaps, Route};
use serde_json::{Value, json};

/// Reason for a missing overlap.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NoMatch {
    #[error("the engine reads no cache for the request")]
    ReadsNoCache,
    #[error("the model has no tokenizer here")]
    NoText,
    #[error(transparent)]
    Unrenderable(#[from] Unrenderable),
}

/// Verdict about predicted cache hits of the shape.
pub(super) fn predictions(fleet: &FleetSnapshot, model: &Model, shape: RequestShape) -> Value {
    let trust = fleet.serving.trusts.of(&model.name, shape);
    let found = match (trust.guesses == GuessUse::Counted, trust.is_whole()) {
        (false, true) => "as_predicted",
        (true, true) => "more",
        (false, false) => "less",
        (true, false) => "more_and_less",
    };
    let percent = |share: &u8| u32::from(*share) * 100 / u32::from(SHARES);
    let claims: Option<Vec<u32>> =
        (!trust.is_whole()).then(|| trust.claim_shares.iter().map(percent).collect());
    json!({ "shape": shape.name(), "engines_find": found, "claims_percent_by_group": claims })
}

/// Kind and bytes of the guess about a rank.
pub(super) fn guess(
    matched: &PromptOverlaps,
    fleet: &FleetSnapshot,
    rank: RankIndex,
) -> (&'static str, u32) {
    let pending = matched.pending().get(rank).bytes;
    match matched.kind(fleet, rank) {
        GuessKind::Approximate => ("approximate", matched.overlaps().get(rank).bytes),
        GuessKind::Speculative if matched.guessed_beside(rank) > 0 => ("beside_events", pending),
        GuessKind::Speculative => ("speculative", pending),
    }
}

pub(crate) const fn leg_name(leg: Leg) -> &'static str {
    match leg {
        Leg::Whole => "whole",
        Leg::Prefill => "prefill",
        Leg::Decode => "decode",
    }
}

pub(crate) const fn route_name(route: Result<Route, NoPair>) -> Option<&'static str> {
    match route {
        Ok(Route::Whole(_)) => Some("whole"),
        Ok(Route::Pair) => Some("pair"),
        Err(_) => None,
    }
}

/// The reason against a pair.
pub(crate) const fn route_because(route: Result<Route, NoPair>) -> Option<&'static str> {
    match route {
        Ok(Route::Whole(because)) => Some(because.as_str()),
        Ok(Route::Pair) => None,
        Err(why) => Some(why.as_str()),
    }
}

pub(crate) fn way(rendered: RenderMethod) -> &'static str {
    match rendered {
        RenderMethod::Plan => "plan",
        RenderMethod::Template => "template",
        RenderMethod::TextPart => "template, up to the first part that is not text",
        RenderMethod::Raw => "raw",
        RenderMethod::Beginning => "its beginning alone",
    }
}

//! select: the choice of a rank is counted, noted in the story, and remembered.

use crate::exchange::request::Request;
use crate::overlap::prediction::{self, ComputingRank, PredictedHit};
use crate::overlap::prompt_match::ModelRequest;
use crate::state::shard::Shard;
use crate::story::event::{self, OverlapFacts};
use forebay_router::request::{ChosenRanks, RequestFlow};

/// Accounts for the choice of a rank: counters of overlap, the story, and the text of the prompt,
/// which is not needed again. Returns the predicted cache hit.
pub(super) fn account(
    shard: &Shard,
    request: &mut Request<'_>,
    flow: &RequestFlow,
    chosen: &ChosenRanks,
) -> Option<Box<PredictedHit>> {
    let Shard { env, routing, links, workers, .. } = shard;
    let facts = flow.facts();
    let fleet = workers.fleet();
    let rank = chosen.prefill_rank();
    let Request { buffers, story, .. } = request;
    let mut event = event::RankChoice {
        shard,
        chosen,
        arrived_at: facts.arrived_at,
        choice_reason: None,
        overlap: OverlapFacts::default(),
        notes: None,
    };
    let mut predicted = None;
    if let Some(model) = fleet.models.get(facts.model.index()) {
        let endpoint = flow.endpoint();
        let asked = ModelRequest { fleet: &fleet, model_index: facts.model, model, endpoint };
        let now = env.turn_began_at();
        let computing = ComputingRank::of(&workers.board, chosen, facts.arrived_at, now);
        predicted = prediction::account(env, routing, links, buffers, asked, computing);
        let session = facts.caller.session;
        event.choice_reason = Some(prediction::account_choice(env, routing, asked, session, rank));
        event.notes = fleet.serving.notes.as_ref().map(|sink| {
            let ask = asked.request(&routing.index, &buffers.api, buffers.body());
            (sink, ask, &buffers.prompt)
        });
    }
    event.overlap = OverlapFacts {
        bytes: prediction::held_bytes(routing, rank),
        tokens: predicted.as_deref().and_then(PredictedHit::tokens),
    };
    story.chosen(&event);
    routing.text.give(&shard.io, buffers.prompt.let_go());
    predicted
}

//! Predicted work on a rank, in tokens of prefill: what a new request would wait for, plus what it adds.

use crate::worker::RankLoad;

/// What one running request costs its rank's prefill, as prefill tokens: it shares every step of the batch.
const RUNNING_REQUEST_TOKENS: u64 = 32;
/// KV tokens held by running requests that weigh like one token of prefill: attention over them is cheap but
/// not free, and they crowd out cached blocks.
const HELD_TOKENS_PER_PREFILL_TOKEN: u64 = 64;

/// Cost of one rank for one request. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankCost(pub u64);

/// Tokens ahead of the request on that rank plus the tokens it would have to prefill itself.
///
/// `shared_tokens` of its prompt are believed to be in the rank's queue, as part of a sibling's: they are no wait for
/// other people's work, since any other rank would have to compute them for this request.
#[must_use]
pub fn predicted_work_tokens(
    load: &RankLoad,
    uncached_tokens: u64,
    shared_tokens: u64,
) -> RankCost {
    let queued = load.prefill_tokens().saturating_sub(shared_tokens);
    let running = u64::from(load.in_flight()) * RUNNING_REQUEST_TOKENS;
    let held = load.decode_tokens() / HELD_TOKENS_PER_PREFILL_TOKEN;
    RankCost(queued.saturating_add(uncached_tokens).saturating_add(running).saturating_add(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_keeps_its_conversation_until_its_backlog_exceeds_the_prefill_saved() {
        let (holder, other) = (RankLoad::default(), RankLoad::default());
        let cost = |load: &RankLoad, uncached| predicted_work_tokens(load, uncached, 0);
        holder.add_prefill(900);
        assert!(cost(&holder, 100) < cost(&other, 1_100));
        holder.add_prefill(200);
        assert!(cost(&holder, 100) > cost(&other, 1_100));
    }

    #[test]
    fn siblings_meet_until_the_rest_of_the_backlog_exceeds_the_prefill_saved() {
        let (rank, other) = (RankLoad::default(), RankLoad::default());
        // The first of the burst: 1,000 shared tokens and 100 of its own.
        rank.add_prefill(1_100);
        let mut met = 0;
        while predicted_work_tokens(&rank, 100, 1_000) < predicted_work_tokens(&other, 1_100, 0) {
            rank.add_prefill(100);
            met += 1;
        }
        assert_eq!(met, 9);
    }
}

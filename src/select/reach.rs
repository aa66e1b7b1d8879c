//! Which rank a request reaches. Ranks behind one address are told apart by the request alone, and
//! engines do not read that on every endpoint.

use forebay_base::RankIndex;
use forebay_fleet::worker::{Dialect, FleetSnapshot, Rank};
use forebay_prompt::parse::Endpoint;

/// True if a request that is sent to the rank is served by it. Else the engine chooses among its
/// ranks, by load: the worker is all that is chosen, and nothing may be claimed of the rank.
#[must_use]
pub fn reaches(fleet: &FleetSnapshot, index: RankIndex, endpoint: Endpoint) -> bool {
    let Some((rank, worker)) = fleet.rank(index) else { return false };
    let is_told = rank.dp_size <= 1 || rank.address != worker.address;
    is_told || reads_rank(worker.dialect, endpoint) || is_alone(fleet, rank)
}

/// Does an engine read the rank there? vLLM 0.32 passes the field on in chats, which messages
/// become, and in completions (`entrypoints`, `_get_data_parallel_rank`); SGLang 0.5.23 in
/// responses too, and the body's on `/generate`. Neither does for embeddings, rerank and score.
const fn reads_rank(dialect: Dialect, endpoint: Endpoint) -> bool {
    match (dialect, endpoint) {
        (Dialect::Openai, _) => false,
        (_, Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages) => true,
        (Dialect::Sglang, Endpoint::Responses | Endpoint::Generate) => true,
        _ => false,
    }
}

fn is_alone(fleet: &FleetSnapshot, rank: &Rank) -> bool {
    let at_its_address =
        |other: &&Rank| other.worker == rank.worker && other.address == rank.address;
    fleet.ranks.iter().filter(at_its_address).take(2).count() < 2
}

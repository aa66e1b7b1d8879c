//! Which rank a request reaches. Among ranks behind the same address, the request specifies the
//! rank, and engines do not read that on every endpoint.

use forebay_base::RankIndex;
use forebay_fleet::worker::{Dialect, FleetSnapshot, Rank};
use forebay_prompt::parse::Endpoint;

/// True if the rank serves a request that is sent to it. Otherwise the engine chooses among its
/// ranks by load: the router has chosen only the worker, and must make no claim about the rank.
#[must_use]
pub fn reaches(fleet: &FleetSnapshot, index: RankIndex, endpoint: Endpoint) -> bool {
    let Some((rank, worker)) = fleet.rank(index) else { return false };
    let has_own_address = rank.dp_size <= 1 || rank.address != worker.address;
    has_own_address || reads_rank(worker.dialect, endpoint) || is_alone(fleet, rank)
}

/// Does the engine read the requested rank on that endpoint? vLLM 0.32 reads the header for chats,
/// messages (converted to chats) and completions (`entrypoints`, `_get_data_parallel_rank`); SGLang
/// 0.5.23 also for responses, and the body member on `/generate`. Neither engine reads it for
/// embeddings, rerank and score.
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

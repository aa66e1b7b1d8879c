//! Address of the chosen rank, and the fields and body members that the router adds to the client's
//! request.

use forebay_base::{RankIndex, WorkerIndex};
use forebay_fleet::worker::{Dialect, FleetSnapshot, KvTransfer};
use forebay_http1::push_decimal;
use forebay_prompt::parse::Endpoint;
use forebay_select::reaches;
use std::net::SocketAddr;
use std::sync::Arc;

/// Address and identity of the rank that a request is sent to.
#[derive(Clone, Debug)]
pub struct SendPlan {
    pub rank: RankIndex,
    pub worker: WorkerIndex,
    /// Address to connect to.
    pub address: SocketAddr,
    /// Value of `Host`.
    pub authority: Arc<str>,
    /// Name in `x-forebay-worker`; with several ranks `name/dp_rank`.
    pub shown_as: Arc<str>,
    /// Replaces the client's `Authorization` when set.
    pub authorization: Option<Arc<str>>,
    pub dp: DpPlace,
    pub engine: PlannedEngine,
}

/// The place of a rank among the data-parallel ranks of its worker.
#[derive(Clone, Copy, Debug)]
pub struct DpPlace {
    /// The rank's number inside its worker.
    pub rank: u32,
    /// Ranks behind the address.
    pub size: u32,
    /// The rank's number again, if the request must specify it: several ranks share the address.
    pub pin: Option<u32>,
}

/// The engine behind a rank.
#[derive(Clone, Debug)]
pub struct PlannedEngine {
    pub dialect: Dialect,
    /// How the KV of a prefill rank reaches a decode rank.
    pub kv_transfer: Option<KvTransfer>,
}

impl SendPlan {
    /// The plan for a rank; `None` if the snapshot does not contain the rank. For an endpoint where
    /// the engine ignores a requested rank, the plan neither requests nor shows a rank.
    #[must_use]
    pub fn new(fleet: &FleetSnapshot, index: RankIndex, endpoint: Endpoint) -> Option<Self> {
        let (rank, worker) = fleet.rank(index)?;
        let several = rank.dp_size > 1 && reaches(fleet, index, endpoint);
        // vLLM since 0.11.1, SGLang since 0.5.10; other engines have no ranks to request.
        let pinned = several && worker.dialect != Dialect::Openai && rank.address == worker.address;
        Some(Self {
            rank: index,
            worker: rank.worker,
            address: rank.address,
            // A copy: requests clone this `Arc`, and other shards write the count of the fleet's.
            authority: Arc::from(&*worker.authority),
            shown_as: if several {
                format!("{}/{}", worker.name, rank.dp_rank.0).into()
            } else {
                Arc::clone(&worker.name)
            },
            authorization: worker.api_key.as_ref().map(|key| format!("Bearer {key}").into()),
            dp: DpPlace {
                rank: rank.dp_rank.0,
                size: rank.dp_size,
                pin: pinned.then_some(rank.dp_rank.0),
            },
            engine: PlannedEngine {
                dialect: worker.dialect,
                kv_transfer: rank.kv_transfer.as_ref().map(KvTransfer::copied),
            },
        })
    }

    /// Must a whole request to that endpoint specify the rank in its body? Both engines read the
    /// header `X-Data-Parallel-Rank`, but not SGLang on its own `/generate` (0.5.23,
    /// `entrypoints/http_server.py`), where `x-override-routed-dp-rank` counts only if overrides
    /// are switched on.
    #[must_use]
    pub fn pins_in_body(&self, endpoint: Endpoint) -> bool {
        self.dp.pin.is_some()
            && self.engine.dialect == Dialect::Sglang
            && endpoint == Endpoint::Generate
    }
}

/// Appends the start of a body with the rank as its first member, and returns the rest of `body`,
/// to be sent unchanged behind it. The body is an object without that member: a client that sends
/// the member is refused. A body that is no object is returned whole.
pub fn pin_in_body<'a>(body: &'a [u8], rank: u32, out: &mut Vec<u8>) -> &'a [u8] {
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"{") else { return body };
    out.extend_from_slice(b"{\"routed_dp_rank\":");
    push_decimal(u64::from(rank), out);
    if rest.trim_ascii_start().first() != Some(&b'}') {
        out.push(b',');
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_the_first_member_of_the_body() {
        for (body, expected) in [
            (r#"{"text":"{"}"#, r#"{"routed_dp_rank":7,"text":"{"}"#),
            ("\n { \"a\" : {} } ", "{\"routed_dp_rank\":7, \"a\" : {} } "),
            ("{}", "{\"routed_dp_rank\":7}"),
            ("{ \r\n} ", "{\"routed_dp_rank\":7 \r\n} "),
            ("[]", "[]"),
            ("", ""),
        ] {
            let mut out = Vec::new();
            let rest = pin_in_body(body.as_bytes(), 7, &mut out);
            out.extend_from_slice(rest);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}

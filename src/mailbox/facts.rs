//! The facts of a request, shared by every stage from the hints to the queue. A single struct,
//! passed on and never copied field by field.

use forebay_base::{DpRank, ModelIndex, NanosSinceStart, RankIndex};
use forebay_fleet::worker::{Dialect, Requester, SessionKey};

/// Identity of the caller, and its right to a place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Class in the queue; class 0 is served first.
    pub class: u8,
    /// Requests with the same number share the part of a tenant: see
    /// [`TenantPart`](forebay_fleet::tenant::TenantPart).
    pub tenant: u64,
    /// Weight of the tenant beside other tenants.
    pub weight: u32,
    /// The session that the request belongs to, if its client names a session.
    pub session: Option<SessionKey>,
    /// Source of the request for blame: a hash of the tenant that a key proves, else of the
    /// client's address. A failure is held against a rank for the same source alone, until requests
    /// of a second source fail there.
    pub source: u32,
}

/// Limits the ranks that may answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Ranks with this number in their worker.
    Number(DpRank),
    /// Ranks at the address of this rank.
    Beside(RankIndex),
    /// Ranks of engines of this family, and with this number in their worker where the number
    /// matters.
    Engine(Dialect, Option<DpRank>),
}

/// Facts of a request that all stages share.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestFacts {
    pub model: ModelIndex,
    pub caller: Caller,
    /// Time when the request was read completely. Its order in the queue and its longest wait count
    /// from here.
    pub arrived_at: NanosSinceStart,
    /// The wait for a rank ends here.
    pub deadline: NanosSinceStart,
    /// The client's own deadline, if the client sent it.
    pub client_deadline: Option<NanosSinceStart>,
    /// Limits the ranks that may answer the request.
    pub pin: Option<Pin>,
    /// Ranks that failed the request, or refused a connection.
    pub tried: Vec<RankIndex>,
    /// Expected number of output tokens.
    pub output_tokens: u32,
}

impl RequestFacts {
    /// The caller and the model for blame.
    #[must_use]
    pub const fn requester(&self) -> Requester {
        Requester { caller: self.caller.source, model: self.model, is_forced: false }
    }
}

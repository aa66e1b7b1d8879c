//! The facts of a request: what every stage from the hints to the queue knows of it. One struct,
//! passed on and never copied field by field.

use crate::worker::{Dialect, Requester, SessionKey};
use forebay_base::{DpRank, ModelIndex, NanosSinceStart, RankIndex};

/// Who asks, and with which right to a place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Class in the queue; 0 is served first.
    pub class: u8,
    /// Requests with the same number share the part of one tenant: see
    /// [`TenantPart`](crate::tenant::TenantPart).
    pub tenant: u64,
    /// The tenant's part beside other tenants.
    pub weight: u32,
    /// The session that the request belongs to, if its client names one.
    pub session: Option<SessionKey>,
    /// Failures are held against ranks for requests of the same source alone, until requests of a
    /// second source fail there: a hash of the tenant that a key shows, else of the client's
    /// address.
    pub source: u32,
}

/// The ranks that may answer a request, where not all may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Those of this number in their worker.
    Number(DpRank),
    /// Those at the address of this one.
    Beside(RankIndex),
    /// Those of engines of this family, and of this number in their worker where that counts.
    Engine(Dialect, Option<DpRank>),
}

/// What is known of a request, wherever it is.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestFacts {
    /// The model it asks for.
    pub model: ModelIndex,
    /// Whose request it is, and its class.
    pub caller: Caller,
    /// When it had been read. Its order among others and its longest wait count from here.
    pub arrived_at: NanosSinceStart,
    /// It waits for a rank no longer than this.
    pub deadline: NanosSinceStart,
    /// The client gives up at this moment, as far as it says.
    pub client_deadline: Option<NanosSinceStart>,
    /// The ranks that may answer it, where not all may.
    pub pin: Option<Pin>,
    /// Ranks that failed it, or could not be connected to.
    pub tried: Vec<RankIndex>,
    /// Output tokens that it is expected to make.
    pub output_tokens: u32,
}

impl RequestFacts {
    /// The caller and the model, as far as blame goes.
    #[must_use]
    pub const fn requester(&self) -> Requester {
        Requester { caller: self.caller.source, model: self.model, is_forced: false }
    }
}

//! The replicas' figures for `/metrics`, as plain data.

/// Counts and gauges at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFigures {
    /// True while this router is connected to NATS; `None` with peers.
    pub is_nats_connected: Option<bool>,
    /// Each peer except this router's own address.
    pub peers: Vec<PeerFigures>,
    /// Replicas that are alive, this router included.
    pub replica_count: u64,
    /// Messages by kind and outcome.
    pub messages: Vec<MessageCount>,
    /// Fields of messages that are unknown to this version.
    pub unknown_fields: u64,
    /// Each rank, in fleet order.
    pub ranks: Vec<RankFigures>,
}

/// A URL of `replicas.peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFigures {
    /// The URL without a trailing slash.
    pub url: String,
    /// True while its messages arrive.
    pub is_connected: bool,
}

/// Number of messages with the same kind and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCount {
    /// Label `kind` of the metric.
    pub kind: &'static str,
    /// Label `direction` of the metric.
    pub direction: &'static str,
    /// Label `result` of the metric.
    pub result: &'static str,
    pub count: u64,
}

/// A rank's share among the replicas. All 0 for a further name of an engine: sums over ranks count
/// an engine once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankFigures {
    /// Requests that other replicas have on the rank.
    pub in_flight: u64,
    /// KV tokens that other replicas have on the rank.
    pub kv_tokens: u64,
    /// Requests that this replica may have there; `None` without a limit.
    pub places_allowed: Option<u64>,
    /// True if this replica is the rank's steward.
    pub is_stewarded: bool,
}

//! What `/metrics` shows of the replicas, as plain data.

/// Counts and gauges at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFigures {
    /// True while this router is connected to NATS; `None` with peers.
    pub is_nats_connected: Option<bool>,
    /// Of each peer, but for this router's own address.
    pub peers: Vec<PeerFigures>,
    /// Replicas that are alive, this router included.
    pub replica_count: u64,
    /// Messages by kind and by what became of them.
    pub messages: Vec<MessageCount>,
    /// Fields of messages that this version does not know.
    pub unknown_fields: u64,
    /// Of each rank, in the order of the fleet.
    pub ranks: Vec<RankFigures>,
}

/// One URL of `replicas.peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFigures {
    /// The URL without a slash at its end.
    pub url: String,
    /// True while its messages come.
    pub is_connected: bool,
}

/// Messages of one kind with one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCount {
    /// Label `kind` of the metric.
    pub kind: &'static str,
    /// Label `direction` of the metric.
    pub direction: &'static str,
    /// Label `result` of the metric.
    pub result: &'static str,
    /// Messages so far.
    pub count: u64,
}

/// One rank as the replicas share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFigures {
    /// Requests that other replicas have on the rank.
    pub in_flight: u64,
    /// KV tokens that other replicas have on the rank.
    pub kv_tokens: u64,
    /// Requests that this replica may have there; `None` without a limit.
    pub places_allowed: Option<u64>,
    /// True if this replica gives out the places of the rank.
    pub is_stewarded: bool,
}

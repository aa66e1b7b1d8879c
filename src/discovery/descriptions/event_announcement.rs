//! The KV event stream of a rank: what the router follows, and what the engine announces in its
//! place.

use forebay_zmq::ZmqEndpoint;

/// A rank's announced KV event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventAnnouncement {
    /// Socket that the rank publishes on.
    pub endpoint: ZmqEndpoint,
    /// Endpoint that replays missed batches.
    pub replay: Option<ZmqEndpoint>,
    /// First part of each message.
    pub topic: String,
    /// Endpoint that the engine announces, where the configuration has another endpoint.
    pub announced: Option<ZmqEndpoint>,
    /// Endpoint of replays that the engine announces, where the configuration has another.
    pub announced_replay: Option<ZmqEndpoint>,
    /// Topic that the engine announces for this endpoint, where `topic` is no prefix of it.
    pub announced_topic: Option<String>,
}

impl EventAnnouncement {
    /// Events at an endpoint, without replay and topic.
    #[must_use]
    pub const fn at(endpoint: ZmqEndpoint) -> Self {
        Self {
            endpoint,
            replay: None,
            topic: String::new(),
            announced: None,
            announced_replay: None,
            announced_topic: None,
        }
    }

    /// What a feed follows, without what the engine announces in its place.
    #[must_use]
    pub fn followed(&self) -> Self {
        let topic = self.topic.clone();
        Self { replay: self.replay.clone(), topic, ..Self::at(self.endpoint.clone()) }
    }
}

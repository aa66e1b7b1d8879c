//! Evidence that the KV events of a rank belong to another rank, or do not come.

use forebay_base::WorkerIndex;
use std::sync::Arc;

/// A socket of an engine's KV events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSocket {
    Publisher,
    Replay,
}

/// Why the KV events that the router follows for a rank may be wrong: they belong to another rank,
/// or do not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedSuspicion {
    pub socket: EventSocket,
    /// Endpoint of that socket that the router uses.
    pub endpoint: Arc<str>,
    pub sign: SuspicionSign,
}

/// What shows that the events of a rank may be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspicionSign {
    /// The other engine announces the endpoint, and the rank's engine another endpoint.
    Crossed(OtherFeed),
    /// The router uses the endpoint for the other rank too.
    Shared(OtherFeed),
    /// The endpoint replays other batches than the rank publishes.
    ForeignReplay,
    /// The topic that the router subscribes to is no prefix of the announced topic.
    Topic { followed: Arc<str>, announced: Arc<str> },
    /// No batch of the rank has come, and its engine has computed prompts meanwhile.
    Silent { topic: Arc<str> },
}

/// The feed of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFeed {
    /// The rank, by the name of its worker.
    pub name: Arc<str>,
    pub worker: WorkerIndex,
    /// Endpoint that the suspect rank's engine announces in place of the followed endpoint.
    pub announced_here: Option<Arc<str>>,
    /// Endpoint that the other rank's engine announces in place of the followed endpoint.
    pub announced_there: Option<Arc<str>>,
}

impl EventSocket {
    /// Key of a worker with the endpoint.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Publisher => "kv_events",
            Self::Replay => "replay",
        }
    }

    /// Option of the engine's --kv-events-config with the endpoint.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::Publisher => "endpoint",
            Self::Replay => "replay_endpoint",
        }
    }
}

impl FeedSuspicion {
    /// The endpoints and the other rank, in words.
    #[must_use]
    pub fn cause(&self) -> String {
        let Self { socket, endpoint, sign } = self;
        let verbs = match socket {
            EventSocket::Publisher => ("has the KV events of", "is followed for"),
            EventSocket::Replay => ("replays the KV events of", "replays for"),
        };
        match sign {
            SuspicionSign::Crossed(other) => {
                let own = other.announced_here.as_deref().unwrap_or_default();
                format!("{endpoint} {} {}, this worker announces {own}", verbs.0, other.name)
            }
            SuspicionSign::Shared(other) => {
                let announced = match (&other.announced_here, &other.announced_there) {
                    (Some(own), _) => format!(", this worker announces {own}"),
                    (None, Some(own)) => format!(", which announces {own}"),
                    (None, None) => String::new(),
                };
                format!("{endpoint} {} {} too{announced}", verbs.1, other.name)
            }
            SuspicionSign::ForeignReplay => {
                format!("{endpoint} replays other batches than this worker publishes")
            }
            SuspicionSign::Topic { followed, announced } => format!(
                "{endpoint} has no batch of the topic {followed:?}, this worker announces \
                 {announced:?}"
            ),
            SuspicionSign::Silent { topic } => {
                let of_topic = match &**topic {
                    "" => String::new(),
                    topic => format!(" and the topic {topic:?}"),
                };
                format!("{endpoint} has no batch of this rank{of_topic}, which computes prompts")
            }
        }
    }

    /// What an operator does about it.
    #[must_use]
    pub fn help(&self) -> String {
        let key = self.socket.key();
        match &self.sign {
            SuspicionSign::Crossed(_) => "correct `kv_events` and `replay`, or remove both keys: \
                                          engines announce their endpoints"
                .to_owned(),
            // Where a single engine announces another endpoint, its worker has the wrong key.
            SuspicionSign::Shared(OtherFeed { announced_here: Some(_), .. }) => {
                format!("correct `{key}` of this worker, or remove the key")
            }
            SuspicionSign::Shared(OtherFeed { name, announced_there: Some(_), .. }) => {
                format!("correct `{key}` of {name}, or remove the key there")
            }
            SuspicionSign::Shared(_) => match self.socket {
                EventSocket::Publisher => {
                    "set `kv_events` of each worker to the endpoint of its own engine, or a \
                     `kv_topic` of its own"
                        .to_owned()
                }
                EventSocket::Replay => "set `replay` of each worker to the `replay_endpoint` of \
                                        its own engine"
                    .to_owned(),
            },
            SuspicionSign::ForeignReplay => "set `replay` to the `replay_endpoint` of this \
                                             worker's engine, or remove the key"
                .to_owned(),
            SuspicionSign::Topic { announced, .. } => {
                format!("set `kv_topic` to {announced:?} or a prefix of it, or remove the key")
            }
            SuspicionSign::Silent { topic } if topic.is_empty() => {
                "correct `kv_events`: the publisher of this rank is elsewhere, or its engine \
                 publishes nothing"
                    .to_owned()
            }
            SuspicionSign::Silent { .. } => "correct `kv_topic` or `kv_events`: compare both with \
                                             the engine's --kv-events-config"
                .to_owned(),
        }
    }

    /// The other rank, if the sign has shown which.
    #[must_use]
    pub const fn other(&self) -> Option<&OtherFeed> {
        match &self.sign {
            SuspicionSign::Crossed(other) | SuspicionSign::Shared(other) => Some(other),
            SuspicionSign::ForeignReplay
            | SuspicionSign::Topic { .. }
            | SuspicionSign::Silent { .. } => None,
        }
    }

    /// True for the same endpoints and sign, whatever the other rank is called.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let announced = |suspicion: &Self| {
            let feed = suspicion.other();
            feed.map(|feed| (feed.announced_here.clone(), feed.announced_there.clone()))
        };
        self.socket == other.socket
            && self.endpoint == other.endpoint
            && std::mem::discriminant(&self.sign) == std::mem::discriminant(&other.sign)
            && announced(self) == announced(other)
    }
}

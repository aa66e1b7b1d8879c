//! Several routers in front of the same engines: *replicas*. They tell each other of rejection
//! windows, of their load and of themselves, directly or through NATS. So a queue that is full here
//! is known there, and a rank's limits hold for all of them together.
//!
//! [`wire`] is what they say, [`replica`] one replica without sockets and clocks,
//! [`account`] and [`divide`] how a limit is shared, [`peers`] who else is there, [`local`] the
//! bridge to the load board, [`task`] the clock, [`transport`] the connections: [`nats`], or
//! [`mesh`] from router to router. Nothing on the path of a request waits for any of it: shards
//! read two words that this module writes. Without a connection the router goes on alone: after 3 s
//! the others' load and windows are forgotten and its limits are its own. Limits: 32 replicas, 1
//! MiB a message, as many ranks and windows as a fleet may have; full channels drop, and the next
//! second's full report makes up for it.

mod account;
mod bell;
mod connected_replica;
mod divide;
mod figures;
mod inbound;
mod local;
mod mesh;
mod message_lines;
mod message_readers;
mod nats;
mod own_load;
mod peer_link;
mod peers;
mod replica;
#[cfg(test)]
mod sim_tests;
mod show;
mod tally;
mod task;
mod tenants;
mod transport;
mod wire;

pub use connected_replica::{ConnectedReplica, ReplicaTurn};
pub use figures::{MessageCount, PeerFigures, RankFigures, ReplicaFigures};
pub use inbound::Received;
pub use message_lines::{LineTooLong, MessageLines};
pub use message_readers::{MessageStream, SubscribeRefused};
pub use own_load::{Elsewhere, Local, LocalRank, LocalWindow};
pub use replica::{Outgoing, Replica};
pub use task::Replicas;
pub use wire::{MessageKind, ReplicaId, WindowLeg};

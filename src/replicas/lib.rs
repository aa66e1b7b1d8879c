//! Several routers in front of the same engines: *replicas*. They exchange rejection windows, their
//! load and membership, directly or through NATS. So a queue that is full here is known there, and
//! a rank's limits hold for all replicas together.
//!
//! [`wire`] defines the messages, [`replica`] a replica without sockets and clocks, [`account`] and
//! [`divide`] how a limit is shared, [`overcount`] what a limit of KV tokens gets back, [`peers`]
//! the known replicas, [`local`] the bridge to the load board, [`task`] the clock,
//! [`transports::transport`] the connections: [`transports::nats`], or [`transports::mesh`] from
//! router to router. The path of a request never waits for any of it: shards read two words that
//! this module writes. Without a connection the router works alone: after 3 s the load and windows
//! of the other replicas expire and its limits are its own. Limits: 32 replicas, 1 MiB per message,
//! as many ranks and windows as a fleet may have; full channels drop messages, and the full report
//! of the next second compensates.

mod account;
mod bell;
mod connected_replica;
mod divide;
mod figures;
mod transports;
mod local;
#[cfg(test)]
mod message_tests;
mod own_load;
mod overcount;
mod peers;
mod replica;
#[cfg(test)]
mod name_tests;
#[cfg(test)]
mod sim_tests;
mod show;
mod tally;
mod task;
mod tenants;
mod wire;

pub use connected_replica::{ConnectedReplica, ReplicaTurn};
pub use figures::{MessageCount, PeerFigures, RankFigures, ReplicaFigures};
pub use own_load::{ForeignUsage, KvInUse, Local, LocalRank, LocalWindow};
pub use replica::{Outgoing, Replica};
pub use task::Replicas;
pub use transports::inbound::InboundMessage;
pub use transports::message_lines::{LineTooLong, MessageLines};
pub use transports::message_readers::{MessageStream, SubscribeError};
pub use wire::{MessageKind, ReplicaId, WindowLeg};

//! Links to the other shards and to the control plane.

use super::env::Env;
use forebay_base::limits::ROUTED_OWN_MAX;
use forebay_base::{RankIndex, RouterId, ShardIndex, WorkerIndex};
use forebay_board::account::{Count, ShardCounters, ShardPhase};
use forebay_index::RoutedPrompt;
use forebay_mailbox::AdminConnector;
use forebay_mailbox::{AdapterRequest, MeshMessage, StoredResponse};
use forebay_ring::{Bell, MeshSender};
use forebay_router::queue::Outbox;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Rings to the other shards, and messages that wait for room in them.
pub(crate) struct Links {
    pub(crate) mesh: RefCell<MeshSender<MeshMessage>>,
    /// Bells of all shards, by number.
    pub(crate) bells: Vec<Arc<Bell>>,
    /// Counters of all shards, by number. Their phases show the progress of a drain.
    pub(crate) shard_counters: Vec<Arc<ShardCounters>>,
    /// To the control plane.
    pub(crate) control: ControlLinks,
    /// Messages that found their ring full, by receiving shard.
    pub(crate) outbox: RefCell<Outbox<MeshMessage>>,
    /// Routed prompts for this shard's own slice; at most `ROUTED_OWN_MAX`.
    pub(crate) routed: RefCell<VecDeque<Box<RoutedPrompt>>>,
    /// Set once the inbox has emptied the mesh ring after the flag was cleared.
    pub(crate) has_read_mesh: Cell<bool>,
}

/// Links to the control plane for requests.
pub(crate) struct ControlLinks {
    /// Connector to the admin API, if clients may call that API through the client port.
    pub(crate) admin: Option<Arc<dyn AdminConnector>>,
    /// Requests to load adapters.
    pub(crate) adapters: SyncSender<AdapterRequest>,
    /// Id of this router towards workers.
    pub(crate) router_id: RouterId,
}

impl Links {
    pub(crate) fn new(
        mesh: MeshSender<MeshMessage>,
        bells: Vec<Arc<Bell>>,
        shards: Vec<Arc<ShardCounters>>,
        control: ControlLinks,
    ) -> Self {
        Self {
            mesh: RefCell::new(mesh),
            outbox: RefCell::new(Outbox::new(bells.len())),
            bells,
            shard_counters: shards,
            control,
            routed: RefCell::default(),
            has_read_mesh: Cell::new(false),
        }
    }

    pub(crate) fn ring_bell(&self, shard: ShardIndex) {
        if let Some(bell) = self.bells.get(shard.index()) {
            bell.ring();
        }
    }

    /// True for a shard whose thread has ended: messages to it are never read.
    pub(crate) fn has_ended(&self, shard: ShardIndex) -> bool {
        let phase = self.shard_counters.get(shard.index()).map(|counters| counters.phase());
        phase == Some(ShardPhase::Ended)
    }

    /// The shard that sends a rank's prefill legs. If that shard has ended, this shard.
    pub(crate) fn home_of_rank(&self, env: &Env, rank: RankIndex) -> ShardIndex {
        let home = ShardIndex::try_from_index(rank.index() % self.bells.len().max(1));
        home.filter(|&home| !self.has_ended(home)).unwrap_or(env.number)
    }

    /// Sends a message that must not be lost. If the ring is full, the outbox holds the message and
    /// the inbox retries.
    pub(crate) fn post(&self, env: &Env, to: ShardIndex, message: MeshMessage) {
        let mut mesh = self.mesh.borrow_mut();
        let sent = self.outbox.borrow_mut().post(to, message, |message| mesh.send(to, message));
        self.ring_bell(if sent { to } else { env.number });
    }

    /// Retries messages that found their ring full. Drops messages to ended shards.
    pub(crate) fn empty_outbox(&self) {
        let mut mesh = self.mesh.borrow_mut();
        let send = |to, message| if self.has_ended(to) { Ok(()) } else { mesh.send(to, message) };
        self.outbox.borrow_mut().flush(send, |to| self.ring_bell(to));
    }

    /// True if the outbox holds messages.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.borrow().is_empty()
    }

    /// Makes the other shards drop their idle connections to a failed worker.
    pub(crate) fn broadcast_failure(&self, env: &Env, worker: WorkerIndex) {
        let mut mesh = self.mesh.borrow_mut();
        let peers: Vec<_> = mesh.peers().collect();
        for peer in peers {
            if mesh.send(peer, MeshMessage::WorkerFailed { worker }).is_err() {
                env.count(Count::MeshDropped);
            } else {
                self.ring_bell(peer);
            }
        }
    }

    /// Sends the location of a stored response to the other shards.
    pub(crate) fn broadcast_response(&self, env: &Env, response: StoredResponse) {
        let mut mesh = self.mesh.borrow_mut();
        let peers: Vec<_> = mesh.peers().collect();
        for peer in peers {
            if mesh.send(peer, MeshMessage::Kept(Box::new(response))).is_err() {
                env.count(Count::MeshDropped);
            } else {
                self.ring_bell(peer);
            }
        }
    }

    /// Sends a routed prompt to the owner of its slice. Drops and counts it if the ring is full.
    pub(crate) fn post_routed(&self, env: &Env, owner: ShardIndex, prompt: Box<RoutedPrompt>) {
        let posted = if owner == env.number {
            let mut own = self.routed.borrow_mut();
            let has_room = own.len() < ROUTED_OWN_MAX;
            if has_room {
                own.push_back(prompt);
            }
            has_room
        } else {
            self.mesh.borrow_mut().send(owner, MeshMessage::Routed(prompt)).is_ok()
        };
        if posted {
            self.ring_bell(owner);
        } else {
            env.count(Count::GuessedPromptsDropped);
        }
    }
}

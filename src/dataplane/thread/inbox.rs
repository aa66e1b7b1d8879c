//! Messages of other threads to this shard: KV operations for its slice, fleets, commands, hints. A
//! single task serves all rings. It yields after a bounded amount of work, so that a flood of
//! events does not starve requests. A panic ends the current turn, not the task.

use super::configure::configure;
use super::slice::OwnSlice;
use crate::ingress::Deadline;
use crate::runtime::{Replies, Sleeper};
use crate::state::shard::Shard;
use crate::state::workers::ShardFleet;
use forebay_base::NanosSinceStart;
use forebay_base::limits::APPLY_OPS_PER_TURN;
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::KvBatch;
use forebay_mailbox::{MeshMessage, ShardCommand};
use forebay_net::end_turn;
use forebay_ring::{Bell, Consumer, LatestReader, MeshReceiver};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Pause after a panic. A panic that recurs in every turn must neither take all CPU time of the
/// shard nor fill the disk with log lines.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// Receiving ends of the rings, and the slice that only this shard writes.
pub(crate) struct Inbox {
    pub(crate) kv: Consumer<KvBatch>,
    pub(crate) fleet: LatestReader<Arc<FleetSnapshot>>,
    pub(crate) commands: Consumer<ShardCommand>,
    pub(crate) mesh: MeshReceiver<MeshMessage>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) replies: Replies,
    pub(crate) slice: OwnSlice,
    /// Timer for the next scheduled check of the queues. Rearmed, so that each check creates no
    /// timer.
    pub(crate) alarm: Deadline,
}

impl Inbox {
    /// Serves the rings until the process ends.
    pub(crate) async fn run(mut self, shard: Rc<Shard>, sleeper: Sleeper) {
        loop {
            let more = self.turn_or_panic(&shard).await;
            if more {
                end_turn().await;
                continue;
            }
            // Park before the last check for work: a thread that posts after the check then rings
            // the bell.
            self.bell.park();
            if self.has_work(&shard) {
                self.bell.unpark();
                // The pending work may depend on other tasks, so let them run first.
                end_turn().await;
                continue;
            }
            self.sleep(&shard, &sleeper).await;
            self.bell.unpark();
        }
    }

    /// Sleeps until the bell rings or the queues are due for a scheduled check.
    async fn sleep(&mut self, shard: &Shard, sleeper: &Sleeper) {
        let at = shard.queues.home.borrow().look_again_at();
        self.alarm.set_at(at.unwrap_or(NanosSinceStart(u64::MAX)));
        let is_set = at.is_some();
        poll_fn(|cx| {
            if is_set && self.alarm.poll(cx).is_ready() {
                return Poll::Ready(());
            }
            sleeper.poll_rung(cx)
        })
        .await;
    }

    /// Runs a turn and survives a panic. The shard's data stays valid, except that a request may
    /// have lost its place in a queue. That request then waits until its deadline.
    async fn turn_or_panic(&mut self, shard: &Shard) -> bool {
        let turned = catch_unwind(AssertUnwindSafe(|| self.turn(shard)));
        if turned.is_err() {
            shard.env.panicked("a turn of a shard's inbox panicked; it goes on");
            forebay_net::sleep(AFTER_PANIC).await;
        }
        turned.unwrap_or(true)
    }

    fn has_work(&self, shard: &Shard) -> bool {
        let empty = self.kv.is_empty()
            && self.replies.is_empty()
            && self.commands.is_empty()
            && self.mesh.is_empty()
            && self.fleet.is_empty()
            && shard.links.routed.borrow().is_empty()
            && !shard.links.has_unsent()
            && !shard.queues.home.borrow().has_news(&shard.workers.board);
        !empty
    }

    /// Runs a bounded round over all rings. True if work is left.
    fn turn(&mut self, shard: &Shard) -> bool {
        // The fleet first: the rest of the turn uses it.
        if let Some(fleet) = self.fleet.take() {
            configure(shard, &mut self.slice, &fleet.config);
            self.slice.meet(&shard.env, &fleet, shard.env.now());
            let mut home = shard.queues.home.borrow_mut();
            shard.routing.informed().take_over(&mut home, &fleet, shard.env.now());
            *shard.workers.fleet.borrow_mut() = ShardFleet::new(fleet);
            if !shard.intake.ready.is_set() {
                shard.intake.ready.set();
            }
        }
        while let Some(command) = self.commands.pop() {
            match command {
                ShardCommand::Unready => shard.env.leaving.is_unready.set(true),
                ShardCommand::Drain(order) => {
                    shard.env.leaving.is_unready.set(!order.is_handed_over);
                    shard.env.leaving.order.set(Some(order));
                    shard.env.draining.set();
                }
                #[cfg(debug_assertions)]
                ShardCommand::Plant(fault) => super::planted_fault::plant(fault),
            }
        }
        while let Some((ticket, reply)) = self.replies.pop() {
            shard.io.offload.deliver(ticket, reply);
        }
        self.slice.tick(&shard.env);
        self.slice.apply_events(&shard.env, &mut self.kv);
        // A separate budget: a flood of events must not delay the hints until they are useless.
        let mut work = 0;
        while work < APPLY_OPS_PER_TURN {
            let own = shard.links.routed.borrow_mut().pop_front();
            let Some(prompt) = own else { break };
            work += self.slice.remember(&shard.env, &prompt);
        }
        while work < APPLY_OPS_PER_TURN {
            let Some((_, message)) = self.mesh.receive() else { break };
            work += match message {
                MeshMessage::WorkerFailed { worker } => {
                    shard.forget_connections(worker);
                    1
                }
                MeshMessage::Routed(prompt) => self.slice.remember(&shard.env, &prompt),
                MeshMessage::Kept(response) => {
                    shard.routing.stored_responses.borrow_mut().note(*response);
                    1
                }
                message => {
                    shard.take(message);
                    1
                }
            };
        }
        if self.mesh.is_empty() {
            shard.links.has_read_mesh.set(true);
        }
        // After the messages, so that the queues reflect every join and leave. The verdicts then go
        // out in the same turn.
        shard.serve_home();
        shard.links.empty_outbox();
        let expiring_left = self.slice.expire(&shard.env);
        expiring_left || self.has_more(shard)
    }

    /// True if a ring still has messages because the budget ran out.
    fn has_more(&self, shard: &Shard) -> bool {
        let empty = self.kv.is_empty()
            && self.mesh.is_empty()
            && shard.links.routed.borrow().is_empty()
            && !shard.links.has_unsent();
        !empty
    }
}

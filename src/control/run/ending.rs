//! The first and the last moments of the loop: it takes over from the process before, hands over to
//! the next one, drains.

use super::super::error::ControlError;
use super::super::feeds;
use super::super::lifecycle::Drain;
use super::super::membership;
use super::Control;
use forebay_fleet::account::ShardPhase;
use forebay_handover::HostCall;
use tracing::{error, info, warn};

impl Control {
    pub(super) fn tell_ready(&self) {
        if self.handover.is_open() {
            self.systemd.tell_ready();
        }
    }

    /// From the process before, once this one accepts and knows what its workers hold.
    pub(super) fn take_over(&mut self) {
        let listens = |phase: &ShardPhase| *phase == ShardPhase::Listening;
        let serves = self.env.ports.phases().iter().all(listens);
        if !self.handover.is_open() && serves && self.snapshots.restoring().is_none() {
            self.handover.serves();
            self.tell_ready();
        }
    }

    /// By a new process.
    pub(super) fn called(&mut self, call: HostCall) {
        match call {
            HostCall::Models(answer) => {
                let workers = self.fleet.remembered();
                tokio::task::spawn_blocking(move || {
                    let file = membership::file_of(&workers);
                    let file = file.inspect_err(|error| {
                        warn!(%error, "the models of the workers are not handed over");
                    });
                    let _ = answer.send(file.ok());
                });
            }
            HostCall::Index(answer) => {
                let copy = self.snapshots.copy(self.feeds.copyable());
                tokio::task::spawn_local(feeds::answer(copy, answer));
            }
            HostCall::Sockets(answer) => {
                let is_given = self.drain.is_none();
                if is_given {
                    self.handover.gives();
                }
                let _ = answer.send(is_given);
            }
            HostCall::Returned => self.handover.takes_back(),
            HostCall::Serves(process, answer) => {
                let is_first = self.drain.is_none();
                if is_first {
                    let process = process.as_raw_nonzero().get();
                    info!(process, "handed over: this process serves the clients that it has");
                    self.handover.is_over();
                    self.live.end();
                    self.reports.end_notes();
                    if let Some(replicas) = &self.replicas {
                        replicas.hand_over();
                    }
                    self.systemd.tell_main(process);
                    let now = self.env.clock.now();
                    self.drain_by(Drain::handed_over(now, &self.env.config.timeouts));
                }
                let _ = answer.send(is_first);
            }
        }
    }

    /// The first call drains, the second cuts.
    pub(super) fn start_drain(&mut self) {
        let now = self.env.clock.now();
        let drain = if let Some(drain) = self.drain {
            info!("cutting what is left");
            drain.cut(now)
        } else {
            let timeouts = &self.env.config.timeouts;
            let delay = timeouts.drain_delay;
            let patience = timeouts.drain;
            info!(?delay, ?patience, "draining: no new connections; again to cut");
            Drain::new(now, timeouts, self.handover.has_heir())
        };
        self.handover.ends();
        self.systemd.tell_stopping();
        self.drain_by(drain);
    }

    fn drain_by(&mut self, drain: Drain) {
        if let Some(replicas) = &self.replicas {
            replicas.drain();
        }
        self.env.ports.tell(drain.command(self.env.clock.now()));
        self.drain = Some(drain);
    }

    /// True when all shards have ended, or should have.
    pub(super) fn drained(&mut self) -> bool {
        let phases = self.env.ports.phases();
        let ended = phases.iter().filter(|phase| **phase == ShardPhase::Ended).count();
        let all_ended = ended == phases.len();
        if ended > 0 && self.drain.is_none() {
            // Shards end on their own only by a fault. Requests that wait in their queues wait in
            // vain.
            let fault = ControlError::ShardEnded { ended, shards: phases.len() };
            error!(error = %fault, "draining the others; then the process ends with an error");
            self.fault = Some(fault);
            self.start_drain();
        }
        let Some(drain) = self.drain else { return all_ended };
        let now = self.env.clock.now();
        self.env.ports.tell(drain.command(now));
        let late = drain.is_given_up(now);
        if late && !all_ended {
            self.fault.get_or_insert(ControlError::ShardsLate);
        }
        all_ended || late
    }

    /// Says goodbye to the other routers, and writes the last snapshot where no process comes next.
    pub(super) async fn finish(mut self) -> Result<(), ControlError> {
        if let Some(replicas) = &self.replicas {
            replicas.leave().await;
        }
        self.keep_workers_at_last().await;
        self.snapshots.models.written().await;
        self.reports.finish(&self.env, &self.snapshot).await;
        if !self.drain.is_some_and(|drain| drain.is_handed_over()) {
            self.snapshots.finish(|| self.feeds.copyable()).await;
        }
        self.fault.map_or(Ok(()), Err)
    }
}

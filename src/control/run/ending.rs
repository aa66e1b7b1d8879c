//! The first and the last moments of the loop: it takes over from the process before, hands over to
//! the next one, drains.

use super::super::error::ControlError;
use super::super::membership;
use super::Control;
use forebay_handover::HostCall;
use tracing::warn;

impl Control {
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
                self.feeds.hand_over_index(answer);
            }
            HostCall::Sockets(answer) => {
                let _ = answer.send(self.lifecycle.give_sockets());
            }
            HostCall::Returned => self.lifecycle.take_sockets_back(),
            HostCall::Serves(process, answer) => {
                let process = process.as_raw_nonzero().get();
                let is_first = self.lifecycle.hand_over(&self.env, process);
                if is_first {
                    self.live.end();
                    self.reports.end_notes();
                    if let Some(replicas) = &self.replicas {
                        replicas.hand_over();
                    }
                    self.drain_replicas();
                }
                let _ = answer.send(is_first);
            }
        }
    }

    pub(super) fn start_drain(&mut self) {
        self.drain_replicas();
        self.lifecycle.start_drain(&self.env);
    }

    pub(super) fn drain_replicas(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.drain();
        }
    }

    /// Says goodbye to the other routers, and writes the last snapshot where no process comes next.
    pub(super) async fn finish(mut self) -> Result<(), ControlError> {
        if let Some(replicas) = &self.replicas {
            replicas.leave().await;
        }
        self.keep_workers_at_last().await;
        self.setup.models.written().await;
        self.reports.finish(&self.env, &self.snapshot).await;
        if !self.lifecycle.is_handed_over() {
            self.feeds.finish().await;
        }
        self.lifecycle.result()
    }
}

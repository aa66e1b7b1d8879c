//! The task of the ranks: owns the schedule of every rank, turns real time into virtual time, and
//! sends tokens to the waiting requests and cache events to the publishers. A single task on the
//! engine's runtime; other code sends commands through [`RanksHandle`].

use super::prefix_cache::CacheEvent;
use super::rank_stats::RankStats;
use super::rank_time::RankTime;
use super::schedule::{RankSchedule, RequestId, TokenStep, Work};
use crate::random_id::random_u64;
use ahash::AHashMap;
use forebay_base::Clock;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Tokens of a request on their way to its HTTP answer. Unbounded by type; holds at most the
/// request's answer.
pub(crate) type StepSink = mpsc::UnboundedSender<TokenStep>;

/// Batches waiting for a publisher. When full, the rank stalls, as in the real engine.
pub(crate) type BatchSink = mpsc::Sender<Vec<CacheEvent>>;

enum RankCommand {
    Submit {
        request: RequestId,
        dp_rank: Option<usize>,
        work: Work,
        steps: StepSink,
        taken: oneshot::Sender<Option<usize>>,
    },
    Stall {
        time: Duration,
    },
    ClearCaches {
        done: oneshot::Sender<bool>,
    },
    Held {
        prompt: Vec<u32>,
        salt: String,
        done: oneshot::Sender<Vec<usize>>,
    },
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleRefusal {
    /// Too many requests wait in the rank.
    Refused,
    /// The engine is stopping.
    Stopping,
}

/// A request that a rank has taken.
#[derive(Debug)]
pub(crate) struct AcceptedRequest {
    pub(crate) request: RequestId,
    pub(crate) dp_rank: usize,
    pub(crate) guard: AbortOnDrop,
}

/// Handle of the ranks' task. Cheap to clone; the task ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct RanksHandle {
    commands: mpsc::Sender<RankCommand>,
    /// Unbounded by type, because dropping uses it; each request sends at most 1 message.
    aborts: mpsc::UnboundedSender<RequestId>,
    stats: watch::Receiver<Vec<RankStats>>,
}

/// Removes a request from its rank when dropped; for a finished prefill, frees the blocks.
#[derive(Debug)]
pub(crate) struct AbortOnDrop {
    request: RequestId,
    aborts: mpsc::UnboundedSender<RequestId>,
    /// Set after the last token, when there is nothing left to abort.
    pub(crate) finished: bool,
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if !self.finished {
            // Fails only when the engine is stopping.
            let _stopping = self.aborts.send(self.request);
        }
    }
}

impl RanksHandle {
    /// Starts the task on the current runtime. `publishers` is empty, or has an entry per rank.
    #[must_use]
    pub(crate) fn start(
        clock: Clock,
        ranks: Vec<RankSchedule>,
        publishers: Vec<BatchSink>,
    ) -> Self {
        let (commands, command_inbox) = mpsc::channel(COMMANDS_MAX);
        let (aborts, abort_inbox) = mpsc::unbounded_channel();
        let now = ranks.iter().map(RankSchedule::stats).collect();
        let (stats_out, stats) = watch::channel(now);
        let task = RanksTask {
            time: RankTime::new(clock),
            ranks,
            publishers,
            owners: AHashMap::new(),
            steps: Vec::new(),
            stats: stats_out,
        };
        tokio::spawn(task.run(command_inbox, abort_inbox));
        Self { commands, aborts, stats }
    }

    /// Submits a request to a rank, or to the least busy rank. Its tokens come out of `steps`.
    pub(crate) async fn submit(
        &self,
        dp_rank: Option<usize>,
        work: Work,
        steps: StepSink,
    ) -> Result<AcceptedRequest, ScheduleRefusal> {
        let request = RequestId(random_u64());
        // Created first, so that a client that leaves during the wait also removes the request.
        let mut guard = AbortOnDrop { request, aborts: self.aborts.clone(), finished: false };
        let (taken, answer) = oneshot::channel();
        let command = RankCommand::Submit { request, dp_rank, work, steps, taken };
        self.commands.send(command).await.map_err(|_| ScheduleRefusal::Stopping)?;
        if let Some(dp_rank) = answer.await.map_err(|_| ScheduleRefusal::Stopping)? {
            return Ok(AcceptedRequest { request, dp_rank, guard });
        }
        guard.finished = true;
        Err(ScheduleRefusal::Refused)
    }

    /// Stalls all ranks for that time, like an engine that hangs: requests are accepted, but no
    /// tokens come out.
    pub(crate) async fn stall(&self, time: Duration) {
        let _stopping = self.commands.send(RankCommand::Stall { time }).await;
    }

    /// Empties the caches of all ranks; `false` if a cache is in use.
    pub(crate) async fn clear_caches(&self) -> bool {
        let (done, answer) = oneshot::channel();
        let sent = self.commands.send(RankCommand::ClearCaches { done }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Number of leading full blocks of a prompt on each rank; empty when the engine is stopping.
    pub(crate) async fn held_blocks(&self, prompt: Vec<u32>, salt: String) -> Vec<usize> {
        let (done, answer) = oneshot::channel();
        let sent = self.commands.send(RankCommand::Held { prompt, salt, done }).await;
        if sent.is_ok() { answer.await.unwrap_or_default() } else { Vec::new() }
    }

    /// Figures of every rank after its last change.
    #[must_use]
    pub(crate) fn stats(&self) -> Vec<RankStats> {
        self.stats.borrow().clone()
    }
}

struct RanksTask {
    time: RankTime,
    ranks: Vec<RankSchedule>,
    publishers: Vec<BatchSink>,
    owners: AHashMap<RequestId, (usize, StepSink)>,
    steps: Vec<TokenStep>,
    stats: watch::Sender<Vec<RankStats>>,
}

impl RanksTask {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<RankCommand>,
        mut aborts: mpsc::UnboundedReceiver<RequestId>,
    ) {
        loop {
            let wake = self.turn().await;
            tokio::select! {
                biased;
                Some(request) = aborts.recv() => self.abort(request),
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                () = sleep_or_wait(wake) => {}
            }
        }
    }

    /// Advances all ranks to now; returns the time until the next event.
    async fn turn(&mut self) -> Option<Duration> {
        let now = self.time.now();
        for rank in &mut self.ranks {
            rank.advance(now, &mut self.steps);
        }
        self.deliver();
        self.publish().await;
        self.stats.send_modify(|stats| {
            stats.clear();
            stats.extend(self.ranks.iter().map(RankSchedule::stats));
        });
        let next = self.ranks.iter().filter_map(RankSchedule::next_wake).min()?;
        Some(self.time.until(next))
    }

    fn deliver(&mut self) {
        let mut gone = Vec::new();
        for step in self.steps.drain(..) {
            let Some((_, sink)) = self.owners.get(&step.request) else { continue };
            if sink.send(step).is_err() && !step.last {
                gone.push(step.request);
            }
            if step.last {
                self.owners.remove(&step.request);
            }
        }
        gone.into_iter().for_each(|request| self.abort(request));
    }

    async fn publish(&mut self) {
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            for batch in rank.take_batches() {
                if let Some(publisher) = self.publishers.get(at) {
                    let _stopping = publisher.send(batch).await;
                }
            }
        }
    }

    fn obey(&mut self, command: RankCommand) {
        let now = self.time.now();
        match command {
            RankCommand::Stall { time } => self.time.stand_still(time),
            RankCommand::Submit { request, dp_rank, work, steps, taken } => {
                if steps.is_closed() {
                    return;
                }
                let least_busy = || {
                    let loads = self.ranks.iter().map(RankSchedule::in_flight).enumerate();
                    loads.min_by_key(|(_, in_flight)| *in_flight).map(|(at, _)| at)
                };
                let Some(at) = dp_rank.or_else(least_busy) else { return };
                let Some(rank) = self.ranks.get_mut(at) else { return };
                let is_taken = rank.submit(now, request, work, &mut self.steps);
                if is_taken {
                    self.owners.insert(request, (at, steps));
                }
                let _client_left = taken.send(is_taken.then_some(at));
            }
            RankCommand::ClearCaches { done } => {
                let mut all = true;
                for rank in &mut self.ranks {
                    all &= rank.clear_cache();
                }
                let _client_left = done.send(all);
            }
            RankCommand::Held { prompt, salt, done } => {
                let held = self.ranks.iter().map(|rank| rank.held_blocks(&prompt, &salt)).collect();
                let _client_left = done.send(held);
            }
        }
    }

    fn abort(&mut self, request: RequestId) {
        let now = self.time.now();
        match self.owners.remove(&request) {
            Some((at, _)) => {
                if let Some(rank) = self.ranks.get_mut(at) {
                    rank.abort(now, request);
                }
            }
            // A finished request; for a prefill, some rank holds its blocks.
            None => drop(self.ranks.iter_mut().any(|rank| rank.let_go(now, request))),
        }
    }
}

async fn sleep_or_wait(wake: Option<Duration>) {
    match wake {
        Some(wake) => tokio::time::sleep(wake).await,
        None => std::future::pending().await,
    }
}

/// Requests between HTTP and the ranks. When full, HTTP waits.
const COMMANDS_MAX: usize = 1_024;

//! One shard: the inbox's turn as `dataplane/thread/inbox.rs` and `dataplane/thread/queues.rs` run
//! it, cut into steps that the steps of other shards come between. Tasks of requests run between
//! two turns only: a shard is a thread.

use super::check::Before;
use super::plan::Plan;
use super::world::{Checked, Event, World};
use fastrand::Rng;
use forebay_base::{NanosSinceStart, ShardIndex};
use forebay_board::{LoadBoard, LoadReport, LoadReports, ShardBoard};
use forebay_config::Policy;
use forebay_fleet::worker::FleetSnapshot;
use forebay_mailbox::{MeshMessage, Ticket, Verdict};
use forebay_ring::{Bell, MeshPort, MeshReceiver, MeshSender};
use forebay_router::dispatch::RetryBudget;
use forebay_router::queue::{Home, Outbox};
use forebay_router::request::{Loads, StageRules, Stages, TakeOutcome};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct SimShard {
    pub(crate) home: Home,
    pub(crate) stages: Stages,
    pub(crate) fleet: Arc<FleetSnapshot>,
    /// A newer fleet that was not looked at.
    pub(crate) slot: Option<Arc<FleetSnapshot>>,
    pub(crate) reports_sent: Vec<LoadReport>,
    pub(crate) alarm: Option<NanosSinceStart>,
    pub(crate) draining: bool,
    pub(crate) stalled_until: NanosSinceStart,
    pub(crate) tasks: VecDeque<usize>,
    /// A task that has decided to post this; the next step of the shard does.
    pub(crate) posting: VecDeque<(usize, ShardIndex, MeshMessage)>,
    phase: Phase,
    outbox: Outbox<MeshMessage>,
    sender: MeshSender<MeshMessage>,
    receiver: MeshReceiver<MeshMessage>,
    verdicts: VecDeque<(Ticket, Verdict)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asleep,
    Start,
    Drain,
    Serve,
    Post,
    Flush,
    Park,
}

impl SimShard {
    pub(crate) fn new(
        index: usize,
        port: MeshPort<MeshMessage>,
        fleet: &Arc<FleetSnapshot>,
        plan: &Plan,
        board: &Arc<LoadBoard>,
        random: Rng,
    ) -> Self {
        let shards = plan.shards;
        let index = ShardIndex::try_from_index(index).unwrap();
        let board = ShardBoard::from(Arc::clone(board));
        Self {
            home: Home::default(),
            stages: stages(index, plan.policy, board, random),
            fleet: Arc::clone(fleet),
            slot: None,
            reports_sent: Vec::new(),
            alarm: None,
            draining: false,
            stalled_until: NanosSinceStart(0),
            tasks: VecDeque::new(),
            posting: VecDeque::new(),
            phase: Phase::Start,
            outbox: Outbox::new(shards),
            sender: port.sender,
            receiver: port.receiver,
            verdicts: VecDeque::new(),
        }
    }

    /// What the shell looks at once more before it sleeps.
    pub(crate) fn has_work(&self, board: &LoadBoard) -> bool {
        !self.receiver.is_empty()
            || !self.outbox.is_empty()
            || self.slot.is_some()
            || self.home.has_news(board)
    }

    pub(crate) fn receive_reports(&mut self) {
        for report in self.reports_sent.drain(..) {
            self.stages.loads.reports.take(report);
        }
    }
}

/// What the requests of a shard decide with.
pub(crate) fn stages(index: ShardIndex, policy: Policy, board: ShardBoard, random: Rng) -> Stages {
    let rules = StageRules {
        policy,
        first_byte_max: Duration::from_secs(10),
        retries_after_send: true,
        attempts_max: 3,
    };
    let reports = LoadReports::new(Duration::from_millis(300));
    Stages::new(index, rules, Loads { board, reports }, RetryBudget::new(100), random)
}

/// Has anybody taken the announcement of its sleep back? Puts it back if not.
fn is_rung(bell: &Bell) -> bool {
    let silent = bell.unpark();
    if silent {
        bell.park();
    }
    !silent
}

impl World {
    pub(crate) fn has_something_to_do(&self, at: usize) -> bool {
        let SimShard { phase, posting, tasks, .. } = &self.shards[at];
        let is_awake = *phase != Phase::Asleep || is_rung(&self.bells[at]);
        is_awake || !posting.is_empty() || !tasks.is_empty()
    }

    pub(crate) fn step_shard(&mut self, at: usize) -> Checked {
        if let Some((id, to, message)) = self.shards[at].posting.pop_front() {
            self.post(at, to, message)?;
            self.shards[at].tasks.push_back(id);
            return Ok(());
        }
        let task_first = self.random.bool();
        let shard = &mut self.shards[at];
        match shard.phase {
            Phase::Asleep if is_rung(&self.bells[at]) => shard.phase = Phase::Start,
            Phase::Asleep => return self.run_task(at),
            Phase::Start if task_first && !shard.tasks.is_empty() => return self.run_task(at),
            Phase::Start => {
                shard.phase = Phase::Drain;
                if let Some(fleet) = shard.slot.take() {
                    shard.stages.take_over(&mut shard.home, &fleet, self.now);
                    shard.fleet = Arc::clone(&fleet);
                    self.check_windows();
                    self.note(|| format!("shard {at} has fleet {}", fleet.generation));
                }
            }
            Phase::Drain => match shard.receiver.receive() {
                Some((from, message)) => {
                    self.books.take(from.index(), at, &message)?;
                    return self.take(at, message);
                }
                None => shard.phase = Phase::Serve,
            },
            Phase::Serve => {
                shard.phase = Phase::Post;
                return self.serve_home(at);
            }
            Phase::Post => match shard.verdicts.pop_front() {
                Some((ticket, verdict)) => {
                    let message = MeshMessage::Verdict { ticket, verdict: Box::new(verdict) };
                    return self.post(at, ticket.shard, message);
                }
                None => shard.phase = Phase::Flush,
            },
            Phase::Flush => {
                let sender = &mut shard.sender;
                let bells = &self.bells;
                shard
                    .outbox
                    .flush(|to, message| sender.send(to, message), |to| bells[to.index()].ring());
                let more = !shard.receiver.is_empty() || !shard.outbox.is_empty();
                shard.phase = if more { Phase::Start } else { Phase::Park };
                self.set_alarm(at);
                if !more {
                    self.bells[at].park();
                }
            }
            Phase::Park => {
                shard.phase = if shard.has_work(&self.board) {
                    self.bells[at].unpark();
                    Phase::Start
                } else {
                    Phase::Asleep
                };
            }
        }
        Ok(())
    }

    fn run_task(&mut self, at: usize) -> Checked {
        self.shards[at].tasks.pop_front().map_or(Ok(()), |id| self.task(id))
    }

    fn post(&mut self, at: usize, to: ShardIndex, message: MeshMessage) -> Checked {
        if to.index() == at {
            return self.take(at, message);
        }
        self.books.post(at, to.index(), &message);
        let SimShard { outbox, sender, .. } = &mut self.shards[at];
        let sent = outbox.post(to, message, |message| sender.send(to, message));
        self.stats.kept += u64::from(!sent);
        self.bells[if sent { to.index() } else { at }].ring();
        Ok(())
    }

    fn take(&mut self, at: usize, message: MeshMessage) -> Checked {
        match &message {
            MeshMessage::Join(waiter) => {
                self.note(|| format!("home {at}: {:?} joins {:?}", waiter.ticket, waiter.queue));
                self.books.at_home.insert(waiter.ticket, (at, (**waiter).clone()));
            }
            MeshMessage::Leave { queue, ticket } => {
                self.note(|| format!("home {at}: {ticket:?} leaves {queue:?}"));
                self.books.at_home.remove(ticket);
            }
            _ => {}
        }
        let SimShard { stages, home, fleet, .. } = &mut self.shards[at];
        match stages.take(home, fleet, message) {
            TakeOutcome::News => self.bells[at].ring(),
            TakeOutcome::Delivered(ticket) => {
                self.note(|| format!("shard {at}: {ticket:?} hears"));
                self.books.delivered.insert(ticket);
                if let Some(&id) = self.books.tickets.get(&ticket)
                    && self.requests[id].woken.take()
                {
                    self.shards[at].tasks.push_back(id);
                }
            }
            TakeOutcome::Returned(ticket, _) => {
                self.note(|| format!("shard {at}: {ticket:?} hears nothing"));
                self.stats.returned += u64::from(self.books.arrive(ticket).is_some());
            }
            TakeOutcome::Other(message) => {
                return Err(format!("{message:?} is no message of a queue"));
            }
        }
        Ok(())
    }

    fn serve_home(&mut self, at: usize) -> Checked {
        if self.shards[at].home.is_empty() {
            return Ok(());
        }
        self.shards[at].receive_reports();
        self.look_for_holds(at);
        let before = Before { levels: self.levels(at), targets: self.targets(at) };
        let shard = &mut self.shards[at];
        let fleet = Arc::clone(&shard.fleet);
        let verdicts = shard.stages.serve(&mut shard.home, &fleet, self.now);
        self.note(|| format!("home {at} looks, {} verdicts", verdicts.len()));
        self.check_verdicts(at, &fleet, &verdicts, &before)?;
        self.check_spare(at, &fleet)?;
        self.stats.held_back += u64::from(self.holds_back(at));
        self.shards[at].verdicts.extend(verdicts);
        Ok(())
    }

    fn set_alarm(&mut self, shard: usize) {
        let Some(at) = self.shards[shard].home.look_again_at() else { return };
        if self.shards[shard].alarm.is_some_and(|set| set <= at) {
            return;
        }
        self.shards[shard].alarm = Some(at);
        self.at(at, Event::Alarm(shard));
    }
}

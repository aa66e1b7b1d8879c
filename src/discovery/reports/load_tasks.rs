//! Tasks that fetch load reports: a task per polled worker, a task per subscribed rank. Starts,
//! replaces and ends tasks to match the plans. Tasks own nothing that outlives them, so dropping a
//! task ends it.

use super::poll::Poll;
use super::push::Push;
use crate::http::WorkerClients;
use forebay_base::{Clock, WorkerIndex};
use forebay_config::LoadConfig;
use forebay_load::{LoadPlan, LoadReporter, ReportSource};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;

/// All tasks that fetch load reports.
pub struct LoadTasks {
    reporter: Rc<LoadReporter>,
    clock: Clock,
    clients: WorkerClients,
    config: LoadConfig,
    timeout: Duration,
    running: HashMap<WorkerIndex, (LoadPlan, JoinSet<()>)>,
}

impl LoadTasks {
    /// Without tasks. Workers must respond within `timeout`.
    #[must_use]
    pub fn new(
        reporter: Rc<LoadReporter>,
        clock: Clock,
        clients: WorkerClients,
        config: LoadConfig,
        timeout: Duration,
    ) -> Self {
        Self { reporter, clock, clients, config, timeout, running: HashMap::new() }
    }

    /// Applies these settings from now on. Ends all tasks; [`Self::adjust`] starts them again.
    pub fn set_config(&mut self, config: LoadConfig, timeout: Duration) {
        self.config = config;
        self.timeout = timeout;
        self.running.clear();
    }

    /// Source of a worker's load reports, if any.
    #[must_use]
    pub fn source(&self, worker: WorkerIndex) -> Option<ReportSource> {
        self.running.get(&worker).map(|(plan, _)| plan.source)
    }

    /// Starts and ends tasks to match the plans.
    pub fn adjust(&mut self, plans: Vec<LoadPlan>) {
        self.running.retain(|_, (running, _)| plans.contains(running));
        for plan in plans {
            if !self.running.contains_key(&plan.worker) {
                let tasks = self.start(&plan);
                self.running.insert(plan.worker, (plan, tasks));
            }
        }
    }

    fn start(&self, plan: &LoadPlan) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let key = plan.api_key.as_deref().map(str::to_owned);
        let poll = Poll {
            plan: plan.clone(),
            asker: self.clients.asker(&plan.authority, key, self.timeout),
            reporter: Rc::clone(&self.reporter),
            clock: self.clock,
            interval: self.config.interval,
            backs_off: self.config.back_off,
            is_fallback: plan.source == ReportSource::Push,
        };
        tasks.spawn_local(poll.run());
        if plan.source != ReportSource::Push {
            return tasks;
        }
        let shared = Rc::new(plan.clone());
        for (dp_rank, planned) in (plan.first..).zip(&plan.ranks) {
            let publisher = planned.as_ref().and_then(|planned| planned.publisher.clone());
            let Some(publisher) = publisher else { continue };
            let reporter = Rc::clone(&self.reporter);
            let push = Push { plan: Rc::clone(&shared), dp_rank, publisher, reporter };
            tasks.spawn_local(async move { match push.run().await {} });
        }
        tasks
    }
}

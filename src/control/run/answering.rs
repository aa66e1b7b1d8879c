//! What the admin API asks.

use super::Control;
use forebay_admin::{ExplainFacts, Question};
use forebay_replicas::{MessageStream, ReplicaId, SubscribeRefused};
use std::sync::Arc;

impl Control {
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Ready(answer) => {
                let _ = answer.send(self.readiness());
            }
            Question::Metrics(answer) => {
                let text = self.scrape(forebay_admin::render_metrics);
                let _ = answer.send(text);
            }
            Question::Workers(answer) => {
                let _ = answer.send(self.workers(forebay_admin::list_workers));
            }
            Question::Worker(name, answer) => {
                let _ = answer.send(self.workers(|all| forebay_admin::worker_named(&name, all)));
            }
            Question::SetDraining(name, order, answer) => {
                let done = self.set_draining(&name, order);
                let shown = || self.workers(|all| forebay_admin::worker_named(&name, all));
                let _ = answer.send(done.map(|()| shown()));
            }
            Question::SetSleeping(name, sleeps, answer) => {
                let _ = answer.send(self.set_sleeping(&name, sleeps));
            }
            Question::CallEngines(call, answer) => {
                self.feeds.call_engines(&self.fleet, &call, answer);
            }
            Question::AddWorker(asked, answer) => {
                let _ = answer.send(self.add_worker(&asked));
            }
            Question::RemoveWorker(name, answer) => {
                self.leave(&name);
                let _ = answer.send(self.workers(|all| forebay_admin::worker_named(&name, all)));
            }
            Question::Kept(answer) => self.confirm_kept(answer),
            Question::Reload(answer) => {
                let _ = answer.send(self.reload());
            }
            #[cfg(debug_assertions)]
            Question::Plant(shard, fault, answer) => {
                let _ = answer.send(self.env.ports.plant(shard, fault));
            }
            Question::Watch(answer) => {
                let _ = answer.send(self.live.join());
                self.show_live();
            }
            Question::Notes(answer) => {
                let _ = answer.send(self.read_notes());
            }
            Question::Replicas(answer) => {
                let _ = answer.send(self.replicas.as_ref().map(|replicas| replicas.list()));
            }
            Question::ReplicaMessages(reader, answer) => {
                let _ = answer.send(self.messages_for(reader));
            }
            Question::Windows(answer) => {
                let _ = answer.send(self.windows());
            }
            Question::SetWindow(asked, answer) => {
                let windows = self.env.board.windows();
                let now = self.env.clock.now();
                let set = asked.apply(&self.snapshot, windows, now);
                let _ = answer.send(set.map(|()| self.windows()));
            }
            Question::Overlap(asked, answer) => {
                self.explaining.ask(asked, self.explain_facts(), answer);
            }
        }
    }

    fn explain_facts(&self) -> ExplainFacts {
        ExplainFacts {
            config: Arc::clone(&self.env.config),
            fleet: Arc::clone(&self.snapshot),
            board: Arc::clone(&self.env.board),
            reports: self.feeds.reporter().reports().clone(),
            index: self.env.index.clone(),
            counters: self.env.ports.counters(),
            now: self.env.clock.now(),
        }
    }

    fn messages_for(&self, reader: Option<ReplicaId>) -> Result<MessageStream, SubscribeRefused> {
        let replicas = self.replicas.as_ref().ok_or(SubscribeRefused::NoPeers)?;
        replicas.subscribe(reader)
    }
}

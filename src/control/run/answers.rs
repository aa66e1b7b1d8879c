//! Answers to questions of the admin API.

use super::super::membership::Confirmation;
use super::Control;
use forebay_admin::{
    AddRefusal, AddWorkerRequest, NoStreamMove, NotesReader, Question, SleepRefusal, WorkerDrain,
};
use serde_json::Value;

impl Control {
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Ready(answer) => {
                let _ = answer.send(self.publication.readiness(&self.owners()));
            }
            Question::Metrics(answer) => {
                let text = self.publication.scrape(&self.owners(), forebay_admin::render_metrics);
                let _ = answer.send(text);
            }
            Question::Workers(answer) => {
                let list = forebay_admin::list_workers;
                let _ = answer.send(self.publication.workers(&self.owners(), list));
            }
            Question::Worker(name, answer) => {
                let _ = answer.send(self.worker(&name));
            }
            Question::CallEngines(call, answer) => {
                self.feeds.call_engines(self.membership.fleet(), &call, answer);
            }
            Question::Watch(answer) => {
                let (publication, owners) = self.split();
                let _ = answer.send(publication.watch());
                publication.show_live(&owners);
            }
            Question::Notes(answer) => {
                let _ = answer.send(self.read_notes());
            }
            Question::Replicas(answer) => {
                let _ = answer.send(self.publication.replicas());
            }
            Question::ReplicaMessages(reader, answer) => {
                let _ = answer.send(self.publication.replica_messages(reader));
            }
            Question::Windows(answer) => {
                let _ = answer.send(self.publication.windows(&self.env));
            }
            Question::Overlap(question, answer) => {
                let facts = self.publication.explain_facts(&self.owners());
                self.publication.explaining().ask(question, facts, answer);
            }
            Question::SetDraining(name, order, answer) => {
                let _ = answer.send(self.set_draining(&name, order));
            }
            Question::SetSleeping(name, sleeps, answer) => {
                let _ = answer.send(self.set_sleeping(&name, sleeps));
            }
            Question::AddWorker(request, answer) => {
                let _ = answer.send(self.add_worker(&request));
            }
            Question::RemoveWorker(name, answer) => {
                let change = self.membership.remove_worker(&self.env, &name);
                self.apply(change);
                let _ = answer.send(self.worker(&name));
            }
            Question::OrdersStored(answer) => self.confirm_orders(answer),
            Question::Reload(answer) => {
                let _ = answer.send(self.reload());
            }
            Question::SetWindow(request, answer) => {
                let now = self.env.clock.now();
                let set = request.apply(self.publication.fleet(), self.env.board.windows(), now);
                let _ = answer.send(set.map(|()| self.publication.windows(&self.env)));
            }
            #[cfg(debug_assertions)]
            Question::Plant(shard, fault, answer) => {
                let _ = answer.send(self.env.ports.plant(shard, fault));
            }
        }
    }

    fn confirm_orders(&mut self, answer: Confirmation) {
        let generation = self.publication.fleet().generation;
        let is_handed_over = self.lifecycle.is_handed_over();
        self.membership.confirm(&self.env, generation, is_handed_over, answer);
    }

    fn worker(&self, name: &str) -> Option<Value> {
        self.publication.workers(&self.owners(), |all| forebay_admin::worker_named(name, all))
    }

    fn set_draining(
        &mut self,
        name: &str,
        order: WorkerDrain,
    ) -> Result<Option<Value>, NoStreamMove> {
        let change = self.membership.set_draining(&self.env, name, order)?;
        self.apply(change);
        Ok(self.worker(name))
    }

    /// Returns the worker after the order: to sleep it drains first, to wake the engine gets the
    /// order at once.
    fn set_sleeping(&mut self, name: &str, sleeps: bool) -> Result<Value, SleepRefusal> {
        let change = self.membership.set_sleeping(&self.env, name, sleeps)?;
        self.apply(change);
        self.worker(name).ok_or(SleepRefusal::Unknown)
    }

    /// Returns the new worker, which has not answered yet.
    fn add_worker(&mut self, request: &AddWorkerRequest) -> Result<Value, AddRefusal> {
        let (name, change) = self.membership.add_worker(&self.env, request)?;
        self.apply(change);
        // Never `Full` here: `apply` has published the worker.
        self.worker(&name).ok_or(AddRefusal::Full)
    }

    fn read_notes(&mut self) -> Option<NotesReader> {
        let reader = self.reports.read_notes(&self.env.ports)?;
        // The shards need the reader's port before the notes of the present fleet are passed on.
        self.publish();
        self.reports.pass_on_notes(&self.env.ports, self.publication.fleet());
        Some(reader)
    }
}

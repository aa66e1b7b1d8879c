//! Calls of engines: sleep and wake-up orders, and calls that the admin API passes on. Each call is
//! a task beside the loop. At most [`ENGINES_CALLED_MAX`] engines are called at a time, and at most
//! [`ENGINE_CALLS_MAX`] calls of the admin API run; a further call is refused.

use super::super::fleet::{EngineAccess, Fleet};
use forebay_admin::{EngineCall, EngineCallRefusal, EngineCallResult, EngineReply};
use forebay_base::WorkerIndex;
use forebay_base::limits::{ENGINE_ANSWERS_BYTES_MAX, ENGINE_CALLS_MAX, ENGINES_CALLED_MAX};
use forebay_discovery::WorkerClients;
use futures_util::future::join_all;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

/// Answers of the engines, or the reason why no engine was called.
type CallAnswers = Result<Vec<EngineCallResult>, EngineCallRefusal>;

/// Calls under way, and the clients and turns of further calls.
pub(super) struct EngineCalls {
    clients: WorkerClients,
    orders: JoinSet<OrderResult>,
    admin_turns: Arc<Semaphore>,
    engine_turns: Rc<Semaphore>,
    /// Workers with caches that a call emptied, since the last look.
    emptied: Rc<RefCell<Vec<WorkerIndex>>>,
    /// Workers with an engine that a call may have changed, since the last look.
    changed: Rc<RefCell<Vec<WorkerIndex>>>,
}

/// Calls that empty an engine's prefix cache: vLLM's, and SGLang's.
const EMPTYING_CALLS: [&str; 2] = ["reset_prefix_cache", "flush_cache"];

/// An order to sleep or to wake up, for the engine of a worker.
#[derive(Debug)]
pub(crate) struct SleepOrder {
    pub(crate) worker: WorkerIndex,
    pub(crate) access: EngineAccess,
    pub(crate) path: &'static str,
}

/// Result of an [`SleepOrder`], with the fault of an order that failed.
pub(crate) type OrderResult = (WorkerIndex, Result<(), String>);

struct CalledEngine {
    index: WorkerIndex,
    worker: Arc<str>,
    access: EngineAccess,
}

impl EngineCalls {
    pub(super) fn new(clients: WorkerClients) -> Self {
        Self {
            clients,
            orders: JoinSet::new(),
            admin_turns: Arc::new(Semaphore::new(ENGINE_CALLS_MAX)),
            engine_turns: Rc::new(Semaphore::new(ENGINES_CALLED_MAX)),
            emptied: Rc::default(),
            changed: Rc::default(),
        }
    }

    pub(super) const fn clients(&self) -> &WorkerClients {
        &self.clients
    }

    /// Turns that all calls of engines share, except orders.
    pub(super) fn engine_turns(&self) -> Rc<Semaphore> {
        Rc::clone(&self.engine_turns)
    }

    pub(super) fn send_order(&mut self, order: SleepOrder) {
        let SleepOrder { worker, access, path } = order;
        let clients = self.clients.clone();
        self.orders.spawn_local(async move {
            let done = clients.call(&access.authority, access.api_key, path).await;
            (worker, done)
        });
    }

    /// Results of orders since the last call.
    pub(super) fn take_results(&mut self) -> Vec<OrderResult> {
        std::iter::from_fn(|| self.orders.try_join_next()).filter_map(Result::ok).collect()
    }

    /// Workers with caches that a call emptied since the last call of this function.
    pub(super) fn take_emptied(&mut self) -> Vec<WorkerIndex> {
        self.emptied.take()
    }

    /// Workers to describe again: a call may have changed their models, for example. Each worker
    /// since the last call of this function.
    pub(super) fn take_changed(&mut self) -> Vec<WorkerIndex> {
        self.changed.take()
    }

    /// Calls the named worker's engine, or the engines of all workers.
    pub(super) fn call(
        &self,
        fleet: &Fleet,
        call: &EngineCall,
        answer: oneshot::Sender<CallAnswers>,
    ) {
        let engines = called_engines(fleet, call.worker.as_deref());
        if engines.is_empty() {
            let _ = answer.send(Err(EngineCallRefusal::NoWorker));
            return;
        }
        let Ok(turn) = Arc::clone(&self.admin_turns).try_acquire_owned() else {
            let _ = answer.send(Err(EngineCallRefusal::Busy));
            return;
        };
        let answers = self.answers(engines, call);
        tokio::task::spawn_local(async move {
            let _turn = turn;
            let _ = answer.send(Ok(answers.await));
        });
    }

    fn answers(
        &self,
        engines: Vec<CalledEngine>,
        call: &EngineCall,
    ) -> impl Future<Output = Vec<EngineCallResult>> + use<> {
        let bytes_max = ENGINE_ANSWERS_BYTES_MAX / engines.len().max(1);
        join_all(engines.into_iter().map(|CalledEngine { index, worker, access }| {
            let emptied = Rc::clone(&self.emptied);
            let changed = Rc::clone(&self.changed);
            let clients = self.clients.clone();
            let turns = Rc::clone(&self.engine_turns);
            let call = call.clone();
            async move {
                let _turn = turns.acquire().await;
                let EngineAccess { authority, api_key } = access;
                let EngineCall { target, post, .. } = call;
                let is_change = post.is_some();
                let answer = clients.hand(&authority, api_key, &target, post, bytes_max).await;
                if let Ok((status, body, _)) = &answer
                    && empties(&target, *status, body)
                {
                    emptied.borrow_mut().push(index);
                }
                if is_change {
                    changed.borrow_mut().push(index);
                }
                let reply = |(status, body, is_cut)| EngineReply { status, body, is_cut };
                EngineCallResult { worker, reply: answer.map(reply) }
            }
        }))
    }
}

/// Engines of all present workers, or of the named worker.
fn called_engines(fleet: &Fleet, named: Option<&str>) -> Vec<CalledEngine> {
    let workers: Vec<_> = match named {
        Some(name) => fleet.worker_named(name).into_iter().collect(),
        None => fleet.workers_known().collect(),
    };
    let engine = |worker| {
        let access = fleet.engine_access(worker)?;
        Some(CalledEngine { index: worker, worker: fleet.name(worker)?, access })
    };
    workers.into_iter().filter_map(engine).collect()
}

/// True if an engine's answer to a call means that its prefix cache is empty. An engine with
/// running requests may answer 200 and decline.
fn empties(target: &str, status: u16, body: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    let answer: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let declines = answer.get("success") == Some(&serde_json::Value::Bool(false));
    EMPTYING_CALLS.contains(&last) && (200..300).contains(&status) && !declines
}

#[cfg(test)]
mod tests {
    use super::empties;

    #[test]
    fn answers_that_mean_an_empty_cache() {
        for (target, status, body, wanted) in [
            ("/reset_prefix_cache", 200, "{\"success\": true}", true),
            ("/reset_prefix_cache?reset_running_requests=true", 200, "", true),
            ("/flush_cache", 200, "Cache flushed.", true),
            ("/reset_prefix_cache", 200, "{\"success\": false}", false),
            ("/flush_cache", 400, "", false),
            ("/reset_mm_cache", 200, "", false),
        ] {
            assert_eq!(empties(target, status, body), wanted, "{target} {status} {body}");
        }
    }
}

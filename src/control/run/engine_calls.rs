//! Calls of engines that the admin API hands on. Each runs beside the loop and answers by itself.

use super::Control;
use forebay_admin::{CallAnswer, EngineCall, EngineCallRefused, EngineReply};
use forebay_base::limits::ENGINE_ANSWERS_BYTES_MAX;
use forebay_discovery::WorkerClients;
use futures_util::future::join_all;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

/// What engines said of a call, or why none was asked.
type CallAnswers = Result<Vec<CallAnswer>, EngineCallRefused>;

/// A worker, and how its engine is asked.
struct CalledEngine {
    worker: Arc<str>,
    authority: String,
    api_key: Option<String>,
}

impl Control {
    pub(super) fn call_engines(&self, call: &EngineCall, answer: oneshot::Sender<CallAnswers>) {
        let engines = self.engines(call.worker.as_deref());
        if engines.is_empty() {
            let _ = answer.send(Err(EngineCallRefused::NoWorker));
            return;
        }
        let Ok(turn) = Arc::clone(&self.probes.turns().calls).try_acquire_owned() else {
            let _ = answer.send(Err(EngineCallRefused::Busy));
            return;
        };
        let asked = asked(self.probes.clients(), engines, call, &self.probes.turns().engines);
        tokio::task::spawn_local(async move {
            let _turn = turn;
            let _ = answer.send(Ok(asked.await));
        });
    }

    /// Those of all workers that are not gone, or of the named one.
    fn engines(&self, named: Option<&str>) -> Vec<CalledEngine> {
        let workers: Vec<_> = match named {
            Some(name) => self.fleet.worker_named(name).into_iter().collect(),
            None => self.fleet.workers_known().collect(),
        };
        let engine = |worker| {
            let (authority, api_key) = self.fleet.asked_as(worker)?;
            Some(CalledEngine { worker: self.fleet.name(worker)?, authority, api_key })
        };
        workers.into_iter().filter_map(engine).collect()
    }
}

/// Asks all of them, so many at once.
fn asked(
    clients: &WorkerClients,
    engines: Vec<CalledEngine>,
    call: &EngineCall,
    turns: &Rc<Semaphore>,
) -> impl Future<Output = Vec<CallAnswer>> + use<> {
    let bytes_max = ENGINE_ANSWERS_BYTES_MAX / engines.len().max(1);
    join_all(engines.into_iter().map(|CalledEngine { worker, authority, api_key }| {
        let clients = clients.clone();
        let turns = Rc::clone(turns);
        let call = call.clone();
        async move {
            let _turn = turns.acquire().await;
            let EngineCall { target, post, .. } = call;
            let said = clients.hand(&authority, api_key, &target, post, bytes_max).await;
            let reply = |(status, body, is_cut)| EngineReply { status, body, is_cut };
            CallAnswer { worker, said: said.map(reply) }
        }
    }))
}

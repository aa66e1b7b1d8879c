//! Workers with engines that sleep by the operator's order. Their requests wait: shards see a
//! sleeping worker as a worker without room.

use super::{Fleet, KnownWorker, OperatorOrder, SleepPhase};
use forebay_admin::SleepRefusal;
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::worker::Dialect;

/// Address and key for calls of an engine.
#[derive(Debug)]
pub(crate) struct EngineAccess {
    /// Address as `host:port`.
    pub(crate) authority: String,
    pub(crate) api_key: Option<String>,
}

impl KnownWorker {
    /// Takes the first observation: an order to sleep may be older than the router. Later the
    /// router's own orders decide, since an observation may be older than an order.
    pub(super) fn find_asleep(&mut self, is_asleep: bool) {
        if is_asleep && self.order == OperatorOrder::Serve {
            self.order = OperatorOrder::Sleep(SleepPhase::Asleep);
        }
    }
}

impl Fleet {
    /// The worker goes to sleep once it is idle, or at time `by`. Until `settled`, shards may not
    /// have the fleet with this order.
    pub(crate) fn send_to_sleep(
        &mut self,
        worker: WorkerIndex,
        settled: NanosSinceStart,
        by: NanosSinceStart,
    ) -> Result<(), SleepRefusal> {
        let known = self.workers.get_mut(worker.index()).ok_or(SleepRefusal::Unknown)?;
        if known.shown.dialect != Dialect::Vllm {
            return Err(SleepRefusal::Engine);
        }
        match known.order {
            OperatorOrder::Serve => {
                known.order = OperatorOrder::Sleep(SleepPhase::Drains { settled, by });
            }
            OperatorOrder::Sleep(SleepPhase::WakesUp) => return Err(SleepRefusal::WakesUp),
            OperatorOrder::Sleep(_) => {}
            OperatorOrder::Drain(_) | OperatorOrder::Leave(..) | OperatorOrder::Gone => {
                return Err(SleepRefusal::Drains);
            }
        }
        Ok(())
    }

    /// True if the engine needs an order to wake up now. An operator may have put the engine to
    /// sleep without the router.
    pub(crate) fn wake(&mut self, worker: WorkerIndex) -> Result<bool, SleepRefusal> {
        let known = self.workers.get_mut(worker.index()).ok_or(SleepRefusal::Unknown)?;
        if known.shown.dialect != Dialect::Vllm {
            return Err(SleepRefusal::Engine);
        }
        match known.order {
            OperatorOrder::Sleep(SleepPhase::Drains { .. }) => {
                known.order = OperatorOrder::Serve;
                Ok(false)
            }
            // The worker serves meanwhile, whatever its engine answers, since most engines are
            // awake.
            OperatorOrder::Serve => Ok(true),
            OperatorOrder::Sleep(SleepPhase::Asleep) => {
                known.order = OperatorOrder::Sleep(SleepPhase::WakesUp);
                Ok(true)
            }
            OperatorOrder::Sleep(SleepPhase::WakesUp) => Ok(false),
            OperatorOrder::Sleep(SleepPhase::FallsAsleep) => Err(SleepRefusal::FallsAsleep),
            OperatorOrder::Drain(_) | OperatorOrder::Leave(..) | OperatorOrder::Gone => {
                Err(SleepRefusal::Drains)
            }
        }
    }

    /// Workers that are idle or late. Their engines get the order to sleep, and the workers are
    /// marked so.
    pub(crate) fn sleepy(
        &mut self,
        now: NanosSinceStart,
        is_idle: impl Fn(WorkerIndex) -> bool,
    ) -> Vec<WorkerIndex> {
        let mut sleepy = Vec::new();
        for (place, known) in self.workers.iter_mut().enumerate() {
            let Some(index) = WorkerIndex::try_from_index(place) else { continue };
            match known.order {
                OperatorOrder::Sleep(SleepPhase::Drains { settled, by })
                    if now >= by || (now >= settled && is_idle(index)) =>
                {
                    known.order = OperatorOrder::Sleep(SleepPhase::FallsAsleep);
                    sleepy.push(index);
                }
                _ => {}
            }
        }
        sleepy
    }

    /// Takes the result of an order. After a failure the engine stays as it was, awake or asleep.
    /// True if the engine emptied its caches.
    pub(crate) fn answered_call(&mut self, worker: WorkerIndex, is_done: bool) -> bool {
        let Some(known) = self.workers.get_mut(worker.index()) else { return false };
        match (known.order, is_done) {
            (OperatorOrder::Sleep(SleepPhase::FallsAsleep), true) => {
                known.order = OperatorOrder::Sleep(SleepPhase::Asleep);
                known.lose_caches();
                return true;
            }
            (OperatorOrder::Sleep(SleepPhase::WakesUp), false) => {
                known.order = OperatorOrder::Sleep(SleepPhase::Asleep);
            }
            (OperatorOrder::Sleep(_), _) => known.order = OperatorOrder::Serve,
            _ => {}
        }
        false
    }

    /// The engine of a worker has emptied its caches.
    pub(crate) fn empty_caches(&mut self, worker: WorkerIndex) {
        if let Some(known) = self.workers.get_mut(worker.index()) {
            known.lose_caches();
        }
    }

    /// Phase of the worker's sleep; `None` for a worker that is awake.
    pub(crate) fn sleep_word(&self, worker: WorkerIndex) -> Option<&'static str> {
        match self.workers.get(worker.index())?.order {
            OperatorOrder::Sleep(phase) => Some(phase.word()),
            _ => None,
        }
    }

    /// Workers that are not gone.
    pub(crate) fn workers_known(&self) -> impl Iterator<Item = WorkerIndex> + '_ {
        let known = self.workers.iter().enumerate();
        let here = known.filter(|(_, known)| known.order != OperatorOrder::Gone);
        here.filter_map(|(place, _)| WorkerIndex::try_from_index(place))
    }

    /// Address and key for calls of the worker's engine.
    pub(crate) fn engine_access(&self, worker: WorkerIndex) -> Option<EngineAccess> {
        let shown = &self.workers.get(worker.index())?.shown;
        Some(EngineAccess {
            authority: shown.authority.to_string(),
            api_key: shown.api_key.as_deref().map(str::to_owned),
        })
    }
}

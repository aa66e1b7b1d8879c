//! Workers whose engines sleep, by the operator's word. Requests of theirs wait: shards see such a
//! worker as one without room.

use super::{Fleet, KnownWorker, OperatorWord, SleepPhase};
use forebay_admin::SleepRefused;
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_fleet::worker::Dialect;

/// Address and key for calls of an engine.
#[derive(Debug)]
pub(in crate::control) struct EngineAccess {
    /// Address as `host:port`.
    pub(in crate::control) authority: String,
    pub(in crate::control) api_key: Option<String>,
}

impl KnownWorker {
    /// What the router first sees of it: an order to sleep may be older than the router. Later the
    /// router's own orders decide, since an answer may be older than they are.
    pub(super) fn find_asleep(&mut self, is_asleep: bool) {
        if is_asleep && self.word == OperatorWord::Serve {
            self.word = OperatorWord::Sleep(SleepPhase::Asleep);
        }
    }
}

impl Fleet {
    /// The worker goes to sleep once it is idle, or at the moment `by`. Until `settled`, shards may
    /// not have heard of it.
    pub(in crate::control) fn send_to_sleep(
        &mut self,
        worker: WorkerIndex,
        settled: NanosSinceStart,
        by: NanosSinceStart,
    ) -> Result<(), SleepRefused> {
        let known = self.workers.get_mut(worker.index()).ok_or(SleepRefused::Unknown)?;
        if known.shown.dialect != Dialect::Vllm {
            return Err(SleepRefused::Engine);
        }
        match known.word {
            OperatorWord::Serve => {
                known.word = OperatorWord::Sleep(SleepPhase::Drains { settled, by });
            }
            OperatorWord::Sleep(SleepPhase::WakesUp) => return Err(SleepRefused::WakesUp),
            OperatorWord::Sleep(_) => {}
            OperatorWord::Drain(_) | OperatorWord::Leave(..) | OperatorWord::Gone => {
                return Err(SleepRefused::Drains);
            }
        }
        Ok(())
    }

    /// True if the engine has to be told to wake up now: also one that others put to sleep.
    pub(in crate::control) fn wake(&mut self, worker: WorkerIndex) -> Result<bool, SleepRefused> {
        let known = self.workers.get_mut(worker.index()).ok_or(SleepRefused::Unknown)?;
        if known.shown.dialect != Dialect::Vllm {
            return Err(SleepRefused::Engine);
        }
        match known.word {
            OperatorWord::Sleep(SleepPhase::Drains { .. }) => {
                known.word = OperatorWord::Serve;
                Ok(false)
            }
            // It serves meanwhile, and whatever its engine answers: most are awake.
            OperatorWord::Serve => Ok(true),
            OperatorWord::Sleep(SleepPhase::Asleep) => {
                known.word = OperatorWord::Sleep(SleepPhase::WakesUp);
                Ok(true)
            }
            OperatorWord::Sleep(SleepPhase::WakesUp) => Ok(false),
            OperatorWord::Sleep(SleepPhase::FallsAsleep) => Err(SleepRefused::FallsAsleep),
            OperatorWord::Drain(_) | OperatorWord::Leave(..) | OperatorWord::Gone => {
                Err(SleepRefused::Drains)
            }
        }
    }

    /// Workers that are idle or late, whose engines are to be told to sleep: they count as told.
    pub(in crate::control) fn sleepy(
        &mut self,
        now: NanosSinceStart,
        is_idle: impl Fn(WorkerIndex) -> bool,
    ) -> Vec<WorkerIndex> {
        let mut told = Vec::new();
        for (place, known) in self.workers.iter_mut().enumerate() {
            let Some(index) = WorkerIndex::try_from_index(place) else { continue };
            match known.word {
                OperatorWord::Sleep(SleepPhase::Drains { settled, by })
                    if now >= by || (now >= settled && is_idle(index)) =>
                {
                    known.word = OperatorWord::Sleep(SleepPhase::FallsAsleep);
                    told.push(index);
                }
                _ => {}
            }
        }
        told
    }

    /// What an engine made of what it was told. One that does not sleep serves on; one that does
    /// not wake up sleeps on.
    pub(in crate::control) fn answered_call(&mut self, worker: WorkerIndex, is_done: bool) {
        let Some(known) = self.workers.get_mut(worker.index()) else { return };
        match (known.word, is_done) {
            (OperatorWord::Sleep(SleepPhase::FallsAsleep), true) => {
                known.word = OperatorWord::Sleep(SleepPhase::Asleep);
                known.lose_caches();
            }
            (OperatorWord::Sleep(SleepPhase::WakesUp), false) => {
                known.word = OperatorWord::Sleep(SleepPhase::Asleep);
            }
            (OperatorWord::Sleep(_), _) => known.word = OperatorWord::Serve,
            _ => {}
        }
    }

    /// How far the worker's sleep has come; `None` for one that is awake.
    pub(in crate::control) fn sleep_word(&self, worker: WorkerIndex) -> Option<&'static str> {
        match self.workers.get(worker.index())?.word {
            OperatorWord::Sleep(phase) => Some(phase.word()),
            _ => None,
        }
    }

    /// Workers that are not gone.
    pub(in crate::control) fn workers_known(&self) -> impl Iterator<Item = WorkerIndex> + '_ {
        let known = self.workers.iter().enumerate();
        let here = known.filter(|(_, known)| known.word != OperatorWord::Gone);
        here.filter_map(|(place, _)| WorkerIndex::try_from_index(place))
    }

    /// Address and key for calls of the worker's engine.
    pub(in crate::control) fn engine_access(&self, worker: WorkerIndex) -> Option<EngineAccess> {
        let shown = &self.workers.get(worker.index())?.shown;
        Some(EngineAccess {
            authority: shown.authority.to_string(),
            api_key: shown.api_key.as_deref().map(str::to_owned),
        })
    }
}

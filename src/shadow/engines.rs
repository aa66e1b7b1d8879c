//! The engines behind the present balancer: polled by `GET /metrics`, never called otherwise.

use crate::counters::EngineCounters;
use crate::limits::METRICS_BYTES_MAX;
use forebay_config::{WorkerConfig, WorkerUrl};
use forebay_discovery::{Description, WorkerClients};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;

/// Longest wait for the counters of an engine.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// A rank of a followed engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShadowRank {
    /// Tokens that its cache holds; 0: not reported.
    pub(crate) kv_tokens: u64,
    /// Requests that it runs at once, if the engine reports that.
    pub(crate) running_max: Option<u32>,
}

/// An engine that is followed.
#[derive(Clone, Debug)]
pub struct ShadowWorker {
    authority: String,
    api_key: Option<String>,
    root: Arc<str>,
    pub(crate) models: Vec<Arc<str>>,
    /// Leg of requests that it serves; `None`: whole requests.
    pub(crate) leg: Option<&'static str>,
    pub(crate) ranks: Vec<ShadowRank>,
}

impl ShadowWorker {
    /// A configured worker with its description; `None` if its URL is invalid.
    #[must_use]
    pub fn of(worker: &WorkerConfig, description: &Description) -> Option<Self> {
        let url = WorkerUrl::parse(&worker.url).ok()?;
        let ranks = description.ranks.iter().map(|rank| ShadowRank {
            kv_tokens: u64::from(rank.kv_block_count) * u64::from(rank.block_size_tokens),
            running_max: rank.running_max.filter(|most| *most > 0),
        });
        Some(Self {
            authority: url.authority,
            api_key: worker.api_key.clone(),
            root: description.root_model(),
            models: description.model_names(),
            leg: description.leg(),
            ranks: ranks.collect(),
        })
    }
}

/// Checks that all engines serve the same model, and that their caches are known.
pub(crate) fn check(workers: &[ShadowWorker], kv_tokens: Option<u32>) -> Result<(), String> {
    let Some(first) = workers.first() else {
        return Err("no worker: give --worker URL, or -c FILE with workers".to_owned());
    };
    if let Some(other) = workers.iter().find(|worker| worker.root != first.root) {
        let models = format!("{} serves {}", first.authority, first.root);
        let others = format!("{} serves {}", other.authority, other.root);
        return Err(format!("{models} and {others}: give the workers of one model"));
    }
    let mut legs = workers.iter().filter_map(|worker| Some((&worker.authority, worker.leg?)));
    if let Some((name, leg)) = legs.next() {
        return Err(format!(
            "{name} is a {leg} worker: pairs are not simulated, so give workers that serve whole \
             requests"
        ));
    }
    let is_unknown = |worker: &&ShadowWorker| worker.ranks.iter().any(|rank| rank.kv_tokens == 0);
    match workers.iter().find(is_unknown).filter(|_| kv_tokens.is_none()) {
        Some(worker) => {
            Err(format!("{} does not report its KV capacity: give --kv-tokens", worker.authority))
        }
        None => Ok(()),
    }
}

/// The engines and what they counted since the start.
#[derive(Debug)]
pub(crate) struct Engines {
    clients: WorkerClients,
    workers: Vec<ShadowWorker>,
    last: Vec<Option<EngineCounters>>,
    sum: EngineCounters,
    silent: usize,
}

impl Engines {
    pub(crate) fn new(workers: Vec<ShadowWorker>, clients: WorkerClients) -> Self {
        let last = vec![None; workers.len()];
        Self { clients, workers, last, sum: EngineCounters::default(), silent: 0 }
    }

    /// Counts of all engines since the first poll.
    pub(crate) const fn sum(&self) -> &EngineCounters {
        &self.sum
    }

    /// Engines without an answer to the last poll.
    pub(crate) const fn silent(&self) -> usize {
        self.silent
    }

    /// Polls all engines at once.
    pub(crate) async fn poll(&mut self) {
        let ask = |worker: &ShadowWorker| {
            let clients = self.clients.clone();
            let authority = worker.authority.clone();
            let api_key = worker.api_key.clone();
            tokio::task::spawn_local(async move {
                let asked = clients.hand(&authority, api_key, "/metrics", None, METRICS_BYTES_MAX);
                match timeout(ANSWER_TIME_MAX, asked).await {
                    Ok(Ok((200, text, _))) => Some(EngineCounters::read(&text)),
                    _ => None,
                }
            })
        };
        let asked: Vec<_> = self.workers.iter().map(ask).collect();
        let mut silent = 0;
        for (last, asked) in self.last.iter_mut().zip(asked) {
            let Ok(Some(counters)) = asked.await else {
                silent += 1;
                continue;
            };
            let before = last.replace(counters).unwrap_or(counters);
            self.sum.add_growth(&before, &counters);
        }
        if silent > 0 && self.silent == 0 {
            warn!(silent, "engines give no counters: GET /metrics fails");
        }
        self.silent = silent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_of_two_models_and_caches_of_unknown_size_are_refused() {
        let worker = |root: &str, kv_tokens| ShadowWorker {
            authority: format!("{root}:1"),
            api_key: None,
            root: root.into(),
            models: vec![root.into()],
            leg: None,
            ranks: vec![ShadowRank { kv_tokens, running_max: None }],
        };
        assert_eq!(check(&[worker("a", 9), worker("a", 9)], None), Ok(()));
        let two = check(&[worker("a", 9), worker("b", 9)], None).unwrap_err();
        assert_eq!(two, "a:1 serves a and b:1 serves b: give the workers of one model");
        let unknown = check(&[worker("a", 9), worker("a", 0)], None).unwrap_err();
        assert!(unknown.ends_with("give --kv-tokens"), "{unknown}");
        assert_eq!(check(&[worker("a", 0)], Some(5)), Ok(()));
        assert!(check(&[], None).is_err());
        let decode = ShadowWorker { leg: Some("decode"), ..worker("a", 9) };
        let pair = check(&[worker("a", 9), decode], None).unwrap_err();
        assert!(pair.starts_with("a:1 is a decode worker: pairs are not simulated"), "{pair}");
    }
}

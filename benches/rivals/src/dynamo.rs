//! Dynamo's default index, as its crate offers it: looked up by ready-made hashes of token blocks,
//! fed through its worker loop. Its own router makes the hashes from the tokens, and the tokens
//! from the text, before it asks.

use crate::history::{Event, Kind, Prompt};
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use flume::Sender;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Tasks under way to the worker while the history is fed as it comes.
const UNDER_WAY: usize = 256;

/// The tree and the thread that writes it.
pub(crate) struct Dynamo {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: Option<Sender<WorkerTask>>,
    worker: Option<JoinHandle<()>>,
}

/// Reading side; one for each thread.
#[derive(Clone)]
pub(crate) struct DynamoReader(Arc<ConcurrentRadixTreeCompressed>);

impl Dynamo {
    pub(crate) fn new() -> Self {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, inbox) = flume::bounded(UNDER_WAY);
        let worker = std::thread::spawn({
            let tree = Arc::clone(&tree);
            move || tree.worker(inbox, None).expect("the worker loop ends well")
        });
        Self { tree, tasks: Some(tasks), worker: Some(worker) }
    }

    pub(crate) fn reader(&self) -> DynamoReader {
        DynamoReader(Arc::clone(&self.tree))
    }

    pub(crate) fn send(&self, event: RouterEvent) {
        self.tasks.as_ref().map(|tasks| tasks.send(WorkerTask::Event(event)));
    }

    /// Waits until all that was sent is applied.
    pub(crate) fn flush(&self) {
        let (done, wait) = oneshot::channel();
        self.tasks.as_ref().map(|tasks| tasks.send(WorkerTask::Flush(done)));
        wait.blocking_recv().expect("the worker answers");
    }

    /// How long an empty tree takes for phases of events that are all waiting when it starts: no
    /// time of the sender is in it.
    pub(crate) fn time_phases(phases: Vec<Vec<RouterEvent>>) -> Vec<Duration> {
        let tree = ConcurrentRadixTreeCompressed::new();
        let (tasks, inbox) = flume::unbounded();
        let (starts, done): (Vec<_>, Vec<_>) = phases.iter().map(|_| oneshot::channel()).unzip();
        for (phase, start) in phases.into_iter().zip(starts) {
            phase.into_iter().for_each(|event| drop(tasks.send(WorkerTask::Event(event))));
            drop(tasks.send(WorkerTask::Flush(start)));
        }
        drop(tasks.send(WorkerTask::Terminate));
        std::thread::scope(|scope| {
            let mut last = Instant::now();
            scope.spawn(|| tree.worker(inbox, None).expect("the worker loop ends well"));
            let times = done.into_iter().map(|done| {
                done.blocking_recv().expect("the worker answers");
                let now = Instant::now();
                now - std::mem::replace(&mut last, now)
            });
            times.collect()
        })
    }
}

impl Drop for Dynamo {
    fn drop(&mut self) {
        self.tasks.take().map(|tasks| tasks.send(WorkerTask::Terminate));
        self.worker.take().map(JoinHandle::join);
    }
}

impl DynamoReader {
    pub(crate) fn find(&self, locals: &[LocalBlockHash]) -> OverlapScores {
        self.0.find_matches(locals, false)
    }

    /// Blocks of each rank, ascending.
    pub(crate) fn found(&self, locals: &[LocalBlockHash]) -> Vec<(u16, u32)> {
        let scores = self.find(locals).scores;
        let mut found: Vec<_> =
            scores.into_iter().map(|(worker, blocks)| (worker.worker_id as u16, blocks)).collect();
        found.sort_unstable();
        found
    }
}

pub(crate) fn locals_of(prompt: &Prompt) -> Vec<LocalBlockHash> {
    prompt.locals.iter().map(|local| LocalBlockHash(*local)).collect()
}

/// The event in the crate's own terms.
pub(crate) fn router_event(prompts: &[Prompt], event: &Event) -> RouterEvent {
    let prompt = &prompts[event.prompt as usize];
    let blocks = event.blocks.start as usize..event.blocks.end as usize;
    let external = |hash: &u64| ExternalSequenceBlockHash(*hash);
    let data = match event.kind {
        Kind::Store => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: blocks.start.checked_sub(1).map(|parent| external(&prompt.hashes[parent])),
            start_position: None,
            blocks: blocks
                .map(|block| KvCacheStoredBlockData {
                    block_hash: external(&prompt.hashes[block]),
                    tokens_hash: LocalBlockHash(prompt.locals[block]),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        Kind::Remove => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: prompt.hashes[blocks].iter().rev().map(external).collect(),
        }),
    };
    RouterEvent::new(u64::from(event.rank), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

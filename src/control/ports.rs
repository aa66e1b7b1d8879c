//! The shards as the control plane reaches them: rings, cells, bells, counters. Shared by all tasks
//! of the thread; never borrowed across an await.

use forebay_base::ShardIndex;
use forebay_board::LoadReport;
use forebay_board::account::{Count, ShardCounters, ShardPhase, StageHistograms};
use forebay_fleet::worker::FleetSnapshot;
use forebay_index::KvBatch;
use forebay_kv_events::KvPort;
#[cfg(debug_assertions)]
use forebay_mailbox::PlantedFault;
use forebay_mailbox::{AdapterRequest, ControlEnd, ShardCommand, ShardPort, TraceRecord};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// All shards, in shard order.
#[derive(Debug)]
pub(super) struct Ports {
    shards: RefCell<Vec<Port>>,
    adapters: Receiver<AdapterRequest>,
}

#[derive(Debug)]
struct Port {
    port: ShardPort,
    /// The last command about the shard's end.
    commanded: Option<ShardCommand>,
}

impl Ports {
    pub(super) fn new(end: ControlEnd) -> Self {
        let shards = end.shards.into_iter().map(|port| Port { port, commanded: None }).collect();
        Self { shards: RefCell::new(shards), adapters: end.adapters }
    }

    /// The next adapter that a request waits for.
    pub(super) fn next_adapter_ask(&self) -> Option<AdapterRequest> {
        self.adapters.try_recv().ok()
    }

    pub(super) fn shard_count(&self) -> usize {
        self.shards.borrow().len()
    }

    /// Hands every shard the newest fleet.
    pub(super) fn publish(&self, snapshot: &Arc<FleetSnapshot>) {
        for shard in self.shards.borrow().iter() {
            drop(shard.port.fleet.write(Arc::clone(snapshot)));
            shard.port.bell.ring();
        }
    }

    /// Hands every shard these reports; returns the count of reports that found no room. Shards are
    /// not woken, since they read the reports before they select a rank.
    pub(super) fn report(&self, reports: &[LoadReport]) -> u64 {
        let mut dropped = 0;
        for shard in self.shards.borrow_mut().iter_mut() {
            for report in reports {
                dropped += u64::from(shard.port.reports.push(*report).is_err());
            }
        }
        dropped
    }

    /// Sends every shard a command about its end. A shard with a full ring gets the command with
    /// the next call.
    pub(super) fn command(&self, command: ShardCommand) {
        for shard in self.shards.borrow_mut().iter_mut() {
            let is_new = shard.commanded != Some(command);
            if is_new && shard.port.commands.push(command).is_ok() {
                shard.commanded = Some(command);
                shard.port.bell.ring();
            }
        }
    }

    /// Merges the measurements of the shards.
    pub(super) fn merge_histograms(&self, into: &mut StageHistograms) {
        for shard in self.shards.borrow_mut().iter_mut() {
            while let Some(measured) = shard.port.histograms.pop() {
                into.merge(&measured);
            }
        }
    }

    /// Takes the traces of sampled requests.
    pub(super) fn take_traces(&self, mut take: impl FnMut(TraceRecord)) {
        for shard in self.shards.borrow_mut().iter_mut() {
            // Takes at most the current count, so that a busy shard cannot hold the loop.
            for _ in 0..shard.port.traces.len() {
                let Some(traced) = shard.port.traces.pop() else { break };
                take(traced);
            }
        }
    }

    pub(super) fn phases(&self) -> Vec<ShardPhase> {
        self.shards.borrow().iter().map(|shard| shard.port.counters.phase()).collect()
    }

    /// Progress counts of the shards; `None` before a shard begins and after it ends.
    pub(super) fn beats(&self) -> Vec<Option<u64>> {
        let shards = self.shards.borrow();
        let counters = shards.iter().map(|shard| &shard.port.counters);
        let lives = |phase| phase != ShardPhase::Ended;
        let beats = |shard: &Arc<ShardCounters>| Some(shard.beats()).filter(|beats| *beats > 0);
        counters.map(|shard| beats(shard).filter(|_| lives(shard.phase()))).collect()
    }

    /// Plants a fault in a shard; false if there is no such shard, or its ring is full.
    #[cfg(debug_assertions)]
    pub(super) fn plant(&self, shard: usize, fault: PlantedFault) -> bool {
        let mut shards = self.shards.borrow_mut();
        let Some(shard) = shards.get_mut(shard) else { return false };
        let is_sent = shard.port.commands.push(ShardCommand::Plant(fault)).is_ok();
        shard.port.bell.ring();
        is_sent
    }

    /// Sum of a counter over all shards.
    pub(super) fn count(&self, count: Count) -> u64 {
        self.shards.borrow().iter().map(|shard| shard.port.counters.value(count)).sum()
    }

    pub(super) fn counters(&self) -> Vec<Arc<ShardCounters>> {
        self.shards.borrow().iter().map(|shard| Arc::clone(&shard.port.counters)).collect()
    }
}

impl KvPort for Ports {
    fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        let mut shards = self.shards.borrow_mut();
        let Some(shard) = shards.get_mut(slice.index()) else {
            forebay_base::count_broken_invariant();
            return Ok(());
        };
        shard.port.kv.push(batch)?;
        shard.port.bell.ring();
        Ok(())
    }
}

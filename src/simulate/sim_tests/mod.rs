//! Tests of the simulator: engines, files, and runs.

mod engines;
mod files;
mod runs;

use super::*;
use crate::production_router::{ProductionRouter, TraceArrival};
use crate::ranks::engine::{EngineNews, EngineRequest, EngineTotals, ModelEngine};
use crate::ranks::host_tier::HostTier;
use crate::ranks::kv_cache::{CacheChange, KvCache, PoolHandle};
use crate::traces::trace_file::parse;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_config::{Config, Policy, QueueMode};
use std::cell::RefCell;
use std::rc::Rc;

fn trace(text: &str) -> Trace {
    parse(text).unwrap()
}

fn mooncake(timestamp: u64, input: u32, output: u32, hashes: &[u64]) -> String {
    format!(
        "{{\"timestamp\": {timestamp}, \"input_length\": {input}, \"output_length\": {output}, \
         \"hash_ids\": {hashes:?}}}\n"
    )
}

fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < f64::EPSILON
}

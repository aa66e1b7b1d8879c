//! The queues' production code under a simulated router: shards, mesh rings, bells, engines,
//! clients and a control plane in virtual time, one step at a time, all drawn from one seed.
//! `RequestFlow`, `Stages`, `Home`, `WaitTable`, `Outbox`, `LoadBoard`, `QueueCell`, `Windows`,
//! `Lease`, the rings and the bells are what ships. The turns of a shard follow
//! `dataplane/thread/inbox.rs` and `dataplane/thread/queues.rs`. The simulator is a test of the
//! crate `router`: it can name no code that does I/O.
//!
//! `cargo test -p forebay-router --test sim` runs [`SEEDS`] seeds. `FOREBAY_SIM_SEED=n` runs one
//! and prints its last steps if it fails; `FOREBAY_SIM_BASE=n` starts elsewhere and
//! `FOREBAY_SIM_RUNS=n` runs so many, for a soak.
//!
//! What must hold is in `check.rs`. `fuzz/fuzz_targets/requests.rs` searches by coverage.
#![allow(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test that fails must stop, and says what it did"
)]

mod books;
mod check;
mod defects;
mod fleets;
mod moves;
mod pair_defects;
mod pairs;
mod plan;
mod request;
mod shard;
mod stage;
mod stats;
mod tasks;
mod tenants;
mod windows;
mod world;

use stats::Stats;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use world::World;

/// Seeds of a run in CI.
const SEEDS: u64 = 10_000;
/// Steps shown of a run that failed.
const STEPS_SHOWN: usize = 80;

#[test]
fn nothing_breaks_in_ten_thousand_worlds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    if let Some(seed) = number("FOREBAY_SIM_SEED") {
        match run(seed, true) {
            Ok(stats) => println!("seed {seed}: {stats:?}"),
            Err(fault) => panic!("{fault}"),
        }
        return;
    }
    let base = number("FOREBAY_SIM_BASE").unwrap_or(0);
    let runs = number("FOREBAY_SIM_RUNS").unwrap_or(SEEDS);
    let (stats, failed) = run_all(base, runs);
    println!("{runs} seeds from {base}, {stats:?}");
    if let Some(seed) = failed {
        panic!(
            "{}",
            run(seed, true).err().unwrap_or_else(|| format!("seed {seed} fails now and then"))
        );
    }
    assert!(runs < SEEDS || stats.least() >= 50, "something hardly ever happens: {stats:?}");
}

#[test]
fn a_seed_is_always_the_same_run() {
    for seed in [1, 77, 4_711] {
        let trace = || {
            let mut world = World::new(seed, true);
            world.run().unwrap();
            (world.trace.unwrap(), world.stats.steps)
        };
        assert_eq!(trace(), trace());
    }
}

/// The sums of all runs, and the first seed that failed.
fn run_all(base: u64, runs: u64) -> (Stats, Option<u64>) {
    let threads = thread::available_parallelism().map_or(2, |count| count.get().min(8));
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(u64::MAX);
    let work = || {
        let mut sum = Stats::default();
        loop {
            let offset = next.fetch_add(1, Ordering::Relaxed);
            if offset >= runs || failed.load(Ordering::Relaxed) < offset {
                return sum;
            }
            match run(base.wrapping_add(offset), false) {
                Ok(stats) => sum.add(&stats),
                Err(_) => {
                    failed.fetch_min(offset, Ordering::Relaxed);
                }
            }
        }
    };
    let mut sum = Stats::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            sum.add(&worker.join().unwrap());
        }
    });
    let failed = failed.into_inner();
    (sum, (failed != u64::MAX).then(|| base.wrapping_add(failed)))
}

#[test]
fn worlds_by_tape_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/requests");
    let mut tapes = 0;
    for tape in std::fs::read_dir(folder).unwrap() {
        run_by_tape(&std::fs::read(tape.unwrap().path()).unwrap());
        tapes += 1;
    }
    assert!(tapes >= 10, "too few seeds");
}

/// A world whose first eight bytes are its seed. The others decide its steps, one after the other.
///
/// # Panics
/// When something breaks.
pub(crate) fn run_by_tape(bytes: &[u8]) {
    let Some((seed, tape)) = bytes.split_first_chunk::<8>() else { return };
    let run = |tracing| {
        let mut world = World::new(u64::from_le_bytes(*seed), tracing);
        world.tape = Vec::from(tape).into_iter();
        world.run().map_err(|fault| told(&world, &fault))
    };
    if run(false).is_err() {
        panic!("{}", run(true).unwrap_err());
    }
}

/// One world from its beginning to its end.
fn run(seed: u64, tracing: bool) -> Result<Stats, String> {
    let mut world = World::new(seed, tracing);
    let ran = catch_unwind(AssertUnwindSafe(|| world.run()));
    let fault = match ran {
        Ok(Ok(())) => return Ok(world.stats),
        Ok(Err(fault)) => fault,
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic".to_owned()),
    };
    let told = told(&world, &fault);
    Err(format!(
        "{told}\nseed {seed}: FOREBAY_SIM_SEED={seed} cargo test -p forebay-router --test sim"
    ))
}

/// A fault, the steps before it and where they happened.
fn told(world: &World, fault: &str) -> String {
    let trace = world.trace.as_deref().unwrap_or_default();
    let last = trace[trace.len().saturating_sub(STEPS_SHOWN)..].join("\n");
    let at = world.now.0 / 1_000;
    let mode = world.truth.mode;
    let plan = &world.plan;
    format!("{last}\n{fault}\nat {at} us; {mode:?}, {plan:?}")
}

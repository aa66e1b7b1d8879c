//! CPU time over the measured part of a run: of the router, of this program, and of all others on
//! the machine.

use forebay_bench_rig::{CpuMeter, threads};
use std::fs;

/// Clock ticks of `/proc/stat` are hundredths of a second on Linux.
const TICK_NS: u64 = 10_000_000;
/// Columns of `/proc/stat` in which a processor works: user, nice, system, irq, softirq, steal.
const BUSY_COLUMNS: [usize; 6] = [0, 1, 2, 5, 6, 7];

/// CPU time at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) router_ns: u64,
    pub(crate) load_ns: u64,
    /// All other processes of the comparison.
    pub(crate) own_ns: u64,
    pub(crate) machine_ns: u64,
}

impl Spent {
    pub(crate) fn read(router: &[u32], own: &[u32]) -> Self {
        Self {
            router_ns: of_processes(router),
            load_ns: of_process("self"),
            own_ns: of_processes(own),
            machine_ns: of_machine().unwrap_or(0),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            router_ns: self.router_ns.saturating_sub(before.router_ns),
            load_ns: self.load_ns.saturating_sub(before.load_ns),
            own_ns: self.own_ns.saturating_sub(before.own_ns),
            machine_ns: self.machine_ns.saturating_sub(before.machine_ns),
        }
    }

    /// What the processes of the comparison did not spend.
    pub(crate) fn others_ns(self) -> u64 {
        self.machine_ns.saturating_sub(self.router_ns + self.load_ns + self.own_ns)
    }
}

fn of_processes(processes: &[u32]) -> u64 {
    processes.iter().map(|process| of_process(&process.to_string())).sum()
}

fn of_process(process: &str) -> u64 {
    // A thread that ends between the two reads counts nothing.
    threads(process)
        .into_iter()
        .filter_map(|thread| CpuMeter::of_threads(&[thread]).read_ns())
        .sum()
}

fn of_machine() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let columns: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let busy = BUSY_COLUMNS.iter().filter_map(|column| columns.get(*column)).sum::<u64>();
    Some(busy * TICK_NS)
}

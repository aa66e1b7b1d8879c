//! Which cores the programs run on: the routers on the first half, engines and clients on the
//! other, so that neither takes time from the other. Children have the cores of the thread that
//! starts them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// The cores of this process, in two halves.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    routers: CpuSet,
    others: CpuSet,
}

impl Cores {
    /// With a single core both halves are that one.
    pub(crate) fn of_process() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let mut each: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        if let [only] = each[..] {
            each.push(only);
        }
        let (first, second) = each.split_at(each.len() / 2);
        let set = |cores: &[usize]| {
            let mut set = CpuSet::new();
            cores.iter().for_each(|core| set.set(*core));
            set
        };
        Ok(Self { routers: set(first), others: set(second) })
    }

    /// This thread, and what it starts from now on, is of the routers.
    pub(crate) fn of_routers(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.routers)?)
    }

    /// This thread, and what it starts from now on, is of the others.
    pub(crate) fn of_others(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.others)?)
    }
}

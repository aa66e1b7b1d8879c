//! CPU use of a shard's threads, from `/proc`: whether a shard without progress waits for its core.
//!
//! | since the first look | cause |
//! |---|---|
//! | a thread could run most of the time, and ran less than a tenth of it | the core is taken |
//! | else | the shard computes, or is blocked: a bug |

use forebay_base::{ShardIndex, ThreadName};
use std::fs;
use std::time::Duration;

/// CPU use of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadUse {
    pub(super) ran_ns: u64,
    /// Time in which the thread could run and did not. The kernel adds a wait at its end.
    pub(super) waited_ns: u64,
    /// The core that the thread ran on last.
    pub(super) core: u32,
    /// The thread runs, or waits for its core.
    pub(super) is_runnable: bool,
}

/// The thread of a shard, and the thread beside it for long work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardThreads {
    pub(super) shard: Option<ThreadUse>,
    pub(super) offload: Option<ThreadUse>,
}

/// A core that a shard waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenCpu {
    pub(super) core: u32,
    pub(super) waited_ms: u64,
}

impl ShardThreads {
    /// Reads the threads of a shard. Slow: it reads the names of all threads.
    pub(super) fn read(shard: usize) -> Self {
        let mut threads = Self::default();
        let Ok(shard) = u16::try_from(shard).map(ShardIndex) else { return threads };
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return threads };
        for task in tasks.flatten() {
            let text = |name| fs::read_to_string(task.path().join(name)).ok();
            let Some(name) = text("comm") else { continue };
            let place = match ThreadName::parse(name.trim_end()) {
                Some(ThreadName::Shard(number)) if number == shard => &mut threads.shard,
                Some(ThreadName::Offload(number)) if number == shard => &mut threads.offload,
                _ => continue,
            };
            let found = text("stat").zip(text("schedstat"));
            *place = found.and_then(|(stat, times)| ThreadUse::parse(&stat, &times));
        }
        threads
    }

    /// The core that a thread has waited for since `before`, which was `passed` ago.
    pub(super) fn taken_core(self, before: Self, passed: Duration) -> Option<TakenCpu> {
        let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let of =
            |now: Option<ThreadUse>, before: Option<ThreadUse>| now?.taken_core(before?, passed_ns);
        of(self.shard, before.shard).or_else(|| of(self.offload, before.offload))
    }
}

impl ThreadUse {
    /// `stat` and `schedstat` of a thread.
    fn parse(stat: &str, schedstat: &str) -> Option<Self> {
        // The name of the thread may have any character.
        let (_, after_name) = stat.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace();
        let is_runnable = fields.next()? == "R";
        // The state is field 3, the core field 39.
        let core = fields.nth(35)?.parse().ok()?;
        let mut times = schedstat.split_ascii_whitespace().map(str::parse);
        // A kernel without these figures reports 0.
        let ran_ns = times.next()?.ok().filter(|ran_ns| *ran_ns > 0)?;
        let waited_ns = times.next()?.ok()?;
        Some(Self { ran_ns, waited_ns, core, is_runnable })
    }

    fn taken_core(self, before: Self, passed_ns: u64) -> Option<TakenCpu> {
        let ran_ns = self.ran_ns.saturating_sub(before.ran_ns);
        let counted_ns = self.waited_ns.saturating_sub(before.waited_ns);
        // A wait that goes on is in no count yet.
        let open_ns = if self.is_runnable { passed_ns.saturating_sub(ran_ns) } else { 0 };
        let waited_ns = counted_ns.max(open_ns).min(passed_ns);
        // A turn takes far less: a shard that ran longer is in an endless loop.
        let is_taken = waited_ns > passed_ns / 2 && ran_ns < passed_ns / 10;
        is_taken.then_some(TakenCpu { core: self.core, waited_ms: waited_ns / 1_000_000 })
    }
}

impl std::fmt::Display for TakenCpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { core, waited_ms } = self;
        write!(
            formatter,
            "waited {waited_ms} ms for its core: another program runs on core {core}, or a CPU \
             limit holds the router"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: Duration = Duration::from_millis(500);

    fn used(ran_ms: u64, waited_ms: u64, is_runnable: bool) -> ThreadUse {
        let [ran_ns, waited_ns] = [ran_ms, waited_ms].map(|ms| ms * 1_000_000);
        ThreadUse { ran_ns, waited_ns, core: 3, is_runnable }
    }

    #[test]
    fn a_thread_that_can_run_and_does_not_waits_for_its_core() {
        for (ran_ms, waited_ms, is_runnable, taken_ms) in [
            // The whole wait is open, has ended, or both in turn.
            (0, 0, true, Some(500)),
            (20, 0, true, Some(480)),
            (10, 460, true, Some(490)),
            (10, 480, false, Some(480)),
            // The shard computes, sleeps, or shares its core.
            (500, 0, true, None),
            (0, 0, false, None),
            (260, 240, true, None),
            (10, 100, false, None),
        ] {
            let before = used(7_000, 90_000, true);
            let now = used(7_000 + ran_ms, 90_000 + waited_ms, is_runnable);
            let expected = taken_ms.map(|waited_ms| TakenCpu { core: 3, waited_ms });
            let shard = |shard| ShardThreads { shard: Some(shard), offload: None };
            assert_eq!(shard(now).taken_core(shard(before), PASSED), expected);
            let beside = |offload| ShardThreads { shard: None, offload: Some(offload) };
            assert_eq!(beside(now).taken_core(beside(before), PASSED), expected);
        }
        let none = ShardThreads::default();
        assert_eq!(none.taken_core(none, PASSED), None, "without /proc");
    }

    #[test]
    fn the_threads_of_this_process_are_read() {
        let run = || {
            let clock = forebay_base::Clock::start();
            while Duration::from_nanos(clock.now().0) < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            ShardThreads::read(4_711)
        };
        let named = std::thread::Builder::new()
            .name(ThreadName::Shard(ShardIndex(4_711)).to_string())
            .spawn(run)
            .unwrap();
        let ShardThreads { shard, offload } = named.join().unwrap();
        let shard = shard.unwrap();
        assert!(shard.is_runnable && shard.ran_ns > 0 && offload.is_none(), "{shard:?}");
        assert_eq!(ThreadUse::parse("1 (a) b) S 1", "5 6 7"), None);
    }
}

//! Resource usage of the process from `/proc`: CPU time by thread, and memory.

use super::metrics_text::Family;
use super::scrape::by;
use crate::sources::ScrapeSources;
use forebay_base::ThreadName;
use std::collections::BTreeMap;
use std::fs;

const BYTES_PER_KIB: u64 = 1_024;

/// CPU time by thread; none without `/proc`.
pub(crate) fn threads(_: &ScrapeSources<'_>, family: &mut Family<'_>) {
    for (name, cpu_ns) in lasting_threads() {
        family.seconds(&[("thread", &name)], cpu_ns);
    }
}

/// Writes of the file of operators' orders; none without a file.
pub(crate) fn state_writes(sources: &ScrapeSources<'_>, family: &mut Family<'_>) {
    let Some(figures) = sources.process.state_file else { return };
    let counts = [(figures.written_count, "written"), (figures.failed_count, "failed")];
    by("result", counts, family, |count| count);
}

/// Memory of the process; none without `/proc`.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(resident(&status)?.saturating_mul(BYTES_PER_KIB))
}

/// CPU time of lasting threads in nanoseconds. A process with several routers has a name twice.
fn lasting_threads() -> BTreeMap<String, u64> {
    let mut threads = BTreeMap::new();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return threads };
    // A thread may end during the scan.
    let figures = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let name = name.trim_end();
        // The counter of a thread that ends before the process would decrease.
        ThreadName::parse(name)?;
        let figures = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((name.to_owned(), figures.split(' ').next()?.parse::<u64>().ok()?))
    });
    for (name, cpu_ns) in figures {
        *threads.entry(name).or_default() += cpu_ns;
    }
    threads
}

/// `VmRSS` of `/proc/self/status`, in KiB.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_thread_has_its_cpu_time_and_others_are_in_the_whole() {
        let (busy, ended) = std::sync::mpsc::channel::<()>();
        let (said, started) = std::sync::mpsc::channel();
        let shard = std::thread::Builder::new().name("shard-7".into()).spawn(move || {
            let mut sum = 0_u64;
            for number in 0..20_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
            said.send(sum).unwrap();
            let _ = ended.recv();
        });
        started.recv().unwrap();
        let threads = lasting_threads();
        drop(busy);
        shard.unwrap().join().unwrap();
        assert!(threads["shard-7"] > 1_000_000, "{threads:?}");
        assert_eq!(threads.len(), 1, "this thread is of no lasting name");
        assert!(resident_bytes().unwrap() > 1_000_000);
    }

    #[test]
    fn resident_memory_is_read_with_its_unit() {
        assert_eq!(resident("VmHWM:\t   9 kB\nVmRSS:\t   5120 kB\n"), Some(5_120));
        assert_eq!(resident("VmRSS:\t   5120 MB\n"), None);
        assert_eq!(resident("VmSize:\t 1 kB\n"), None);
    }
}

//! Resource usage of the process from `/proc`: CPU time by thread, and memory.

use super::catalogue;
use super::metrics_text::MetricsText;
use forebay_base::process_cpu_ns;
use std::collections::BTreeMap;
use std::fs;

/// Names, or prefixes of names, of threads that live as long as the process. The counter of a
/// shorter-lived thread would decrease.
const LASTING: [&str; 3] = ["control", "shard-", "offload-"];
const BYTES_PER_KIB: u64 = 1_024;

/// Without `/proc` the figures are omitted.
pub(crate) fn process(text: &mut MetricsText) {
    text.open(&catalogue::CPU_SECONDS).seconds(&[], process_cpu_ns());
    let mut family = text.open(&catalogue::THREAD_CPU_SECONDS);
    for (name, cpu_ns) in threads() {
        family.seconds(&[("thread", &name)], cpu_ns);
    }
    if let Some(kib) = fs::read_to_string("/proc/self/status").ok().and_then(|it| resident(&it)) {
        let bytes = kib.saturating_mul(BYTES_PER_KIB);
        text.open(&catalogue::RESIDENT_BYTES).sample(&[], bytes);
    }
}

/// CPU time of lasting threads in nanoseconds. A process with several routers has a name twice.
fn threads() -> BTreeMap<String, u64> {
    let mut threads = BTreeMap::new();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return threads };
    // A thread may end during the scan.
    let figures = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let name = name.trim_end();
        if !LASTING.iter().any(|lasting| name.starts_with(lasting)) {
            return None;
        }
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
        let mut text = MetricsText::default();
        process(&mut text);
        drop(busy);
        shard.unwrap().join().unwrap();
        let text = text.finish();
        let value = |line: &str| {
            let found = text.lines().find_map(|it| it.strip_prefix(line)).unwrap();
            found.trim().parse::<f64>().unwrap()
        };
        assert!(value("forebay_thread_cpu_seconds_total{thread=\"shard-7\"}") > 1e-3, "{text}");
        assert_eq!(text.matches("{thread=").count(), 1, "this thread is of no lasting name");
        assert!(value("forebay_cpu_seconds_total") > 1e-3, "{text}");
        assert!(value("forebay_resident_bytes") > 1e6, "{text}");
    }

    #[test]
    fn resident_memory_is_read_with_its_unit() {
        assert_eq!(resident("VmHWM:\t   9 kB\nVmRSS:\t   5120 kB\n"), Some(5_120));
        assert_eq!(resident("VmRSS:\t   5120 MB\n"), None);
        assert_eq!(resident("VmSize:\t 1 kB\n"), None);
    }
}

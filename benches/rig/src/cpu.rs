//! CPU time of threads from outside, in nanoseconds, as the kernel accounts it
//! (`/proc/…/schedstat`).

use std::fs;
use std::path::{Path, PathBuf};

/// Adds up some threads.
#[derive(Debug)]
pub struct CpuMeter {
    files: Vec<PathBuf>,
}

impl CpuMeter {
    /// These threads: directories under `/proc/<pid>/task`.
    pub fn of_threads(threads: &[PathBuf]) -> Self {
        Self { files: threads.iter().map(|thread| thread.join("schedstat")).collect() }
    }

    /// Time since the threads began; `None` where the kernel does not tell.
    pub fn read_ns(&self) -> Option<u64> {
        let one = |file: &PathBuf| {
            fs::read_to_string(file).ok()?.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.files.iter().map(one).sum()
    }
}

/// All threads of a process (`self` for this one).
pub fn threads(process: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(Path::new("/proc").join(process).join("task")) else {
        return Vec::new();
    };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Threads of this process with that name.
pub fn threads_named(name: &str) -> Vec<PathBuf> {
    let is_named = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    threads("self").into_iter().filter(is_named).collect()
}

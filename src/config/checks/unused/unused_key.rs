//! A row of the tables of unused keys.

use crate::sections::schema::Config;
use crate::sections::worker::WorkerConfig;

/// Keys that are unused for the same reason.
pub(crate) struct UnusedKeys {
    /// As written in the file, lists without a position.
    pub(crate) keys: &'static [&'static str],
    /// The reason, if nothing reads the keys. The worker counts for keys of `worker.` alone.
    pub(crate) why: fn(&Config, &WorkerConfig) -> Option<String>,
    /// What to do about it.
    pub(crate) help: &'static str,
}

//! The table of keys, discovery: where workers are found beside the configuration.

use super::table::table;
use std::path::PathBuf;
use std::time::Duration;

table! {
    /// Workers that come and go by themselves.
    pub struct DiscoveryConfig in "discovery." {
        /// File with `[[worker]]` tables, looked at again and again.
        file: Option<PathBuf> = None, { absent: "no file" };
        /// URLs such as `http://engines.internal:8000`. Each address that the host name stands for
        /// is a worker.
        dns: Vec<String> = Vec::new();
        /// Time between two looks.
        interval: Duration = Duration::from_secs(2), { range: 100..=u64::MAX };
    }
}

impl DiscoveryConfig {
    /// Are workers found somewhere?
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty()
    }
}

//! The table of keys, discovery: sources of workers beside the configuration.

use crate::keys::table::table;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

table! {
    /// Workers that come and go by themselves.
    pub struct DiscoveryConfig in "discovery." {
        /// File with `[[worker]]` tables, looked at again and again.
        file: Option<PathBuf> = None, { absent: "no file" };
        /// URLs such as `http://engines.internal:8000`: each address of the name is a worker. SRV
        /// records are those of `http://_http._tcp.engines.internal`.
        dns: Vec<String> = Vec::new();
        /// Name server that SRV records are asked of, as `address:port`.
        name_server: Option<String> = None, { absent: "those of `/etc/resolv.conf`" };
        /// Time between two looks.
        interval: Duration = Duration::from_secs(2), { range: 100..=u64::MAX };
    }
}

impl DiscoveryConfig {
    /// True if any source is configured.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty()
    }

    /// The name server of [`Self::name_server`], if it parses as an address with a port.
    #[must_use]
    pub fn name_server_address(&self) -> Option<SocketAddr> {
        self.name_server.as_ref()?.parse().ok()
    }
}

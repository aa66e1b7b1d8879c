//! Reasons for a failed start, each with advice.

use crate::port_holder;
use forebay_base::limits::SHARDS_MAX;
use forebay_config::{AdminAddress, UpstreamFault};
use forebay_handover::HandoverAddress;
use forebay_keys::KeyFileError;
use forebay_tls::FilesFault;
use std::io;
use std::net::SocketAddr;

/// Advice for a port that cannot be bound.
fn listen_advice(error: &io::Error, address: &AdminAddress) -> String {
    let taken = || {
        let port = address.port_address();
        let holder = port.map_or_else(|| "another process".to_owned(), holder);
        format!(
            "{holder} listens there. A router that was stopped holds its ports until its last \
             request has ended: wait for it, or replace a running router with `forebay upgrade`"
        )
    };
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => return taken(),
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE: in a systemd unit \
             `AmbientCapabilities=CAP_NET_BIND_SERVICE`"
        }
        io::ErrorKind::AddrNotAvailable => "this address is not one of this machine",
        _ => "is the address right?",
    };
    advice.to_owned()
}

/// Process that listens on a port, as far as `/proc` shows it.
fn holder(address: SocketAddr) -> String {
    port_holder::process(address).unwrap_or_else(|| "another process".to_owned())
}

/// Reason for a failed start. The text contains advice.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No core is configured.
    #[error("no core is left to run on: set `cores` to 1 to {SHARDS_MAX} core numbers")]
    NoCores,
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; {} (key `{key}`)",
        listen_advice(source, address)
    )]
    Listen {
        /// The key of the config file.
        key: &'static str,
        address: AdminAddress,
        source: io::Error,
    },
    /// Another process listens on the client address.
    #[error(
        "cannot listen on {address}: {} listens there. Stop it, or give this router another port \
         (key `listen`). To share the port with another router on purpose, set \
         `listen_shared = true` (--listen-shared)",
        holder(*address)
    )]
    Taken { address: SocketAddr },
    /// A router runs on the client address, and this start replaces no router.
    #[error(
        "process {process} is a router on {address} already. To replace it without a lost \
         request, run `forebay upgrade`, or add --take-over to start with other arguments. For a \
         second router, set another `listen`, or `listen_shared = true` to share the port"
    )]
    Runs { address: SocketAddr, process: i32 },
    /// A certificate or key is unusable.
    #[error("TLS: {0}")]
    Tls(#[from] FilesFault),
    /// TLS to a worker is misconfigured.
    #[error("TLS to a worker: {0}")]
    UpstreamTls(#[from] UpstreamFault),
    /// A token of the admin API cannot be read.
    #[error("`{key}` {what}")]
    Token {
        /// The key of the config file.
        key: &'static str,
        /// Fault of the token file.
        what: String,
    },
    /// An entry of `client.trusted` is no address and no network.
    #[error("`client.trusted`: {0}")]
    Trusted(String),
    /// The clients' keys cannot be read.
    #[error("`api_keys`: {0}")]
    Keys(KeyFileError),
    /// A thread or descriptor is not available.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

impl StartError {
    /// Looks at a taken address again: of several routers that start at once, all but the first
    /// find the first only when they bind.
    pub(crate) fn seen_beside(self, place: Option<&HandoverAddress>) -> Self {
        let Self::Taken { address } = self else { return self };
        let running = place.and_then(|place| place.running().ok().flatten());
        running.map_or(Self::Taken { address }, |process| {
            let process = process.as_raw_nonzero().get();
            Self::Runs { address, process }
        })
    }
}

//! The router as its admin API shows it.

use super::{Reply, truth};
use forebay::server::ServerHandle;
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// A loopback address whose port the system chooses.
pub(crate) fn any_port<A: From<SocketAddr>>() -> A {
    SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// An address where nobody listens yet, and that no other test of this process gets. Its port and
/// the three behind it, for further ranks, are not of those that the system gives to others.
pub(crate) fn port_for_later() -> SocketAddr {
    static LAST: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let place = || {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        SocketAddr::from(([127, 0, 0, 1], 20_000 + 4 * (number % 2_500)))
    };
    let mut places = std::iter::repeat_with(place).take(1_000);
    places.find(|place| TcpListener::bind(place).is_ok()).expect("a free port")
}

/// The answer to a GET.
pub(crate) fn admin(handle: &ServerHandle, path: &str) -> Reply {
    truth::get(handle.admin, path)
}

/// Workers that take traffic.
pub(crate) fn usable(handle: &ServerHandle) -> usize {
    admin(handle, "/workers").text().matches("\"up\"").count()
}

/// Sum of all samples whose line starts with `name`.
pub(crate) fn metric(handle: &ServerHandle, name: &str) -> f64 {
    truth::metric(handle.admin, name)
}

//! Options of the sockets to workers: no delay, and an end within seconds when a host vanishes.

use forebay_base::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, UNACKNOWLEDGED_TIME_MAX,
};
use forebay_net::Socket;
use rustix::net::sockopt;

/// A host can vanish in two states of its connection (tcp(7)):
///
/// - The host owes only an answer. Keep-alive finds out.
/// - Bytes are on their way to the host. The user time-out limits their time.
///
/// The kernel counts bytes that a worker does not read as bytes on their way. A worker that is busy
/// for seconds must not lose a long request. So a connection for long requests has keep-alive
/// alone, and health checks find the rest.
pub(super) fn set_options(socket: &Socket, is_for_long: bool) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    if is_for_long {
        return Ok(());
    }
    let millis = u32::try_from(UNACKNOWLEDGED_TIME_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::Clock;
    use forebay_net::{Driver, block_on};
    use std::time::Duration;

    #[test]
    fn a_host_that_vanishes_ends_its_connections_within_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let done = block_on(Driver::Epoll, Clock::start(), |_| (), async {
            for (is_for_long, user_timeout) in [(false, 8_000), (true, 0)] {
                let socket = forebay_net::connect(address).await.unwrap();
                set_options(&socket, is_for_long).unwrap();
                assert!(sockopt::tcp_nodelay(&socket).unwrap());
                assert!(sockopt::socket_keepalive(&socket).unwrap());
                assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), user_timeout);
                let probes = sockopt::tcp_keepcnt(&socket).unwrap();
                let silence = sockopt::tcp_keepidle(&socket).unwrap()
                    + sockopt::tcp_keepintvl(&socket).unwrap() * probes;
                assert!(silence <= Duration::from_secs(10), "{silence:?}");
            }
        });
        done.unwrap();
    }
}

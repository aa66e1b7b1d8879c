//! Notifications of systemd where it started the router (`Type=notify`, `WatchdogSec`): ready,
//! alive, stopping. Datagrams to the socket that the environment names; without the names nothing
//! is sent.

use forebay_base::NanosSinceStart;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Socket of systemd, if there is a socket.
#[derive(Debug)]
pub(super) struct Systemd {
    socket: Option<UnixDatagram>,
    /// Time between two signs of life.
    period: Option<Duration>,
    next: NanosSinceStart,
}

impl Systemd {
    /// Reads the names that systemd sets: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` where the unit asks
    /// for signs of life.
    pub(super) fn of_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET");
        let watchdog_us = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        Self::at(socket.as_deref(), watchdog_us)
    }

    fn at(name: Option<&OsStr>, watchdog_us: Option<u64>) -> Self {
        // Four signs of life in each watchdog period.
        let period = watchdog_us.map(|time| Duration::from_micros(time / 4));
        let socket = name.and_then(|name| connect(name.as_bytes()).ok());
        Self { socket, period, next: NanosSinceStart(0) }
    }

    pub(super) fn send_ready(&self) {
        self.send(b"READY=1");
    }

    /// The service lives on in another process.
    pub(super) fn send_main_process(&self, process: i32) {
        self.send(format!("MAINPID={process}").as_bytes());
    }

    pub(super) fn send_stopping(&self) {
        self.send(b"STOPPING=1");
    }

    /// Called every turn of the control plane's loop.
    pub(super) fn tick(&mut self, now: NanosSinceStart) {
        if let Some(period) = self.period
            && now >= self.next
        {
            self.next = now.plus(period);
            self.send(b"WATCHDOG=1");
        }
    }

    fn send(&self, state: &[u8]) {
        if let Some(socket) = &self.socket {
            // A full socket has unread notifications that systemd reads first.
            let _ = socket.send(state);
        }
    }
}

/// A path, or after `@` a name without a file.
fn connect(name: &[u8]) -> std::io::Result<UnixDatagram> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_of_start_life_and_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listening = UnixDatagram::bind(&path).unwrap();
        listening.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let heard = || {
            let mut buffer = [0; 64];
            let length = listening.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let mut systemd = Systemd::at(Some(path.as_os_str()), Some(4_000_000));
        systemd.send_ready();
        assert_eq!(heard(), "READY=1");
        let second = NanosSinceStart(1_000_000_000);
        for now in [NanosSinceStart(0), NanosSinceStart(999_999_999), second] {
            systemd.tick(now);
        }
        assert_eq!((heard(), heard()), ("WATCHDOG=1".into(), "WATCHDOG=1".into()));
        systemd.send_stopping();
        assert_eq!(heard(), "STOPPING=1");
    }

    #[test]
    fn without_systemd_nothing_happens() {
        let mut systemd = Systemd::at(None, None);
        systemd.send_ready();
        systemd.tick(NanosSinceStart(1));
        assert!(Systemd::at(Some(OsStr::new("/nonexistent/socket")), None).socket.is_none());
    }
}

//! A real nats-server as a process.

use super::{port_for_later, until};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// It ends with the value.
pub(crate) struct Nats {
    pub(crate) address: SocketAddr,
    server: PathBuf,
    child: Option<Child>,
}

impl Nats {
    /// Starts one; `None`, said loudly, where the program is not installed.
    pub(crate) fn start() -> Option<Self> {
        let mut nats = Self::later()?;
        nats.run();
        Some(nats)
    }

    /// The same, not running yet.
    pub(crate) fn later() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let sbin = ["/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
        let folders = std::env::split_paths(&path).chain(sbin);
        let found = folders.map(|folder| folder.join("nats-server")).find(|file| file.is_file());
        if found.is_none() {
            // Past the capture of the test's output: a skip is to be seen.
            let text = "SKIPPED: no nats-server; `apt-get install nats-server` (tools/ci/setup)";
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        Some(Self { address: port_for_later(), server: found?, child: None })
    }

    /// Starts, at the same address as ever.
    pub(crate) fn run(&mut self) {
        let child = Command::new(&self.server)
            .args(["-a", "127.0.0.1", "-p", &self.address.port().to_string()])
            .args(["--user", "replica", "--pass", "s3cret@"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server starts");
        self.child = Some(child);
        until("nats-server listens", || TcpStream::connect(self.address).is_ok());
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://replica:s3cret%40@{}", self.address)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

//! Programs under test: engines and routers as processes of their own, on free ports, ended when
//! dropped.

use crate::cores::Cores;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is ended with this value.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Where it answers requests.
    pub(crate) address: SocketAddr,
    /// Where it tells about itself.
    pub(crate) admin: SocketAddr,
}

/// Starts processes. Ports count up from the first one.
#[derive(Debug)]
pub(crate) struct Starter {
    program: PathBuf,
    next_port: u16,
    cores: Cores,
    pub(crate) folder: PathBuf,
}

const TRIES_MAX: u32 = 400;
const PAUSE: Duration = Duration::from_millis(50);
const PORTS_TRIED_MAX: u16 = 2_000;

impl Starter {
    pub(crate) fn new(program: PathBuf, first_port: u16, folder: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let cores = Cores::of_process()?;
        cores.of_others()?;
        Ok(Self { program, next_port: first_port, cores, folder })
    }

    /// A port nobody listens on.
    pub(crate) fn port(&mut self) -> io::Result<u16> {
        for _ in 0..PORTS_TRIED_MAX {
            let port = self.next_port;
            self.next_port =
                self.next_port.checked_add(1).ok_or_else(|| io::Error::other("out of ports"))?;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Ok(port);
            }
        }
        Err(io::Error::other("no free port"))
    }

    /// A simulated engine.
    pub(crate) fn engine(&mut self, flags: &[String]) -> io::Result<Running> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port()?));
        let mut argv = vec!["engine".to_owned(), "--listen".to_owned(), address.to_string()];
        argv.extend_from_slice(flags);
        let child = self.spawn(&argv, address.port())?;
        Running { child, address, admin: address }.ready("/health")
    }

    /// A router in front of those engines.
    pub(crate) fn router(&mut self, engines: &[Running], flags: &[String]) -> io::Result<Running> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port()?));
        let admin = SocketAddr::from(([127, 0, 0, 1], self.port()?));
        let mut argv: Vec<String> = ["serve", "--listen"].map(str::to_owned).into();
        argv.extend([address.to_string(), "--admin".to_owned(), admin.to_string()]);
        for engine in engines {
            argv.extend(["--worker".to_owned(), format!("http://{}", engine.address)]);
        }
        argv.extend_from_slice(flags);
        self.cores.of_routers()?;
        let child = self.spawn(&argv, address.port());
        self.cores.of_others()?;
        Running { child: child?, address, admin }.ready("/readyz")
    }

    fn spawn(&self, argv: &[String], port: u16) -> io::Result<Child> {
        let log = File::create(self.folder.join(format!("{port}.log")))?;
        let mut command = Command::new(&self.program);
        command.args(argv).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}", self.program.display())))
    }
}

impl Running {
    fn ready(mut self, path: &str) -> io::Result<Self> {
        for _ in 0..TRIES_MAX {
            if let Some(status) = self.child.try_wait()? {
                let text =
                    format!("a process ended with {status}: see {}.log", self.address.port());
                return Err(io::Error::other(text));
            }
            if get(self.admin, path).is_ok_and(|(status, _)| status == 200) {
                return Ok(self);
            }
            pause();
        }
        Err(io::Error::other(format!("{} does not get ready", self.address)))
    }

    /// The sum of a metric's samples; 0 if it has none.
    pub(crate) fn metric(&self, name: &str) -> io::Result<f64> {
        let (_, page) = get(self.admin, "/metrics")?;
        let mine = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        Ok(mine.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// `GET path`: status and body.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// A folder for logs.
pub(crate) fn folder_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join("qa").join(name)
}

#[expect(clippy::disallowed_methods, reason = "waits for a process, on no thread of a router")]
fn pause() {
    std::thread::sleep(PAUSE);
}

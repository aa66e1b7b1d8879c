//! nginx as a yardstick: one process without a master on the router's core, unbuffered, with kept
//! connections on both sides. Lives in a directory of its own, ends with its value.

use crate::load::{Target, ask_once};
use core_affinity::CoreId;
use forebay_bench_rig::{CpuMeter, Rig, threads};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const TRIES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// A running nginx.
pub(crate) struct Nginx {
    pub(crate) target: Target,
    child: Child,
    _dir: TempDir,
}

impl Nginx {
    /// Starts it in front of the worker; `None` where nginx is not installed.
    pub(crate) fn start(rig: &mut Rig, core: usize, probe: &[u8]) -> io::Result<Option<Self>> {
        let dir = tempfile::tempdir()?;
        // Another process may take the port in between; then nginx says so and ends, and so do we.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = dir.path().join("nginx.conf");
        fs::write(&file, configuration(dir.path(), address, rig.stub.address()?))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).arg("-e").arg("stderr");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A child runs on the cores of the thread that starts it.
        let starter = std::thread::spawn(move || {
            core_affinity::set_for_current(CoreId { id: core });
            command.spawn()
        });
        let child = match starter.join().map_err(|_| io::Error::other("no thread"))? {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            child => child?,
        };
        let cpu = Some(CpuMeter::of_threads(&threads(&child.id().to_string())));
        let target = Target { name: "nginx".to_owned(), address, cpu };
        let nginx = Self { target, child, _dir: dir };
        let mut tries = 0;
        while TcpStream::connect(address).is_err() {
            tries += 1;
            if tries > TRIES_MAX {
                return Err(io::Error::other("nginx does not listen"));
            }
            rig.pause(PAUSE)?;
        }
        match ask_once(rig, address, probe)? {
            (200, _) => Ok(Some(nginx)),
            (status, _) => Err(io::Error::other(format!("nginx answers with {status}"))),
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _status = self.child.wait();
    }
}

fn configuration(dir: &Path, listen: SocketAddr, worker: SocketAddr) -> String {
    let dir = dir.display();
    format!(
        "daemon off;
master_process off;
pid {dir}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_buffer_size 256k;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  upstream worker {{
    server {worker};
    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}
  server {{
    listen {listen} backlog=4096;
    location / {{
      proxy_pass http://worker;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
    }}
  }}
}}
"
    )
}

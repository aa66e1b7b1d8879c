//! The router as a process of its own: to be stopped, and to be read.

use super::{port_for_later, until};
use forebay_handover::OF_UPGRADE;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};

/// It ends with the value.
pub(crate) struct RouterProcess {
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    folder: tempfile::TempDir,
}

impl RouterProcess {
    /// Follows one rank.
    pub(crate) fn start(live: &SocketAddr, replay: Option<&SocketAddr>) -> Self {
        let replay = replay.map(|place| format!("replay = [\"tcp://{place}\"]\n"));
        let replay = replay.unwrap_or_default();
        Self::configured(&format!(
            "policy = \"kv\"\nmodel_dir = \"tests/data/tokenizer\"\n\
             [health]\nenabled = false\n[[worker]]\nurl = \"http://127.0.0.1:1\"\nmodels = [\"m\"]\n\
             kv_events = [\"tcp://{live}\"]\n{replay}",
        ))
    }

    /// With this configuration beside its addresses.
    pub(crate) fn configured(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Self::spawn(text, log.into(), folder, "")
    }

    /// The same. Its log tells of each turn of a shard that takes more CPU time than this.
    pub(crate) fn watched(text: &str, turn_us_max: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Self::spawn(text, log.into(), folder, &format!("export FOREBAY_HOLDS={turn_us_max}; "))
    }

    /// The same, with a limit of open files that it cannot raise.
    pub(crate) fn with_limit(text: &str, descriptors: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Self::spawn(text, log.into(), folder, &format!("ulimit -n {descriptors}; "))
    }

    /// The same, with another standard error.
    pub(crate) fn with_stderr(text: &str, stderr: impl Into<Stdio>) -> Self {
        Self::spawn(text, stderr.into(), tempfile::tempdir().unwrap(), "")
    }

    /// The same, after something was done about the address where it is to listen. The process
    /// replaces a process that runs there.
    pub(crate) fn prepared<T>(text: &str, prepare: impl FnOnce(SocketAddr) -> T) -> (Self, T) {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let ports = [0, 1].map(|_| port_for_later());
        let prepared = prepare(ports[0]);
        let first = format!("export {OF_UPGRADE}=1; ");
        (Self::spawn_at(ports, text, log.into(), folder, &first), prepared)
    }

    /// `first`: what its shell does before.
    fn spawn(text: &str, stderr: Stdio, folder: tempfile::TempDir, first: &str) -> Self {
        Self::spawn_at([0, 1].map(|_| port_for_later()), text, stderr, folder, first)
    }

    fn spawn_at(
        [listen, admin]: [SocketAddr; 2],
        text: &str,
        stderr: Stdio,
        folder: tempfile::TempDir,
        first: &str,
    ) -> Self {
        let file = folder.path().join("forebay.toml");
        let text = format!("listen = \"{listen}\"\nadmin = \"{admin}\"\n{text}");
        std::fs::write(&file, text).unwrap();
        let shell = format!("{first}exec \"$0\" \"$@\"");
        let child = Command::new("sh")
            .args(["-c", &shell, env!("CARGO_BIN_EXE_forebay"), "serve", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let router = Self { child, listen, admin, folder };
        until("the router answers", || TcpStream::connect(admin).is_ok());
        router
    }

    /// A second process with the same configuration file, which replaces the first.
    pub(crate) fn second(&self) -> Child {
        self.command(&["serve", "--take-over", "--config"])
    }

    /// The program, with its configuration file behind these arguments; it says nothing.
    pub(crate) fn command(&self, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(arguments)
            .arg(self.folder.path().join("forebay.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Its number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// How it ends.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Changes its configuration file, which it does not notice by itself.
    pub(crate) fn edit(&self, change: impl Fn(&str) -> String) {
        let file = self.folder.path().join("forebay.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, change(&text)).unwrap();
    }

    /// Its configuration file.
    pub(crate) fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("forebay.toml")
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Lines of its log with these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for RouterProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

//! A router that does not read for a while: the publisher drops what it cannot send, the router sees that it did.

use crate::rig::truth::{NONE, feed, get, replays, resets, until_difference, until_feed};
use crate::rig::{Publisher, Replay, any_port, until};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(15);

struct RouterProcess {
    child: Child,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl RouterProcess {
    fn start(publisher: &Publisher, with_replay: bool) -> Self {
        let [listen, admin] =
            [0, 1].map(|_| TcpListener::bind(any_port()).unwrap().local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("forebay.toml");
        let replay = match with_replay {
            true => format!("replay = [\"tcp://{}\"]\n", publisher.replay),
            false => String::new(),
        };
        let text = format!(
            "listen = \"{listen}\"\nadmin = \"{admin}\"\npolicy = \"kv\"\nmodel_dir = \"tests/data/tokenizer\"\n\
             [health]\nenabled = false\n[[worker]]\nurl = \"http://127.0.0.1:1\"\nmodels = [\"m\"]\n\
             kv_events = [\"tcp://{}\"]\n{replay}",
            publisher.live
        );
        std::fs::write(&file, text).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let router = Self { child, admin, _folder: folder };
        until("the router answers", || TcpStream::connect(admin).is_ok());
        router
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for RouterProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_stopped_router_resyncs_when_it_goes_on() {
    for with_replay in [false, true] {
        let mut publisher = Publisher::start(1, Replay::Topic);
        let router = RouterProcess::start(&publisher, with_replay);
        until_feed(router.admin, "live");
        until("subscribed", || publisher.subscribers() == 1);
        (0..100).for_each(|_| publisher.churn());
        until_difference(router.admin, &publisher, SOON, |now| now == NONE);

        let joined = replays(router.admin, "complete");
        router.signal(Signal::STOP);
        publisher.remember(1_000_000);
        let mut batches = 0;
        while publisher.dropped() < 200 {
            publisher.pad(400);
            batches += 1;
            if batches % 10 == 0 {
                publisher.churn();
            }
            assert!(batches < 50_000, "the publisher never had to drop");
        }
        router.signal(Signal::CONT);
        // What waits is sent with the next message; then the gap shows.
        let start = Instant::now();
        while resets(router.admin, "gap") < 0.5 && replays(router.admin, "complete") < 0.5 + joined
        {
            assert!(start.elapsed() < SOON * 2, "the gap is not seen");
            publisher.churn();
            std::thread::sleep(Duration::from_millis(5));
        }
        let good = |now: crate::rig::truth::Difference| {
            if with_replay { now == NONE } else { now.ghosts == 0 }
        };
        until_difference(router.admin, &publisher, SOON, good);
        assert_eq!(feed(router.admin, 0)["connections_lost"], 0);
        assert_eq!(get(router.admin, "/readyz").status, 200);
    }
}

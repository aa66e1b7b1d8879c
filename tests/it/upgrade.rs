//! A new process takes over from the running one, and no request is lost.

use crate::drain::{Fate, ask_once};
use crate::kv_routing::{Person, overlap_tokens};
use crate::rig::truth::{get, metric};
use crate::rig::{ASK, Client, RouterProcess, Worker, post, until};
use crate::warm_restart::new_engine;
use forebay_base::Clock;
use forebay_handover::{HandoverAddress, HandoverHost, HostCall, HostSetup, Program, take};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{SockFilter, SockRef};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener};
use std::process::Child;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ends with the value.
pub(crate) struct Second(pub(crate) Child);

impl Drop for Second {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn quick() -> Worker {
    Worker::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
    })
}

fn served_by(worker: &Worker) -> RouterProcess {
    let router = RouterProcess::configured(&format!(
        "cores = [0, 1]\npolicy = \"least_loaded\"\nhealth = \"off\"\n[timeouts]\ndrain = \"20s\"\n\
         [[worker]]\nurl = \"http://{}\"\nmodels = [\"m\"]\n",
        worker.address
    ));
    until("it serves", || get(router.admin, "/readyz").status == 200);
    router
}

/// Requests over new connections until `done`.
fn load(address: SocketAddr, done: impl Fn() -> bool + Sync) -> Vec<Fate> {
    let done = &done;
    std::thread::scope(|scope| {
        let ask = || {
            let mut fates = Vec::new();
            while !done() {
                fates.push(ask_once(address));
            }
            fates
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn a_second_start_takes_over_without_a_lost_request() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let worker = Worker::start(move |seen, stream| {
        if seen.head.contains("hold") {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
                .unwrap();
            let _ = released.lock().unwrap().recv();
            return stream.write_all(b"2\r\ncd\r\n0\r\n\r\n").is_ok();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
    });
    let mut first = served_by(&worker);
    let listen = first.listen;
    let admin = first.admin;
    let mut stream = Client::connect(listen);
    stream.send(&post("/v1/completions?hold", ASK));
    let mut kept = Client::connect(listen);
    kept.send(&post("/v1/completions", ASK));
    assert_eq!(kept.reply().text(), "ok");
    let second = Mutex::new(None);
    let fates = load(listen, || {
        let mut second = second.lock().unwrap();
        if second.is_none() && metric(admin, "forebay_connections_accepted_total") > 50.0 {
            *second = Some(Second(first.second()));
        }
        // Some more, once the second one alone accepts.
        first.logged("handed over") > 0
            && metric(admin, "forebay_connections_accepted_total") > 50.0
    });
    let lost = fates.iter().filter(|fate| **fate != Fate::Answered).count();
    assert_eq!(lost, 0, "of {}: {fates:?}", fates.len());
    // The connections of before have their next answer, and the stream its end.
    kept.send(&post("/v1/completions", ASK));
    let reply = kept.reply();
    assert_eq!((reply.text(), reply.head.contains("connection: close")), ("ok".into(), true));
    release.send(()).unwrap();
    let reply = stream.reply();
    assert_eq!((reply.text(), reply.complete), ("abcd".into(), true));
    drop((kept, stream));
    assert!(first.ended().success());
    assert_eq!(first.logged("a process that no upgrade has started takes over"), 1);
    assert_eq!(get(admin, "/readyz").status, 200);
    assert_eq!(get(listen, "/health").status, 200);
    assert_eq!(ask_once(listen), Fate::Answered);
}

/// A start by mistake must not take the port away from the router that serves.
#[test]
fn a_second_start_without_a_request_to_replace_is_an_error_that_names_the_process() {
    let worker = quick();
    let first = served_by(&worker);
    let second = first.command(&["serve", "--config"]).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{text}");
    let names = format!("process {} is a router on {} already", first.process(), first.listen);
    assert!(text.contains(&names), "{names}: {text}");
    assert!(text.contains("forebay upgrade") && text.contains("--take-over"), "{text}");
    assert_eq!(first.logged("takes over"), 0);
    assert_eq!(ask_once(first.listen), Fate::Answered);
    assert_eq!(get(first.admin, "/readyz").status, 200);
}

/// Of routers that start at once, each but the first finds the first when it binds, and names it.
#[test]
fn the_losers_of_a_start_at_once_name_the_router_that_runs() {
    let worker = quick();
    let mut first = served_by(&worker);
    first.signal(Signal::TERM);
    assert!(first.ended().success());
    let started = [(); 4].map(|()| Some(first.command(&["serve", "--config"])));
    let mut running: Vec<_> = started.into_iter().flatten().collect();
    until("one is left", || {
        let ended = running.iter_mut().map(|one| one.try_wait().unwrap().is_some());
        ended.filter(|has_ended| *has_ended).count() == 3
    });
    let position = running.iter_mut().position(|one| one.try_wait().unwrap().is_none()).unwrap();
    let mut winner = running.remove(position);
    let name = format!("process {} is a router on", winner.id());
    winner.kill().unwrap();
    winner.wait().unwrap();
    for loser in running {
        let text = String::from_utf8_lossy(&loser.wait_with_output().unwrap().stderr).into_owned();
        assert!(text.contains(&name) && !text.contains("Stop it"), "{name}: {text}");
    }
}

/// A router that was stopped holds its admin port while it drains: the next start names it.
#[test]
fn an_admin_port_in_use_names_the_process_that_holds_it() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--listen", "127.0.0.1:0", "--worker", "http://127.0.0.1:9"])
        .args(["--admin", &address])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    let holder = format!("process {} (", std::process::id());
    assert!(text.contains(&holder) && text.contains("key `admin`"), "{holder}: {text}");
    assert!(text.contains("until its last request has ended"), "{text}");
}

/// A foreign process on the port is named as well.
#[test]
fn a_port_in_use_names_the_process_that_listens() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--admin", "127.0.0.1:0", "--worker", "http://127.0.0.1:9"])
        .args(["--listen", &address.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{text}");
    let names = format!("process {} (", std::process::id());
    assert!(text.contains(&names), "{text}");
}

/// The place of a process that ends is not free at once, and each upgrade needs it.
#[test]
fn a_process_that_found_its_place_taken_has_it_once_it_is_free() {
    let worker = quick();
    let text =
        format!("cores = [0]\nhealth = \"off\"\n[[worker]]\nurl = \"http://{}\"\n", worker.address);
    let (first, place) = RouterProcess::prepared(&text, |listen| {
        let name = unix::SocketAddr::from_abstract_name(format!("forebay/{listen}")).unwrap();
        let place = UnixListener::bind_addr(&name).unwrap();
        std::thread::spawn(move || {
            // It has nothing to hand over.
            drop(place.accept().unwrap());
            place
        })
    });
    until("that is said", || first.logged("trying on") == 1);
    drop(place.join().unwrap());
    until("it waits there", || {
        first.logged("another process can take over from this one now") == 1
    });
    let mut asked = first.command(&["upgrade", "--config"]);
    let mut said = String::new();
    asked.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(asked.wait().unwrap().success(), "{said}");
    let process = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("its number");
    let _second = KillAtEnd(process);
    assert_eq!(ask_once(first.listen), Fate::Answered, "{said}");
}

#[test]
fn an_upgrade_starts_the_program_again_and_can_be_repeated() {
    let worker = quick();
    let mut first = served_by(&worker);
    let mut processes = Vec::new();
    for _ in 0..2 {
        let mut asked = first.command(&["upgrade", "--config"]);
        let mut said = String::new();
        asked.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(asked.wait().unwrap().success(), "{said}");
        let process = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("its number");
        // M1: two processes write to the same log, and each line has its process.
        let shown = format!(" pid={process}");
        let is_of = |line: &&str| line.ends_with(&shown);
        until("the new process has a line", || first.log().lines().any(|line| is_of(&line)));
        processes.push(KillAtEnd(process));
        assert_eq!(ask_once(first.listen), Fate::Answered, "{said}");
        assert_eq!(get(first.admin, "/readyz").status, 200);
    }
    let numbers: Vec<String> = processes.iter().map(|process| process.0.to_string()).collect();
    let first_number = first.process().to_string();
    let known = |line: &str| {
        let number = line.rsplit_once(" pid=").map(|(_, number)| number);
        number.is_some_and(|number| number == first_number || numbers.iter().any(|n| n == number))
    };
    let log = first.log();
    assert!(log.lines().all(known), "{log}");
    assert!(first.ended().success());
}

/// A process that is no child of this one.
struct KillAtEnd(i32);

impl Drop for KillAtEnd {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::KILL);
    }
}

/// Before the new process serves, and in the moment after.
#[test]
fn a_process_that_is_stopped_after_its_hand_over_leaves_sockets_that_accept() {
    let worker = quick();
    for serves in [false, true] {
        let mut first = served_by(&worker);
        let place = HandoverAddress::of(first.listen).unwrap();
        let taken = take(&place).unwrap().expect("it hands over");
        if serves {
            taken.serves().unwrap();
        }
        first.signal(Signal::TERM);
        assert!(first.ended().success());
        for _ in 0..8 {
            TcpStream::connect_timeout(&first.listen, Duration::from_millis(500)).unwrap();
        }
        drop(taken);
    }
}

/// As older versions did: they stop during their upgrade, and shut the sockets that they gave.
#[test]
fn a_new_process_opens_sockets_that_the_one_before_shut() {
    let worker = quick();
    let text =
        format!("cores = [0]\nhealth = \"off\"\n[[worker]]\nurl = \"http://{}\"\n", worker.address);
    let (served, serves) = channel();
    let (router, (_before, socket)) = RouterProcess::prepared(&text, |listen| {
        let socket = TcpListener::bind(listen).unwrap();
        socket.set_nonblocking(true).unwrap();
        let setup = HostSetup {
            sockets: [socket.try_clone().unwrap().into()].into(),
            program: Program { path: "/bin/false".into(), arguments: Vec::new() },
            clock: Clock::start(),
            call: Box::new(move |call| match call {
                HostCall::Models(answer) | HostCall::Index(answer) => answer.send(None).is_ok(),
                HostCall::Serves(_, answer) => answer.send(true).is_ok() && served.send(()).is_ok(),
                HostCall::Sockets(answer) => answer.send(true).is_ok(),
                HostCall::Returned => false,
            }),
        };
        let place = HandoverAddress::of(listen).unwrap().bind().unwrap();
        (HandoverHost::start(place, setup).unwrap(), socket)
    });
    serves.recv().unwrap();
    for _ in 0..2 {
        let nothing = [SockFilter::new(6, 0, 0, 0)];
        SockRef::from(&socket).attach_filter(&nothing).unwrap();
        // Packets that are dropped come again after a second.
        assert_eq!(ask_once(router.listen), Fate::Answered);
    }
    assert!(router.logged("connections begin again") >= 2);
}

/// The command prints the errors of the new process, whatever keeps it from its start.
#[test]
fn an_upgrade_that_fails_changes_nothing_and_prints_the_errors() {
    let worker = quick();
    let first = served_by(&worker);
    let before = std::fs::read_to_string(first.config()).unwrap();
    let cores = before.replacen("cores = [0, 1]", "cores = [4095]", 1);
    for (text, wanted) in [
        (format!("{before}\nno_such_key = 1\n"), "unknown key `worker.no_such_key`".to_owned()),
        (cores, "`cores`: core 4095 is not available to this process".to_owned()),
        (format!("log.level = \"f=o=o\"\n{before}"), ":1:13: error: `log.level`".to_owned()),
    ] {
        std::fs::write(first.config(), text).unwrap();
        let asked = first.command(&["upgrade", "--config"]).wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&asked.stdout);
        let said = String::from_utf8_lossy(&asked.stderr);
        assert_eq!(asked.status.code(), Some(1));
        let ended = "not upgraded: the new process ended (exit status: 1)";
        assert!(said.contains(ended) && !said.contains("its log says why"), "{said}");
        assert!(errors.contains(&wanted), "{wanted}: {errors}");
        assert_eq!(ask_once(first.listen), Fate::Answered);
        assert_eq!(get(first.admin, "/readyz").status, 200);
    }
    // Without a readable file the command does not know which router is meant.
    std::fs::write(first.config(), "listen = \n").unwrap();
    let asked = first.command(&["upgrade", "--config"]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("forebay.toml:1:") && said.contains("--listen"), "{said}");
    assert_eq!(asked.status.code(), Some(1));
}

#[test]
fn the_index_comes_along() {
    let (engine, _) = new_engine(true);
    let first = RouterProcess::configured(&format!(
        "cores = [0, 1]\npolicy = \"kv\"\nmodel_dir = \"tests/data/tokenizer\"\n\
         [health]\ninterval = \"100ms\"\n[[worker]]\nurl = \"{}\"\n",
        engine.url()
    ));
    until("it serves", || get(first.admin, "/readyz").status == 200);
    until("it follows the engine", || metric(first.admin, "forebay_kv_feed_live{") > 0.0);
    let mut person = Person::new(first.listen, "somebody");
    let (_, cached) = person.ask("What is a router?");
    assert_eq!(cached, 0);
    let tracked = || metric(first.admin, "forebay_kv_tracked_blocks");
    until("its blocks are known", || tracked() > 18.0);
    let (reply, cached) = person.ask("And what is a dam?");
    assert_eq!(overlap_tokens(&reply), cached, "before");
    let known = tracked();
    let _second = Second(first.second());
    until("the second one serves", || first.logged("handed over") > 0);
    until("it answers", || get(first.admin, "/readyz").status == 200);
    assert_eq!(tracked().to_bits(), known.to_bits());
    person.client = Client::connect(first.listen);
    let (reply, cached) = person.ask("And what is a forebay?");
    // Until the engine has confirmed it, what came along counts as a guess, which no field tells.
    let guessed = metric(first.admin, "forebay_guessed_bytes_total") > 1_000.0;
    let predicted = overlap_tokens(&reply);
    let is_told = predicted.abs_diff(cached) <= 16;
    assert!(cached > 100 && (is_told || guessed), "{predicted} for {cached}");
}

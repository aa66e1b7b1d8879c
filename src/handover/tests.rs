//! Two processes in one: threads that meet.

use super::takeover::report_to;
use super::*;
use forebay_base::Clock;
use rustix::process::Pid;
use socket2::{SockFilter, SockRef};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A process that waits under a name of the test's own, and what it is asked.
fn host(
    port: u16,
    sockets: Vec<OwnedFd>,
    program: &str,
) -> (HandoverHost, HandoverAddress, Receiver<HostCall>) {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let place = HandoverAddress::of(([127, 9, high, low], port).into()).unwrap();
    let (call, called) = channel();
    let setup = HostSetup {
        sockets: sockets.into(),
        program: Program { path: PathBuf::from(program), arguments: Vec::new() },
        clock: Clock::start(),
        call: Box::new(move |asked| call.send(asked).is_ok()),
    };
    (HandoverHost::start(place.bind().unwrap(), setup).unwrap(), place, called)
}

fn file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn gives(called: &Receiver<HostCall>) {
    let HostCall::Sockets(to) = called.recv().unwrap() else { panic!("the sockets come first") };
    to.send(true).unwrap();
}

/// Answers what a new process asks; keeps the host until that serves.
fn answer(host: HandoverHost, called: &Receiver<HostCall>, index: Option<File>, drains: bool) {
    gives(called);
    let HostCall::Index(to) = called.recv().unwrap() else { panic!("the index comes next") };
    to.send(index).unwrap();
    if let Ok(HostCall::Serves(process, to)) = called.recv() {
        assert_eq!(process.as_raw_nonzero().get().unsigned_abs(), std::process::id());
        drop(host);
        to.send(drains).unwrap();
    }
}

#[test]
fn sockets_and_the_index_come_over_and_the_place_is_free_then() {
    // More than go with one byte.
    let listeners: Vec<_> = (0..150).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
    let (host, place, called) = host(1, listeners.into_iter().map(OwnedFd::from).collect(), "");
    let running = std::thread::spawn(move || answer(host, &called, Some(file("known")), true));
    let mut taken = take(&place).unwrap().unwrap();
    let came = std::mem::take(&mut taken.sockets).into_iter().map(TcpListener::from);
    let came: Vec<_> = came.map(|one| one.local_addr().unwrap()).collect();
    assert_eq!(came, addresses);
    let mut index = taken.index.take().unwrap();
    let mut text = String::new();
    index.rewind().unwrap();
    index.read_to_string(&mut text).unwrap();
    assert_eq!(text, "known");
    taken.serves().unwrap();
    running.join().unwrap();
    assert!(take(&place).unwrap().is_none(), "nobody waits there any more");
    // A test beside this one starts programs. Until such a child runs its program, it has copies of
    // our sockets.
    let is_free = |_| {
        std::thread::yield_now();
        place.bind().is_ok()
    };
    assert!((0..1_000_000).any(is_free), "somebody has the place");
}

#[test]
fn a_new_process_that_gives_up_changes_nothing() {
    let (host, place, called) = host(2, Vec::new(), "");
    let running = std::thread::spawn(move || {
        for _ in 0..2 {
            gives(&called);
            let HostCall::Index(to) = called.recv().unwrap() else { panic!("nobody serves") };
            to.send(None).unwrap();
            assert!(matches!(called.recv().unwrap(), HostCall::Returned));
        }
        (host, called)
    });
    for _ in 0..2 {
        let taken = take(&place).unwrap().unwrap();
        assert!(taken.sockets.is_empty() && taken.index.is_none());
    }
    let (host, called) = running.join().unwrap();
    drop(host);
    assert!(called.recv().is_err(), "its thread has ended");
    assert!(take(&place).unwrap().is_none());
}

#[test]
fn the_process_knows_of_its_sockets_before_another_has_them_and_when_that_is_gone() {
    let sockets = vec![OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap())];
    let (_host, place, called) = host(21, sockets, "");
    let running = std::thread::spawn(move || {
        let HostCall::Sockets(to) = called.recv().unwrap() else { panic!("asked first") };
        to.send(false).unwrap();
        gives(&called);
        let HostCall::Index(to) = called.recv().unwrap() else { panic!("then its index") };
        to.send(None).unwrap();
        assert!(matches!(called.recv().unwrap(), HostCall::Returned));
    });
    assert!(matches!(take(&place), Err(TakeError::Drains)));
    let gone = take(&place).unwrap().unwrap();
    assert_eq!(gone.sockets.len(), 1);
    drop(gone);
    running.join().unwrap();
}

#[test]
fn what_the_process_before_did_to_the_sockets_is_undone_until_it_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connects = || TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok();
    let nothing = [SockFilter::new(6, 0, 0, 0)];
    let of_before = listener.try_clone().unwrap();
    let shut = || SockRef::from(&of_before).attach_filter(&nothing).unwrap();
    let sockets: Arc<[OwnedFd]> = vec![listener.into()].into();
    let mut running = std::process::Command::new("cat");
    let mut running = running.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&running);
    let before = PreviousProcess::new(pid, sockets);
    assert!(before.reopen() && connects(), "nothing was done");
    for _ in 0..2 {
        shut();
        assert!(!connects());
        assert!(before.reopen() && connects());
    }
    shut();
    drop(running.stdin.take());
    running.wait().unwrap();
    assert!(!before.reopen() && connects(), "at last");
}

#[test]
fn a_process_that_drains_is_not_taken_over() {
    let (host, place, called) = host(3, Vec::new(), "");
    let running = std::thread::spawn(move || answer(host, &called, None, false));
    let taken = take(&place).unwrap().unwrap();
    assert!(matches!(taken.serves(), Err(TakeError::Io(_))));
    running.join().unwrap();
}

#[test]
fn an_upgrade_whose_program_fails_says_why() {
    for (port, program, reason) in
        [(11, "/bin/false", "exit status: 1"), (12, "/nonexistent", "cannot be")]
    {
        let (host, place, _called) = host(port, Vec::new(), program);
        let error = upgrade(&place).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        drop(host);
        assert!(upgrade(&place).unwrap().is_none());
    }
}

/// A report without an upgrade changes nothing, however long. The child of the next upgrade sends
/// none: the reason names its log.
#[test]
fn a_report_of_no_upgrade_is_dropped() {
    let (host, place, _called) = host(13, Vec::new(), "/bin/false");
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let name = OsString::from(format!("forebay/127.9.{high}.{low}:13"));
    for length in [0, 7, 1 << 20] {
        report_to(&name, &"x".repeat(length)).unwrap();
    }
    let error = upgrade(&place).unwrap_err();
    assert!(error.to_string().contains("its log says why"), "{error}");
    assert!(matches!(error, TakeError::Failed { report, .. } if report.is_empty()));
    drop(host);
    report_to(&name, "x").unwrap();
    report_to(&OsString::from("1"), "x").unwrap();
}

/// Peers of the same user that are silent, or name what they want letter by letter.
#[test]
#[expect(clippy::disallowed_methods, reason = "the peer is slow")]
fn a_slow_peer_holds_others_up_for_a_second_at_most() {
    let (_host, place, _called) = host(6, Vec::new(), "/bin/false");
    let clock = Clock::start();
    let (mut slow, _) = place.meet().unwrap().unwrap();
    let trickle = std::thread::spawn(move || {
        for _ in 0..20 {
            if slow.write_all(b"u").is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(150));
        }
    });
    let error = upgrade(&place).unwrap_err().to_string();
    assert!(error.contains("exit status: 1"), "{error}");
    let waited = Duration::from_nanos(clock.now().0);
    assert!(waited < Duration::from_millis(2_500), "{waited:?}");
    trickle.join().unwrap();
}

/// Of several upgrades at once one is served, and others wait at a place that goes.
#[test]
fn an_upgrade_whose_process_goes_is_told_so() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let place = HandoverAddress::of(([127, 9, high, low], 8).into()).unwrap();
    let bound = place.bind().unwrap();
    let asking = std::thread::spawn(move || upgrade(&place).unwrap_err());
    let accepts = || bound.0.accept().is_ok();
    while !accepts() {
        std::thread::yield_now();
    }
    drop(bound);
    assert!(matches!(asking.join().unwrap(), TakeError::TakenMeanwhile));
}

#[test]
fn who_speaks_otherwise_is_left_alone() {
    let (host, place, called) = host(5, Vec::new(), "");
    for said in ["", "other\n", "sock", &"x".repeat(4_096)] {
        let (mut stream, _) = place.meet().unwrap().unwrap();
        // It may have closed already.
        let _ = stream.write_all(said.as_bytes());
        stream.shutdown(std::net::Shutdown::Write).unwrap_or(());
        let answer = io::copy(&mut stream, &mut io::sink());
        assert!(answer.is_err() || answer.unwrap() == 0, "{said}");
    }
    drop(host);
    assert!(called.recv().is_err());
}

#[test]
fn places_are_of_one_address() {
    let place = |address: &str| HandoverAddress::of(address.parse().unwrap()).unwrap();
    let waits = place("127.0.0.1:7").bind().unwrap();
    assert!(place("127.0.0.1:7").meet().unwrap().is_some());
    assert!(place("[::1]:7").meet().unwrap().is_none());
    drop(waits);
}

#[test]
fn the_models_of_workers_come_over_before_the_sockets() {
    let (host, place, called) = host(4, Vec::new(), "");
    let running = std::thread::spawn(move || {
        for models in [Some(file("known")), None] {
            let HostCall::Models(to) = called.recv().unwrap() else {
                panic!("models are asked for")
            };
            to.send(models).unwrap();
        }
        answer(host, &called, None, true);
    });
    let mut models = take_models(&place).unwrap().unwrap();
    let mut text = String::new();
    models.rewind().unwrap();
    models.read_to_string(&mut text).unwrap();
    assert_eq!(text, "known");
    assert!(take_models(&place).unwrap().is_none(), "it could not write them");
    take(&place).unwrap().unwrap().serves().unwrap();
    running.join().unwrap();
    assert!(take_models(&place).unwrap().is_none(), "no process waits there any more");
}

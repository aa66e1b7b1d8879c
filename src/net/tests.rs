//! Both drivers, with real sockets.

use super::Driver;
use super::Listener;
use super::Receiver;
use super::Sender;
use super::Socket;
use super::Source;
use super::block_on;
use super::buffers;
use super::connect;
use super::end_turn;
use super::io_counts;
use super::join_cohort;
use super::sleep;
use super::spawn;
use forebay_base::Clock;
use forebay_base::limits::{AHEAD_BYTES_MAX, CHUNKS_AHEAD_MAX, PROVIDED_BUFFERS, READ_BYTES};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Runs it on each driver that this machine has.
fn on_both<F: Future>(main: impl Fn() -> F) {
    block_on(Driver::Epoll, Clock::start(), |_| (), main()).unwrap();
    if Driver::detect() == Driver::IoUring {
        block_on(Driver::IoUring, Clock::start(), |_| (), main()).unwrap();
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn chunk(receiver: &mut Receiver) -> Vec<u8> {
    poll_fn(|cx| receiver.poll_chunk(cx)).await.unwrap()
}

async fn pair() -> (Receiver, Sender, TcpStream) {
    let (listener, address) = listen();
    let listener = Listener::from_std(listener).unwrap();
    let other = TcpStream::connect(address).unwrap();
    let (receiver, sender) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap().0.split();
    (receiver, sender, other)
}

#[test]
fn echoes_of_all_sizes_come_back_whole() {
    on_both(|| async {
        let (listener, address) = listen();
        let listener = Listener::from_std(listener).unwrap();
        spawn(async move {
            loop {
                let (socket, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
                let (mut receiver, mut sender) = socket.split();
                spawn(async move {
                    loop {
                        let bytes = chunk(&mut receiver).await;
                        if bytes.is_empty() {
                            return;
                        }
                        let sent = sender.send(bytes).await.unwrap();
                        receiver.recycle(sent);
                    }
                });
            }
        });
        for size in [1, 100, 5_000, READ_BYTES, 3 * READ_BYTES + 1, 8 << 20] {
            let (mut receiver, mut sender) = connect(address).await.unwrap().split();
            let sent: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let expected = sent.clone();
            let is_sent = Rc::new(Cell::new(false));
            let set = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_sent);
            let end = Rc::clone(&set);
            spawn(async move {
                sender.start(sent);
                done.set(poll_fn(|cx| sender.poll_flushed(cx)).await.is_ok());
                while !end.get() {
                    sleep(Duration::from_millis(1)).await;
                }
                sender.close().unwrap();
            });
            let mut echo = Vec::new();
            while echo.len() < size {
                echo.extend(chunk(&mut receiver).await);
            }
            assert!(echo == expected, "{size}");
            while !is_sent.get() {
                sleep(Duration::from_millis(1)).await;
            }
            set.set(true);
            assert!(chunk(&mut receiver).await.is_empty(), "the end");
            assert!(chunk(&mut receiver).await.is_empty(), "and from then on");
        }
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    on_both(|| async {
        let (listener, address) = listen();
        drop(listener);
        assert!(connect(address).await.is_err());
    });
}

#[test]
fn a_socket_whose_bytes_are_not_taken_is_not_read_further() {
    on_both(|| async {
        let (mut receiver, _sender, mut other) = pair().await;
        other.set_nonblocking(true).unwrap();
        let piece = vec![b'x'; 1 << 20];
        let mut cx = Context::from_waker(Waker::noop());
        let mut sent = 0;
        let mut idle_turns = 0;
        while idle_turns < 20 {
            let count = other.write(&piece).unwrap_or(0);
            sent += count;
            idle_turns = if count == 0 { idle_turns + 1 } else { 0 };
            receiver.poll_ahead(&mut cx);
            sleep(Duration::from_millis(1)).await;
        }
        let ahead = receiver.bytes_ahead();
        assert!(ahead <= (CHUNKS_AHEAD_MAX + PROVIDED_BUFFERS) * READ_BYTES, "{ahead}");
        drop(other);
        let mut received = 0;
        while let Ok(bytes) = poll_fn(|cx| receiver.poll_chunk(cx)).await
            && !bytes.is_empty()
        {
            received += bytes.len();
            receiver.recycle(bytes);
        }
        assert_eq!(received, sent, "nothing was lost where reading paused");
    });
}

#[test]
fn more_sockets_than_buffers_lose_nothing() {
    on_both(|| async {
        let mut pairs = Vec::new();
        for _ in 0..PROVIDED_BUFFERS + 40 {
            pairs.push(pair().await);
        }
        for (receiver, ..) in &mut pairs {
            assert!(receiver.is_quiet());
        }
        for (.., other) in &mut pairs {
            other.write_all(&[b'x'; 20_000]).unwrap();
        }
        for (receiver, ..) in &mut pairs {
            let mut received = 0;
            while received < 20_000 {
                received += chunk(receiver).await.len();
            }
        }
    });
}

#[test]
fn one_that_leaves_is_seen_and_a_drop_closes() {
    on_both(|| async {
        let (mut receiver, sender, mut other) = pair().await;
        assert!(receiver.is_quiet());
        drop((receiver, sender));
        other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        sleep(Duration::from_millis(5)).await;
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 0, "closed");
        let (mut receiver, _sender, mut other) = pair().await;
        assert!(receiver.is_quiet());
        // The end comes together with the last bytes.
        other.write_all(b"last").unwrap();
        drop(other);
        assert_eq!(chunk(&mut receiver).await, b"last");
        assert!(chunk(&mut receiver).await.is_empty());
        assert!(!receiver.is_quiet());
    });
}

#[test]
fn a_peer_that_does_not_read_stalls_only_its_own_task() {
    on_both(|| async {
        let (_receiver, mut sender, mut other) = pair().await;
        let is_sent = Rc::new(Cell::new(false));
        let sent = Rc::clone(&is_sent);
        spawn(async move {
            sender.start(vec![b'x'; 32 << 20]);
            sent.set(poll_fn(|cx| sender.poll_flushed(cx)).await.is_ok());
        });
        sleep(Duration::from_millis(20)).await;
        assert!(!is_sent.get());
        let reading = std::thread::spawn(move || {
            let mut all = Read::take(&mut other, 32 << 20);
            std::io::copy(&mut all, &mut std::io::sink()).unwrap()
        });
        while !is_sent.get() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(reading.join().unwrap(), 32 << 20);
        // Given up on: the buffer stays with the operation, and the connection ends.
        let (_receiver, mut sender, _other) = pair().await;
        sender.start(vec![b'x'; 32 << 20]);
        let mut cx = Context::from_waker(Waker::noop());
        sleep(Duration::from_millis(1)).await;
        assert!(sender.poll_sent(&mut cx).is_pending());
        drop(sender);
        sleep(Duration::from_millis(1)).await;
    });
}

#[test]
fn an_eventfd_of_another_thread_wakes_as_often_as_it_is_signalled() {
    on_both(|| async {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let source = Source::new(bell.try_clone().unwrap()).unwrap();
        for _ in 0..3 {
            let bell = bell.try_clone().unwrap();
            let ringing = std::thread::spawn(move || {
                rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
            });
            poll_fn(|cx| source.poll_signalled(cx)).await;
            ringing.join().unwrap();
            // Told once.
            let mut cx = Context::from_waker(Waker::noop());
            sleep(Duration::from_millis(1)).await;
            assert!(source.poll_signalled(&mut cx).is_pending());
        }
    });
}

#[test]
fn tasks_that_never_wait_leave_room_for_sockets_and_timers() {
    on_both(|| async {
        spawn(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let (mut receiver, _sender, mut other) = pair().await;
        other.write_all(b"x").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"x");
        sleep(Duration::from_millis(2)).await;
    });
}

#[test]
fn timers_fire_in_their_order_and_tasks_end_with_the_loop() {
    let dropped = Rc::new(Cell::new(0));
    struct Counts(Rc<Cell<u32>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    on_both(|| async {
        let order = Rc::new(Cell::new(0));
        for millis in [3_u64, 1, 2] {
            let order = Rc::clone(&order);
            spawn(async move {
                sleep(Duration::from_millis(millis)).await;
                order.set(order.get() * 10 + millis);
            });
        }
        let endless = Counts(Rc::clone(&dropped));
        spawn(async move {
            let _endless = endless;
            sleep(Duration::from_secs(3_600)).await;
        });
        // On a busy machine all of them may be due at once.
        while order.get() < 100 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(order.get(), 123);
    });
    assert!(dropped.get() >= 1);
    assert!(Socket::from_std(TcpStream::connect(listen().1).unwrap()).is_err(), "no loop here");
}

#[test]
fn an_end_that_comes_while_the_loop_is_elsewhere_is_seen() {
    on_both(|| async {
        for is_reset in [false, true] {
            let (mut receiver, _sender, mut other) = pair().await;
            assert!(receiver.is_quiet());
            sleep(Duration::from_millis(2)).await;
            // The loop is not in the kernel: both come before it looks.
            other.write_all(b"last").unwrap();
            if is_reset {
                sockopt::set_socket_linger(&other, Some(Duration::ZERO)).unwrap();
            }
            drop(other);
            #[expect(clippy::disallowed_methods, reason = "the loop is to be elsewhere")]
            std::thread::sleep(Duration::from_millis(1));
            let mut ended = false;
            for _ in 0..2 {
                let next = poll_fn(|cx| receiver.poll_chunk(cx)).await;
                ended |= next.is_ok_and(|bytes| bytes.is_empty()) || !receiver.is_quiet();
            }
            assert!(ended, "reset: {is_reset}");
        }
    });
}

#[test]
fn a_closed_connection_that_nobody_waited_for_is_not_quiet() {
    const ANSWER: usize = 40 * READ_BYTES;
    on_both(|| async {
        for _ in 0..10 {
            let (mut receiver, _sender, mut other) = pair().await;
            assert!(receiver.is_quiet());
            let sending = std::thread::spawn(move || {
                other.write_all(&[1; ANSWER]).unwrap();
                other
            });
            let mut received = 0;
            while received < ANSWER {
                let bytes = chunk(&mut receiver).await;
                received += bytes.len();
                receiver.recycle(bytes);
            }
            assert!(receiver.is_quiet());
            drop(sending.join().unwrap());
            sleep(Duration::from_millis(5)).await;
            assert!(!receiver.is_quiet());
        }
    });
}

#[test]
fn a_connection_that_closed_while_none_was_received_from_is_not_quiet() {
    on_both(|| async {
        let (mut receiver, _sender, other) = pair().await;
        assert!(receiver.is_quiet());
        // Too much waits in other sockets, so that this one's receive ends.
        let much = Vec::with_capacity(AHEAD_BYTES_MAX + 1);
        buffers().waits(&much);
        let (mut second, _second, mut writing) = pair().await;
        second.poll_ahead(&mut Context::from_waker(Waker::noop()));
        writing.write_all(b"x").unwrap();
        sleep(Duration::from_millis(2)).await;
        drop(other);
        sleep(Duration::from_millis(2)).await;
        assert!(!receiver.is_quiet());
        buffers().is_taken(&much);
        assert_eq!(chunk(&mut second).await, b"x");
    });
}

#[test]
fn what_all_sockets_have_ahead_is_bounded() {
    const SOCKETS: usize = 100;
    on_both(|| async {
        let mut cx = Context::from_waker(Waker::noop());
        let mut pairs = Vec::new();
        for _ in 0..SOCKETS {
            let (mut receiver, sender, other) = pair().await;
            other.set_nonblocking(true).unwrap();
            receiver.poll_ahead(&mut cx);
            pairs.push((receiver, sender, other));
        }
        let piece = vec![b'x'; 1 << 20];
        let mut sent = 0;
        for (.., other) in &mut pairs {
            for _ in 0..10 {
                sent += other.write(&piece).unwrap_or(0);
                sleep(Duration::from_micros(200)).await;
            }
        }
        let ahead: usize = pairs.iter().map(|(receiver, ..)| receiver.bytes_ahead()).sum();
        let bound = AHEAD_BYTES_MAX + (PROVIDED_BUFFERS + SOCKETS) * READ_BYTES;
        assert!(ahead <= bound && sent > 2 * bound, "{ahead} of {sent}, at most {bound}");
        // Nothing is lost, and the sockets are read as before.
        let mut received = 0;
        for (mut receiver, _sender, other) in pairs {
            drop(other);
            loop {
                let bytes = chunk(&mut receiver).await;
                if bytes.is_empty() {
                    break;
                }
                received += bytes.len();
                receiver.recycle(bytes);
            }
        }
        assert_eq!(received, sent);
    });
}

#[test]
fn bytes_stay_in_order_where_receiving_in_place_begins_and_ends() {
    const BYTES: usize = 8 << 20;
    on_both(|| async {
        let (mut receiver, _sender, mut other) = pair().await;
        let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let expected = sent.clone();
        let sending = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(3);
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                let piece = random.usize(1..=5 * READ_BYTES).min(rest.len());
                other.write_all(&rest[..piece]).unwrap();
                rest = &rest[piece..];
            }
        });
        let mut random = fastrand::Rng::with_seed(4);
        let mut received = Vec::new();
        let mut in_place = 0;
        loop {
            receiver.set_in_place(random.u8(..40) > 0);
            let room = random.usize(..4 * READ_BYTES);
            let mut into = Vec::with_capacity(room);
            let bytes = poll_fn(|cx| receiver.poll_in_place(cx, &mut into)).await.unwrap();
            assert_eq!(bytes, into.len());
            if bytes == 0 {
                break;
            }
            in_place += usize::from(bytes > READ_BYTES);
            received.extend(into);
            if random.u8(..8) == 0 {
                sleep(Duration::from_micros(200)).await;
            }
        }
        sending.join().unwrap();
        assert!(received == expected);
        assert!(in_place > 10, "only {in_place} were received in place");
    });
}

#[test]
fn a_sender_waits_for_room_and_goes_on() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let piece = [7; READ_BYTES];
        let mut sent = 0;
        while let count @ 1.. = sender.try_send(&[IoSlice::new(&piece)]).unwrap() {
            sent += count;
        }
        let waited = poll_fn(|cx| {
            let mut room = pin!(sender.room());
            Poll::Ready(room.as_mut().poll(cx).is_pending())
        });
        assert!(waited.await, "there is no room");
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            while all.len() <= sent {
                let mut bytes = [0; READ_BYTES];
                let count = other.read(&mut bytes).unwrap();
                all.extend_from_slice(&bytes[..count]);
            }
            all
        });
        sender.room().await.unwrap();
        while sender.try_send(&[IoSlice::new(&[8])]).unwrap() == 0 {
            sender.room().await.unwrap();
        }
        let all = reading.join().unwrap();
        assert_eq!((all.len(), all.last()), (sent + 1, Some(&8)));
        assert!(chunk(&mut receiver).await.is_empty());
    });
}

#[test]
fn what_is_asked_of_the_kernel_is_counted() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let before = io_counts();
        sender.send(b"there".to_vec()).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let sent = io_counts();
        assert_eq!(sent.submissions + sent.sends, before.submissions + before.sends + 1);
        assert!(sent.waits > before.waits);
        other.write_all(b"and back").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"and back");
        let received = io_counts();
        assert!(received.submissions + received.receives > sent.submissions + sent.receives);
    });
}

/// Reads until `other` has as many bytes; the loop runs on meanwhile.
async fn read_on(other: &mut TcpStream, count: usize) -> Vec<u8> {
    other.set_nonblocking(true).unwrap();
    let mut read = Vec::new();
    let mut piece = vec![0; 1 << 16];
    while read.len() < count {
        match other.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => read.extend_from_slice(&piece[..bytes]),
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
    read
}

#[test]
fn a_send_with_room_costs_no_wait_of_its_own() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let mut answer = [0; 4];
        other.write_all(b"once").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"once", "the receive is under way");
        let before = io_counts();
        for _ in 0..50 {
            other.write_all(b"ping").unwrap();
            let ping = chunk(&mut receiver).await;
            receiver.recycle(ping);
            let sent = sender.send(b"pong".to_vec()).await.unwrap();
            sender.recycle(sent);
        }
        let after = io_counts();
        assert!(after.waits - before.waits <= 52, "{before:?} {after:?}");
        end_turn().await;
        for _ in 0..50 {
            other.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"pong");
        }
    });
}

/// Stages of two tasks alternate within a turn, and a task that is alone never waits.
#[test]
fn a_stage_runs_for_all_due_tasks_before_the_next_stage() {
    on_both(|| async {
        let steps = Rc::new(RefCell::new(Vec::new()));
        for name in ["first", "second"] {
            let steps = Rc::clone(&steps);
            spawn(async move {
                for stage in 0..3 {
                    steps.borrow_mut().push((stage, name));
                    join_cohort().await;
                }
            });
        }
        let before = io_counts().waits;
        while steps.borrow().len() < 6 {
            end_turn().await;
        }
        assert!(io_counts().waits - before <= 2, "a stage costs no wait");
        let in_order = [0, 1, 2].map(|stage| [(stage, "first"), (stage, "second")]);
        assert_eq!(*steps.borrow(), in_order.as_flattened());
        let mut alone = pin!(join_cohort());
        let polled = poll_fn(|cx| Poll::Ready(alone.as_mut().poll(cx))).await;
        assert!(polled.is_ready(), "no other task is due");
    });
}

#[test]
fn posted_bytes_precede_a_direct_call_a_close_and_a_drop() {
    on_both(|| async {
        for end in 0..3 {
            let (receiver, mut sender, mut other) = pair().await;
            sender.send(b"first, ".to_vec()).await.unwrap();
            match end {
                0 => assert_eq!(sender.try_send(&[IoSlice::new(b"second")]).unwrap(), 6),
                1 => sender.close().unwrap(),
                _ => drop((receiver, sender)),
            }
            let expected: &[u8] = if end == 0 { b"first, second" } else { b"first, " };
            assert_eq!(read_on(&mut other, expected.len()).await, expected);
        }
    });
}

#[test]
fn sends_keep_their_order_where_the_socket_has_no_room() {
    on_both(|| async {
        let (_receiver, mut sender, mut other) = pair().await;
        let expected: Vec<u8> = (0..24_u8).flat_map(|byte| vec![byte; 1 << 20]).collect();
        let is_flushed = Rc::new(Cell::new(false));
        let flushed = Rc::clone(&is_flushed);
        spawn(async move {
            for byte in 0..24 {
                sender.send(vec![byte; 1 << 20]).await.unwrap();
            }
            poll_fn(|cx| sender.poll_flushed(cx)).await.unwrap();
            flushed.set(sender.is_flushed());
        });
        assert!(read_on(&mut other, expected.len()).await == expected);
        while !is_flushed.get() {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_broken_socket_is_an_error_of_the_next_send_at_the_latest() {
    on_both(|| async {
        let (_receiver, mut sender, other) = pair().await;
        socket2::SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
        drop(other);
        let mut sent_count = 0;
        while sender.send(b"into the void".to_vec()).await.is_ok() {
            sent_count += 1;
            assert!(sent_count < 3, "no error of {sent_count} sends");
            sleep(Duration::from_millis(1)).await;
        }
        let (_receiver, mut sender, other) = pair().await;
        socket2::SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
        drop(other);
        sender.start(b"into the void".to_vec());
        let ended = poll_fn(|cx| sender.poll_flushed(cx)).await;
        assert!(ended.is_err(), "{ended:?}");
    });
}

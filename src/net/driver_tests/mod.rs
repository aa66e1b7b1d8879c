//! Both drivers, with real sockets.

mod receiving;
mod sending;
mod turns;

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
use super::submit_alone;
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
fn a_connection_that_is_shut_down_from_outside_ends_for_both_halves() {
    on_both(|| async {
        let (listener, address) = listen();
        let listener = Listener::from_std(listener).unwrap();
        let mut other = TcpStream::connect(address).unwrap();
        let socket = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap().0;
        let closer = socket.closer();
        let (mut receiver, mut sender) = socket.split();
        // Both halves wait: the peer sends nothing, and takes nothing.
        let waits = poll_fn(|cx| Poll::Ready(receiver.poll_chunk(cx).is_pending())).await;
        assert!(waits);
        sender.start(vec![7; 8 << 20]);
        let waits = poll_fn(|cx| Poll::Ready(sender.poll_flushed(cx).is_pending())).await;
        assert!(waits, "the socket has no room for all");
        closer.shut_down();
        assert!(chunk(&mut receiver).await.is_empty(), "the end");
        assert!(poll_fn(|cx| sender.poll_flushed(cx)).await.is_err());
        drop((receiver, sender));
        closer.shut_down();
        let mut rest = Vec::new();
        other.read_to_end(&mut rest).unwrap();
    });
}

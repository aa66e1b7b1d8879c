//! Both drivers, with real sockets and both sides here.

use super::{LinkReader, LinkWriter, Turnstile, link, shake_hands};
use forebay_base::Clock;
use forebay_net::{Driver, Listener, block_on, connect, sleep, spawn};
use forebay_tls::{
    AcceptFiles, Acceptor, CertificateFiles, ConnectFiles, Connector, HandshakeFault, Tickets,
};
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice};
use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

type Link = (LinkReader, LinkWriter);

/// Runs it on each driver that this machine has.
fn on_both<F: Future>(main: impl Fn() -> F) {
    block_on(Driver::Epoll, Clock::start(), |_| (), main()).unwrap();
    if Driver::detect() == Driver::IoUring {
        block_on(Driver::IoUring, Clock::start(), |_| (), main()).unwrap();
    }
}

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../tests/data/tls", name].iter().collect()
}

fn sides() -> (Acceptor, Connector) {
    let files = CertificateFiles { cert: data("router.pem"), key: data("router.key") };
    let connect = ConnectFiles { ca: Some(files.cert.clone()), ..ConnectFiles::default() };
    let accept = AcceptFiles { certificates: vec![files], ..AcceptFiles::default() };
    let connector = Connector::read(&connect, "router.example").unwrap().of_thread();
    (Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap(), connector)
}

/// Two connected links; neither has shaken hands.
async fn strangers(is_client_tls: bool) -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Listener::from_std(listener).unwrap();
    let (acceptor, connector) = sides();
    let client = connect(address).await.unwrap();
    let (server, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
    let session = is_client_tls.then(|| connector.session().unwrap());
    (link(server, Some(acceptor.session().unwrap())), link(client, session))
}

async fn shake(link: &mut Link) -> Result<(), HandshakeFault> {
    shake_hands(&mut link.0, &mut link.1, &Turnstile::default()).await.map(drop)
}

/// A server and its client after the handshake.
async fn friends() -> (Link, Link) {
    let (mut server, mut client) = strangers(true).await;
    let done = Rc::new(std::cell::Cell::new(None));
    let told = Rc::clone(&done);
    spawn(async move {
        shake(&mut client).await.unwrap();
        told.set(Some(client));
    });
    shake(&mut server).await.unwrap();
    loop {
        if let Some(client) = done.take() {
            return (server, client);
        }
        sleep(Duration::from_millis(1)).await;
    }
}

async fn chunk(link: &mut Link) -> std::io::Result<Vec<u8>> {
    poll_fn(|cx| link.0.poll_chunk(cx)).await
}

#[test]
fn long_messages_go_both_ways_in_pieces() {
    on_both(|| async {
        for size in [0, 1, 16_384, 65_536, 65_537, 3_000_000] {
            let (mut server, mut client) = friends().await;
            let sent = vec![b'x'; size];
            let expected = sent.clone();
            spawn(async move {
                let sent = client.1.send(sent).await.unwrap();
                client.1.recycle(sent);
                client.1.close().unwrap();
                assert!(chunk(&mut client).await.unwrap().is_empty());
            });
            server.0.set_in_place(size > 100_000);
            let mut received = Vec::new();
            while poll_fn(|cx| server.0.poll_in_place(cx, &mut received)).await.unwrap() > 0 {}
            assert!(received == expected, "{size}");
            server.1.close().unwrap();
        }
    });
}

#[test]
fn what_finds_no_room_waits_and_is_flushed() {
    on_both(|| async {
        let (mut server, mut client) = friends().await;
        let bytes = vec![b'y'; 1 << 20];
        let mut taken = 0;
        // Until the socket is full.
        while taken < bytes.len() * 64 {
            let sent = client.1.try_send(&[IoSlice::new(b"head"), IoSlice::new(&bytes)]).unwrap();
            taken += sent;
            if sent == 0 {
                break;
            }
        }
        spawn(async move {
            client.1.flush().await.unwrap();
            client.1.close().unwrap();
        });
        let mut received = 0;
        loop {
            let chunk = chunk(&mut server).await.unwrap();
            if chunk.is_empty() {
                break;
            }
            received += chunk.len();
            server.0.recycle(chunk);
        }
        assert_eq!(received, taken);
    });
}

#[test]
fn an_idle_connection_is_quiet_though_tickets_come() {
    on_both(|| async {
        let (mut server, mut client) = friends().await;
        // Those of the handshake may still be on their way.
        while !client.0.is_quiet() {
            sleep(Duration::from_millis(1)).await;
        }
        let sent = server.1.send(b"unasked".to_vec()).await.unwrap();
        server.1.recycle(sent);
        while client.0.is_quiet() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(chunk(&mut client).await.unwrap(), b"unasked");
        server.1.close().unwrap();
        while client.0.is_quiet() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(!client.0.is_quiet(), "an end stays");
    });
}

#[test]
fn an_end_without_a_word_is_an_accident() {
    on_both(|| async {
        let (server, mut client) = friends().await;
        drop(server);
        let cut = chunk(&mut client).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
        let (mut server, mut client) = friends().await;
        server.1.send_close_notify();
        drop(server);
        assert!(chunk(&mut client).await.unwrap().is_empty());
    });
}

#[test]
fn plain_text_is_told_from_tls() {
    on_both(|| async {
        let (mut server, mut client) = strangers(false).await;
        let sent = client.1.send(b"GET / HTTP/1.1\r\n".to_vec()).await.unwrap();
        client.1.recycle(sent);
        assert_eq!(shake(&mut server).await, Err(HandshakeFault::NotTls));
        assert_eq!(server.0.into_plain(), b"GET / HTTP/1.1\r\n");
        server.1.into_plain();
        let sent = server.1.send(b"in plain text".to_vec()).await.unwrap();
        server.1.recycle(sent);
        assert_eq!(chunk(&mut client).await.unwrap(), b"in plain text");
        let (mut server, client) = strangers(false).await;
        drop(client);
        assert_eq!(shake(&mut server).await, Err(HandshakeFault::Closed));
    });
}

#[test]
fn one_handshake_passes_in_a_turn() {
    on_both(|| async {
        let turnstile = Rc::new(Turnstile::default());
        let turns = Rc::new(std::cell::RefCell::new(Vec::new()));
        for _ in 0..5 {
            let turnstile = Rc::clone(&turnstile);
            let turns = Rc::clone(&turns);
            spawn(async move {
                turnstile.pass().await;
                turns.borrow_mut().push(forebay_net::now().unwrap());
            });
        }
        while turns.borrow().len() < 5 {
            sleep(Duration::from_millis(1)).await;
        }
        let turns = turns.borrow();
        assert!(turns.windows(2).all(|two| two[0] < two[1]), "{turns:?}");
    });
}

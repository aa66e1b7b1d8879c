//! A TLS session against bytes that nobody has agreed on. Of the input, the first byte says which
//! side gets the rest as it is; or whether two honest sides talk, whose bytes are cut and changed
//! on the way. Must hold: no plaintext before the end of the handshake, and nothing is encrypted;
//! what is kept of the network is bounded; a fault stays; each side gets a beginning of what the
//! other has said, and all of it where nothing was changed.

use forebay_base::limits::TLS_MESSAGE_BYTES_MAX;
use forebay_tls::{
    AcceptFiles, Acceptor, CertificateFiles, ConnectFiles, Connector, Session, Tickets,
};
use std::cell::OnceCell;
use std::path::PathBuf;

const SAID_BY_CLIENT: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\n\r\n";
const SAID_BY_SERVER: &[u8] = &[7; 40_000];

thread_local! {
    static BOTH: OnceCell<(Acceptor, Connector)> = const { OnceCell::new() };
}

fn sessions() -> (Session, Session) {
    let file = |name: &str| PathBuf::from("tests/data/tls").join(name);
    let both = || {
        let cert = file("router.pem");
        let key = file("router.key");
        let files = AcceptFiles {
            certificates: vec![CertificateFiles { cert, key }],
            ..AcceptFiles::default()
        };
        let acceptor = Acceptor::read(&files, &Tickets::new().unwrap()).unwrap();
        let files = ConnectFiles { ca: Some(file("router.pem")), ..ConnectFiles::default() };
        (acceptor, Connector::read(&files, "router.example").unwrap().of_thread())
    };
    BOTH.with(|cell| {
        let (acceptor, connector) = cell.get_or_init(both);
        (acceptor.session().unwrap(), connector.session().unwrap())
    })
}

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let (server, client) = sessions();
    match kind % 3 {
        0 => alone(server, rest),
        1 => alone(client, rest),
        _ => together(server, client, rest),
    }
}

/// One side of a session, and what it has been told.
struct Listener {
    session: Session,
    heard: Vec<u8>,
    has_failed: bool,
}

impl Listener {
    fn new(session: Session) -> Self {
        Self { session, heard: Vec::new(), has_failed: false }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.session.incoming().extend_from_slice(bytes);
        let before = self.heard.len();
        let heard = self.session.advance(&mut self.heard, usize::MAX);
        assert!(heard.is_err() || !self.has_failed, "a fault is over");
        self.has_failed |= heard.is_err();
        let kept = self.session.incoming().len();
        assert!(self.has_failed || kept <= TLS_MESSAGE_BYTES_MAX, "{kept} bytes are kept");
        if self.session.is_handshaking() {
            assert_eq!(self.heard.len(), before, "plaintext in a handshake");
            let sent = self.session.outgoing().len();
            assert!(self.session.encrypt(b"secret").is_err(), "encrypted in a handshake");
            assert_eq!(self.session.outgoing().len(), sent);
        }
    }
}

/// Bytes that no honest side has sent, in pieces as they say themselves.
fn alone(session: Session, data: &[u8]) {
    let mut listener = Listener::new(session);
    let mut rest = data;
    while let Some((piece, more)) = rest.split_first() {
        let (now, later) = more.split_at((usize::from(*piece) * 4 + 1).min(more.len()));
        listener.hear(now);
        rest = later;
    }
    // Whoever owns no key of the other side never gets so far.
    assert!(listener.heard.is_empty() || listener.session.is_resumed(), "{:?}", listener.heard);
}

/// Two honest sides. Each step of the script takes three bytes: the length of a piece, and where
/// and how a byte of it is changed; a change of 0 is none.
fn together(server: Session, client: Session, script: &[u8]) {
    let mut server = Listener::new(server);
    let mut client = Listener::new(client);
    let mut steps = script.chunks_exact(3);
    let mut is_changed = false;
    let mut have_spoken = [false; 2];
    client.hear(&[]);
    loop {
        let to_server = std::mem::take(client.session.outgoing());
        let to_client = std::mem::take(server.session.outgoing());
        if to_server.is_empty() && to_client.is_empty() {
            break;
        }
        for (bytes, side) in [(to_server, &mut server), (to_client, &mut client)] {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let step = steps.next().unwrap_or(&[255, 0, 0]);
                let length = usize::from(step[0]) * usize::from(step[0]) + 1;
                let (now, later) = rest.split_at(length.min(rest.len()));
                let mut now = now.to_vec();
                let at = usize::from(step[1]) % now.len();
                now[at] ^= step[2];
                is_changed |= step[2] != 0;
                side.hear(&now);
                rest = later;
            }
        }
        let says = [(&mut server, SAID_BY_SERVER), (&mut client, SAID_BY_CLIENT)];
        for ((side, said), has_spoken) in says.into_iter().zip(&mut have_spoken) {
            if !side.has_failed && !side.session.is_handshaking() && !*has_spoken {
                *has_spoken = true;
                side.session.encrypt(said).expect("after the handshake");
            }
        }
    }
    assert!(SAID_BY_CLIENT.starts_with(&server.heard), "the server heard what nobody said");
    assert!(SAID_BY_SERVER.starts_with(&client.heard), "the client heard what nobody said");
    if !is_changed {
        assert!(server.heard == SAID_BY_CLIENT && client.heard == SAID_BY_SERVER, "not all");
    }
}

//! Two sessions that talk to each other through bytes in memory.

use super::{
    AcceptFiles, Acceptor, CertificateFault, CertificateFiles, CertificateRefusal, ConnectFiles,
    Connector, FilesFault, HandshakeFault, LoadedCertificate, Session, SessionFault, Tickets,
    leaf_for_authority, read_authorities,
};
use forebay_base::limits::TLS_HELLO_BYTES_MAX;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, Error};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Issue 39: a byte order mark hid the first section of a file.
#[test]
fn a_byte_order_mark_is_no_fault() {
    let folder = Folder::new();
    let key = KeyPair::generate().unwrap();
    let cert = params(&["a"]).self_signed(&key).unwrap();
    let marked = |pem: String| format!("\u{feff}{pem}");
    let files = folder.pair("a", &marked(cert.pem()), &marked(key.serialize_pem()));
    assert_eq!(LoadedCertificate::read(&files).unwrap().names, ["a"]);
    assert!(read_authorities(&files.cert).is_ok());
}

/// Issue 39: a file of another form had the help of a missing section.
#[test]
fn a_file_in_another_form_is_named_with_the_command_that_converts_it() {
    let folder = Folder::new();
    let key = KeyPair::generate().unwrap();
    let cert = params(&["a"]).self_signed(&key).unwrap();
    let good = folder.pair("a", &cert.pem(), &key.serialize_pem());
    let wide = |name: &str, text: &str| {
        let path = folder.0.path().join(name);
        let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let binary = |name: &str, bytes: &[u8]| {
        let path = folder.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let wide_cert = wide("wide.pem", &cert.pem());
    let wide_key = wide("wide.key", &key.serialize_pem());
    let der_cert = binary("cert.der", cert.der());
    let der_key = binary("key.der", key.serialized_der());
    // The begin of what `openssl pkcs12 -export` writes.
    let both = binary("both.p12", &[0x30, 0x82, 4, 0xf9, 2, 1, 3, 0x30, 0x82, 4, 0xaf, 6, 9]);
    for (cert, key, what, help) in [
        (&wide_cert, &good.key, "the file is UTF-16, and has to be UTF-8", "iconv -f UTF-16"),
        (&good.cert, &wide_key, "the file is UTF-16, and has to be UTF-8", "iconv -f UTF-16"),
        (&der_cert, &good.key, "it holds no certificate in PEM", "openssl x509 -inform DER"),
        (&good.cert, &der_key, "it holds no private key in PEM", "openssl pkey -inform DER"),
        (&both, &good.key, "it holds no certificate in PEM", "openssl pkcs12 -nodes"),
        (&good.cert, &both, "it holds no private key in PEM", "openssl pkcs12 -nodes"),
    ] {
        let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
        let fault = LoadedCertificate::read(&files).unwrap_err().to_string();
        assert!(fault.contains(what) && fault.contains(help), "{fault}");
    }
    assert!(read_authorities(&wide_cert).unwrap_err().help.contains("iconv -f UTF-16"));
    // A comment in Latin-1 is no fault.
    let commented = [b"# f\xfcr a\n", cert.pem().as_bytes()].concat();
    assert!(read_authorities(&binary("latin1.pem", &commented)).is_ok());
}

/// A folder with certificates.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A certificate for these names that signs itself.
    fn own(&self, name: &str, names: &[&str]) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let cert = params(names).self_signed(&key).unwrap();
        self.pair(name, &cert.pem(), &key.serialize_pem())
    }

    fn pair(&self, name: &str, cert: &str, key: &str) -> CertificateFiles {
        let write = |end: &str, text: &str| self.write(&format!("{name}.{end}"), text);
        CertificateFiles { cert: write("pem", cert), key: write("key", key) }
    }
}

fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn acceptor(certificates: Vec<CertificateFiles>) -> Acceptor {
    let files = AcceptFiles { certificates, ..AcceptFiles::default() };
    Acceptor::read(&files, &Tickets::new().unwrap()).unwrap()
}

fn connector(ca: &Path, name: &str) -> Connector {
    let files = ConnectFiles { ca: Some(ca.to_owned()), ..ConnectFiles::default() };
    Connector::read(&files, name).unwrap().of_thread()
}

/// A server and its client, and what each has been told.
struct Wire {
    server: Session,
    client: Session,
    at_server: Vec<u8>,
    at_client: Vec<u8>,
}

impl Wire {
    fn new(acceptor: &Acceptor, connector: &Connector) -> Self {
        let server = acceptor.session().unwrap();
        let client = connector.session().unwrap();
        Self { server, client, at_server: Vec::new(), at_client: Vec::new() }
    }

    fn both() -> (Self, Folder) {
        let folder = Folder::new();
        let files = folder.own("a", &["a.example"]);
        let connector = connector(&files.cert, "a.example");
        (Self::new(&acceptor(vec![files]), &connector), folder)
    }

    /// Moves bytes in pieces of so many until both sides are silent.
    fn talk(&mut self, piece: usize) -> Result<(), SessionFault> {
        loop {
            self.client.advance(&mut self.at_client, usize::MAX)?;
            let moved = pass(&mut self.client, &mut self.server, &mut self.at_server, piece)?;
            let back = pass(&mut self.server, &mut self.client, &mut self.at_client, piece)?;
            if !moved && !back {
                return Ok(());
            }
        }
    }
}

fn pass(
    from: &mut Session,
    to: &mut Session,
    plain: &mut Vec<u8>,
    piece: usize,
) -> Result<bool, SessionFault> {
    let bytes = std::mem::take(from.outgoing());
    for piece in bytes.chunks(piece) {
        to.incoming().extend_from_slice(piece);
        to.advance(plain, usize::MAX)?;
    }
    Ok(!bytes.is_empty())
}

#[test]
fn bytes_may_come_in_any_pieces() {
    for piece in [1, 2, 3, 5, 64, 1_000, usize::MAX] {
        let (mut wire, _folder) = Wire::both();
        wire.talk(piece).unwrap();
        assert!(!wire.server.is_handshaking() && !wire.client.is_handshaking());
        let long: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        wire.client.encrypt(b"question").unwrap();
        wire.server.encrypt(&long).unwrap();
        wire.talk(piece).unwrap();
        assert_eq!((&*wire.at_server, wire.at_client == long), (&b"question"[..], true));
        wire.client.close().unwrap();
        wire.talk(piece).unwrap();
        assert!(wire.server.peer_has_closed() && !wire.client.peer_has_closed());
        wire.server.encrypt(b"rest").unwrap();
        wire.talk(piece).unwrap();
        assert!(wire.at_client.ends_with(b"rest"), "a side that is told of an end may go on");
    }
}

#[test]
fn nothing_is_encrypted_before_the_end_of_the_handshake() {
    let (mut wire, _folder) = Wire::both();
    assert!(wire.client.encrypt(b"early").is_err() && wire.server.close().is_err());
    wire.talk(usize::MAX).unwrap();
    wire.client.encrypt(b"in time").unwrap();
    wire.talk(usize::MAX).unwrap();
    assert_eq!(wire.at_server, b"in time");
}

#[test]
fn records_are_given_out_as_far_as_there_is_room() {
    let (mut wire, _folder) = Wire::both();
    wire.talk(usize::MAX).unwrap();
    for _ in 0..10 {
        wire.client.encrypt(&[b'x'; 600]).unwrap();
    }
    let bytes = std::mem::take(wire.client.outgoing());
    wire.server.incoming().extend_from_slice(&bytes);
    let mut whole = 0;
    let mut steps = 0;
    while steps == 0 || wire.server.has_more() {
        let mut plain = Vec::new();
        wire.server.advance(&mut plain, 2_000).unwrap();
        assert!(!plain.is_empty() && (plain.len() <= 2_000 || steps == 2), "{}", plain.len());
        if steps == 1 {
            wire.server.encrypt(b"between").unwrap();
        }
        whole += plain.len();
        steps += 1;
    }
    // What came to light while something was written comes out together.
    assert_eq!((whole, wire.server.has_part()), (6_000, false));
    wire.talk(7).unwrap();
    assert_eq!(wire.at_client, b"between");
}

#[test]
fn a_client_that_comes_back_is_known_by_its_ticket() {
    let folder = Folder::new();
    let files = folder.own("a", &["a.example"]);
    let connector = connector(&files.cert, "a.example");
    let accept = AcceptFiles { certificates: vec![files], ..AcceptFiles::default() };
    let tickets = Tickets::new().unwrap();
    for is_resumed in [false, true, true] {
        // As after a reload: the certificates are read anew, the tickets stay.
        let acceptor = Acceptor::read(&accept, &tickets).unwrap();
        let mut wire = Wire::new(&acceptor, &connector);
        wire.talk(usize::MAX).unwrap();
        assert_eq!((wire.server.is_resumed(), wire.client.is_resumed()), (is_resumed, is_resumed));
    }
}

#[test]
fn bytes_that_were_changed_are_never_taken_for_plaintext() {
    let (mut first, folder) = Wire::both();
    first.talk(usize::MAX).unwrap();
    let files = CertificateFiles {
        cert: folder.0.path().join("a.pem"),
        key: folder.0.path().join("a.key"),
    };
    let acceptor = acceptor(vec![files.clone()]);
    let connector = connector(&files.cert, "a.example");
    let hello_bytes = {
        let mut wire = Wire::new(&acceptor, &connector);
        wire.client.advance(&mut wire.at_client, usize::MAX).unwrap();
        wire.client.outgoing().len()
    };
    for at in (0..hello_bytes).step_by(3) {
        let mut wire = Wire::new(&acceptor, &connector);
        wire.client.advance(&mut wire.at_client, usize::MAX).unwrap();
        wire.client.outgoing()[at] ^= 0x15;
        if wire.talk(usize::MAX).is_err() {
            assert!(wire.at_server.is_empty() && wire.at_client.is_empty());
        }
    }
    // Type and version of a record say nothing by themselves.
    for at in 3..40 {
        let mut wire = Wire::new(&acceptor, &connector);
        wire.talk(usize::MAX).unwrap();
        wire.client.encrypt(b"question").unwrap();
        let last = wire.client.outgoing().len() - 1;
        wire.client.outgoing()[at.min(last)] ^= 1;
        let talked = wire.talk(usize::MAX);
        assert!(wire.at_server.is_empty(), "byte {at}");
        if let Err(fault) = talked {
            let again = wire.server.advance(&mut wire.at_server, usize::MAX);
            assert_eq!(again, Err(fault), "a fault stays");
            assert!(!wire.server.outgoing().is_empty(), "an alert says so");
        }
    }
}

#[test]
fn garbage_ends_a_session_with_an_alert() {
    let (mut wire, _folder) = Wire::both();
    wire.server.incoming().extend_from_slice(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let fault = wire.server.advance(&mut wire.at_server, usize::MAX).unwrap_err();
    assert_eq!(fault.in_handshake(), HandshakeFault::Malformed);
    // A message without an end: records of a handshake message that is never whole.
    let (mut wire, _folder) = Wire::both();
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    let mut fed = 0;
    let fault = loop {
        wire.server.incoming().extend_from_slice(&record);
        record[5..9].fill(0);
        fed += record.len();
        match wire.server.advance(&mut wire.at_server, usize::MAX) {
            Ok(()) => assert!(fed < 200_000, "no limit"),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.in_handshake(), HandshakeFault::Malformed);
}

/// The alert stands behind what the server owes to the handshake, in TLS 1.3 under its keys.
#[test]
fn a_client_of_another_protocol_is_told_so() {
    let folder = Folder::new();
    let files = folder.own("a", &["a.example"]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let authorities = read_authorities(&files.cert).unwrap();
        let mut config = builder.with_root_certificates(authorities).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("a.example").unwrap();
        let client = UnbufferedClientConnection::new(Arc::new(config), name).unwrap();
        let mut client = Session::client(client);
        let mut server = acceptor(vec![files.clone()]).session().unwrap();
        client.shake().unwrap();
        server.incoming().append(client.outgoing());
        let fault = server.shake().unwrap_err();
        assert_eq!(fault.in_handshake(), HandshakeFault::Incompatible);
        client.incoming().append(server.outgoing());
        let told = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        assert_eq!(client.shake(), Err(told.into()), "{version:?}");
    }
}

#[test]
fn the_name_that_the_client_asks_for_picks_the_certificate() {
    let folder = Folder::new();
    let all = [
        folder.own("a", &["a.example"]),
        folder.own("b", &["b.example", "*.b.example"]),
        folder.own("c", &["c.b.example"]),
    ];
    let acceptor = acceptor(all.to_vec());
    for (name, shown) in [
        ("a.example", 0),
        ("b.example", 1),
        ("x.b.example", 1),
        ("X.B.example", 1),
        ("c.b.example", 2),
    ] {
        // Each client believes one certificate only.
        for (position, files) in all.iter().enumerate() {
            let mut wire = Wire::new(&acceptor, &connector(&files.cert, name));
            assert_eq!(wire.talk(usize::MAX).is_ok(), position == shown, "{name} {position}");
        }
    }
    let mut unknown = Wire::new(&acceptor, &connector(&all[0].cert, "other.example"));
    let fault = unknown.talk(usize::MAX).unwrap_err();
    let wrong_name = HandshakeFault::Certificate(CertificateRefusal::WrongName);
    assert_eq!(fault.in_handshake(), wrong_name, "it is shown the first");
}

/// An authority, a certificate that it has signed, and one that it has not.
struct Clients {
    ca: PathBuf,
    own: CertificateFiles,
    other: CertificateFiles,
}

fn clients(folder: &Folder) -> Clients {
    let mut authority = params(&[]);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let signed = params(&["client"]).signed_by(&key, &issuer).unwrap();
    Clients {
        ca: folder.write("ca.pem", &issuer.pem()),
        own: folder.pair("client", &signed.pem(), &key.serialize_pem()),
        other: folder.own("other", &["client"]),
    }
}

/// Authorities that sign each other, the first by itself, and what the last one has signed for a
/// client.
fn chain(folder: &Folder, length: usize) -> (PathBuf, CertificateFiles) {
    let authority = |name: &str| {
        let mut authority = params(&[]);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, name);
        authority
    };
    let key = || KeyPair::generate().unwrap();
    let root = CertifiedIssuer::self_signed(authority("root"), key()).unwrap();
    let ca = folder.write("root.pem", &root.pem());
    let mut between = String::new();
    let mut last = root;
    for number in 0..length {
        let next = authority(&format!("between {number}"));
        last = CertifiedIssuer::signed_by(next, key(), &last).unwrap();
        between.insert_str(0, &last.pem());
    }
    let own = key();
    let signed = params(&["client"]).signed_by(&own, &last).unwrap();
    let pem = signed.pem() + &between;
    (ca, folder.pair(&format!("chain-{length}"), &pem, &own.serialize_pem()))
}

#[test]
fn chains_of_clients_are_short() {
    let folder = Folder::new();
    let server = folder.own("a", &["a.example"]);
    for (length, fault) in [
        (0, None),
        (2, None),
        (3, Some(HandshakeFault::Certificate(CertificateRefusal::UnknownIssuer))),
    ] {
        let (ca, shown) = chain(&folder, length);
        let accept = AcceptFiles {
            certificates: vec![server.clone()],
            client_ca: Some(ca),
            needs_client: true,
        };
        let files = ConnectFiles { ca: Some(server.cert.clone()), certificate: Some(shown) };
        let connector = Connector::read(&files, "a.example").unwrap().of_thread();
        let acceptor = Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap();
        let ended = Wire::new(&acceptor, &connector).talk(usize::MAX);
        assert_eq!(ended.err().map(|fault| fault.in_handshake()), fault, "{length}");
    }
}

#[test]
fn a_ticket_is_no_certificate() {
    let folder = Folder::new();
    let clients = clients(&folder);
    let server = folder.own("a", &["a.example"]);
    let open = AcceptFiles { certificates: vec![server.clone()], ..AcceptFiles::default() };
    let closed =
        AcceptFiles { client_ca: Some(clients.ca.clone()), needs_client: true, ..open.clone() };
    let tickets = Tickets::new().unwrap();
    let stranger = connector(&server.cert, "a.example");
    let files = ConnectFiles { ca: Some(server.cert), certificate: Some(clients.own) };
    let known = Connector::read(&files, "a.example").unwrap().of_thread();
    let talk = |accept: &AcceptFiles, connector: &Connector| {
        let mut wire = Wire::new(&Acceptor::read(accept, &tickets).unwrap(), connector);
        wire.talk(usize::MAX).map(|()| wire.server.is_resumed())
    };
    assert_eq!([talk(&open, &stranger), talk(&open, &stranger)], [Ok(false), Ok(true)]);
    assert!(talk(&closed, &stranger).is_err(), "a ticket from before certificates were asked for");
    assert_eq!([talk(&closed, &known), talk(&closed, &known)], [Ok(false), Ok(false)]);
}

#[test]
fn clients_are_asked_for_certificates_as_configured() {
    let folder = Folder::new();
    let clients = clients(&folder);
    let server = folder.own("a", &["a.example"]);
    let refused = |refusal| Some(HandshakeFault::Certificate(refusal));
    for (needs_client, shown, fault) in [
        (true, Some(&clients.own), None),
        (true, Some(&clients.other), refused(CertificateRefusal::UnknownIssuer)),
        (true, None, refused(CertificateRefusal::Invalid)),
        (false, Some(&clients.own), None),
        (false, Some(&clients.other), refused(CertificateRefusal::UnknownIssuer)),
        (false, None, None),
    ] {
        let accept = AcceptFiles {
            certificates: vec![server.clone()],
            client_ca: Some(clients.ca.clone()),
            needs_client,
        };
        let acceptor = Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap();
        let connect = ConnectFiles { ca: Some(server.cert.clone()), certificate: shown.cloned() };
        let connector = Connector::read(&connect, "a.example").unwrap();
        let talked = Wire::new(&acceptor, &connector).talk(usize::MAX);
        assert_eq!(talked.err().map(|fault| fault.in_handshake()), fault, "{shown:?}");
    }
}

#[test]
fn files_at_fault_are_named() {
    let folder = Folder::new();
    let a = folder.own("a", &["a.example", "*.A.example"]);
    let b = folder.own("b", &["b.example"]);
    let read = |cert: &Path, key: &Path| {
        let files = CertificateFiles { cert: cert.to_owned(), key: key.to_owned() };
        LoadedCertificate::read(&files)
    };
    let good = read(&a.cert, &a.key).unwrap();
    assert_eq!(good.names, ["a.example", "*.a.example"]);
    assert!(good.expires_at.unwrap().as_secs() > 4_000_000_000 / 2);
    let missing = folder.0.path().join("missing");
    let empty = folder.write("empty", "");
    let long = folder.write("long", &"x".repeat(1024 * 1024 + 1));
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
    let encrypted = folder.write("encrypted", encrypted);
    let older = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
        DEK-Info: AES-128-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----";
    let older = folder.write("older", older);
    let cut = folder.write("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    for (cert, key, in_cert, what) in [
        (&a.cert, &b.key, false, "is not the key of"),
        (&missing, &a.key, true, "No such file"),
        (&a.cert, &missing, false, "No such file"),
        (&empty, &a.key, true, "no certificate"),
        (&a.key, &a.key, true, "no certificate"),
        (&a.cert, &empty, false, "no private key"),
        (&a.cert, &encrypted, false, "is encrypted"),
        (&a.cert, &older, false, "is encrypted"),
        (&cut, &a.key, true, "missing: -----END CERTIFICATE-----"),
        (&long, &a.key, true, "longer than"),
    ] {
        let fault = read(cert, key).unwrap_err();
        let (is_cert, text) = match &fault {
            CertificateFault::Cert(fault) => (true, &fault.what),
            CertificateFault::Key(fault) => (false, &fault.what),
        };
        assert!(is_cert == in_cert && text.contains(what), "{fault:?}");
    }
    let accept = AcceptFiles {
        certificates: vec![a.clone(), CertificateFiles { cert: empty.clone(), key: empty }],
        ..AcceptFiles::default()
    };
    let fault = Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap_err();
    assert!(matches!(fault, FilesFault::Certificate { position: 1, .. }), "{fault:?}");
    let accept = AcceptFiles { certificates: vec![a], client_ca: Some(missing), ..accept };
    let fault = Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap_err();
    assert!(matches!(fault, FilesFault::ClientCa(_)), "{fault:?}");
}

/// Issue 39: `UnsupportedCertVersion` was all that an operator read. OpenSSL 3.0 makes such
/// certificates by `openssl x509 -req` without extensions.
#[test]
fn a_certificate_of_version_1_is_named_with_a_command() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tls"));
    let cert = data.join("version1.pem");
    let key = data.join("version1.key");
    let fault = LoadedCertificate::read(&CertificateFiles { cert, key }).unwrap_err().to_string();
    assert!(fault.contains("X.509 version 1, and TLS needs version 3; make it"), "{fault}");
    assert!(fault.contains("openssl x509 -req -extfile"), "{fault}");
}

/// Whoever has shown nothing yet makes the server keep no more than a record of it.
#[test]
fn an_endless_first_message_is_cut() {
    let folder = Folder::new();
    let files = folder.own("a", &["a.example"]);
    let ca = files.cert.clone();
    let kept = |asks_client: bool| {
        let files = AcceptFiles {
            certificates: vec![files.clone()],
            client_ca: asks_client.then(|| ca.clone()),
            ..AcceptFiles::default()
        };
        let acceptor = Acceptor::read(&files, &Tickets::new().unwrap()).unwrap();
        let mut server = acceptor.session().unwrap();
        // A first message of 60,000 bytes, in records of 1,000.
        let mut message = vec![1, 0, 0xea, 0x60];
        message.resize(60_000, 0);
        let mut most = 0;
        for part in message.chunks(1_000) {
            server.incoming().extend_from_slice(&[22, 3, 1, 3, 0xe8]);
            server.incoming().extend_from_slice(part);
            if server.shake().is_err() {
                break;
            }
            most = most.max(server.incoming().len());
        }
        most
    };
    let alone = kept(false);
    let asking = kept(true);
    assert!((15_000..=TLS_HELLO_BYTES_MAX).contains(&alone), "{alone}");
    assert!(asking > 50_000, "{asking}");
}

/// A chain in another order, a certificate of another chain and a short key had no name, or no
/// finding.
#[test]
fn a_wrong_chain_and_a_short_key_are_named() {
    let folder = Folder::new();
    let issuer = KeyPair::generate().unwrap();
    let mut of_issuer = params(&[]);
    of_issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    of_issuer.distinguished_name.push(DnType::CommonName, "Our CA");
    let issuer = CertifiedIssuer::self_signed(of_issuer, issuer).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = params(&["a.example"]).signed_by(&key, &issuer).unwrap().pem();
    let mut of_foreign = params(&[]);
    of_foreign.distinguished_name.push(DnType::CommonName, "Foreign CA");
    let foreign = of_foreign.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let read = |name: &str, chain: &[&str]| {
        LoadedCertificate::read(&folder.pair(name, &chain.concat(), &key.serialize_pem()))
    };
    let issuer = issuer.pem();
    assert_eq!(read("good", &[&leaf, &issuer]).unwrap().stray, None);
    assert_eq!(read("good", &[&leaf, &issuer]).unwrap().missing_issuer, None);
    let alone = read("alone", &[&leaf]).unwrap();
    assert_eq!(alone.stray, None);
    let missing = alone.missing_issuer.unwrap();
    assert_eq!((&*missing.subject, &*missing.issuer), ("\"a.example\"", "\"Our CA\""));
    assert!(!missing.is_intermediate, "a root may issue the certificate");
    let stray = read("stray", &[&leaf, &foreign]).unwrap().stray;
    assert_eq!(stray.as_deref(), Some("\"Foreign CA\""));
    let Err(CertificateFault::Cert(fault)) = read("turned", &[&issuer, &leaf]) else {
        panic!("taken")
    };
    assert!(fault.what.contains("the first certificate, \"Our CA\", is not of "), "{fault}");
    assert!(fault.help.contains("put the certificate of the key first"), "{fault}");

    let path = |name: &str| folder.0.path().join(name);
    folder.write("leaf", &leaf);
    folder.write("both", &[&*leaf, &*issuer].concat());
    let leaf_in = |name: &str| leaf_for_authority(&path(name)).unwrap();
    assert_eq!(leaf_in("leaf").as_deref(), Some("\"a.example\""));
    assert_eq!((leaf_in("both"), leaf_in("stray.pem")), (None, None), "an authority is in it");

    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tls"));
    let read = |name: &str| {
        let file = |end: &str| data.join(format!("{name}.{end}"));
        LoadedCertificate::read(&CertificateFiles { cert: file("pem"), key: file("key") })
    };
    let short = read("rsa1024").unwrap_err().to_string();
    assert!(short.contains("RSA with 1024 bits, and TLS needs 2048; make another key"), "{short}");
    assert_eq!(["rsa2048", "rsa4096"].map(|name| read(name).unwrap().is_slow), [false, true]);
}

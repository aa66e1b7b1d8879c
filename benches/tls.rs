//! What a handshake costs the server, by kind of key, and what a record costs either side.

#![allow(missing_docs, reason = "criterion writes the functions")]
#![allow(clippy::unwrap_used, reason = "a bench that fails must stop")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forebay_tls::{
    AcceptFiles, Acceptor, CertificateFiles, ConnectFiles, Connector, Session, Tickets,
};
use std::hint::black_box;
use std::path::PathBuf;

fn files(name: &str) -> CertificateFiles {
    let path = |end: &str| -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "../../tests/data/tls", &format!("{name}.{end}")]
            .iter()
            .collect()
    };
    CertificateFiles { cert: path("pem"), key: path("key") }
}

fn sides(name: &str) -> (Acceptor, Connector) {
    let files = files(name);
    let connect = ConnectFiles { ca: Some(files.cert.clone()), ..ConnectFiles::default() };
    let accept = AcceptFiles { certificates: vec![files], ..AcceptFiles::default() };
    let acceptor = Acceptor::read(&accept, &Tickets::new().unwrap()).unwrap();
    (acceptor, Connector::read(&connect, "router.example").unwrap())
}

/// Hands over what one side has to say; true if it was anything.
fn pass(from: &mut Session, to: &mut Session) -> bool {
    let bytes = std::mem::take(from.outgoing());
    to.incoming().extend_from_slice(&bytes);
    to.shake().unwrap();
    !bytes.is_empty()
}

fn shaken(acceptor: &Acceptor, connector: &Connector) -> (Session, Session) {
    let mut server = acceptor.session().unwrap();
    let mut client = connector.session().unwrap();
    client.shake().unwrap();
    while pass(&mut client, &mut server) | pass(&mut server, &mut client) {}
    (server, client)
}

/// A server that has received a first message, and its client.
fn greeted(acceptor: &Acceptor, connector: &Connector) -> (Session, Session) {
    let mut server = acceptor.session().unwrap();
    let mut client = connector.session().unwrap();
    client.shake().unwrap();
    let hello = std::mem::take(client.outgoing());
    server.incoming().extend_from_slice(&hello);
    (server, client)
}

fn handshakes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handshake, longest step of the server");
    for name in ["router", "rsa2048", "rsa4096"] {
        let (acceptor, connector) = sides(name);
        group.bench_function(name, |bench| {
            bench.iter_batched(
                || greeted(&acceptor, &connector),
                |(mut server, client)| {
                    server.shake().unwrap();
                    (server, client)
                },
                BatchSize::SmallInput,
            );
        });
    }
    let (acceptor, connector) = sides("router");
    let connector = connector.of_thread();
    drop(shaken(&acceptor, &connector));
    group.bench_function("resumed", |bench| {
        bench.iter_batched(
            || {
                drop(shaken(&acceptor, &connector));
                greeted(&acceptor, &connector)
            },
            |(mut server, client)| {
                server.shake().unwrap();
                (server, client)
            },
            BatchSize::SmallInput,
        );
    });
}

fn records(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record");
    let (acceptor, connector) = sides("router");
    let (mut server, mut client) = shaken(&acceptor, &connector);
    for bytes in [300, 1_024, 8 * 1_024, 64 * 1_024] {
        let plain = vec![b'x'; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("encrypt and decrypt {bytes}"), |bench| {
            let mut out = Vec::new();
            bench.iter(|| {
                client.encrypt(black_box(&plain)).unwrap();
                server.incoming().append(client.outgoing());
                out.clear();
                server.advance(&mut out, usize::MAX).unwrap();
                out.len()
            });
        });
    }
}

criterion_group!(benches, handshakes, records);
criterion_main!(benches);

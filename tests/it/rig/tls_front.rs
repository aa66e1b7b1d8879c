//! TLS in front of a worker that speaks plain text: its name is checked, its bytes pass.

use super::certificates::{Pair, chain, private};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Listens until the process ends.
pub(crate) struct TlsFront {
    pub(crate) address: SocketAddr,
    cuts: watch::Sender<usize>,
    accepted: Arc<AtomicUsize>,
}

/// How a front speaks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Manners<'a> {
    pub(crate) versions: Option<&'a [&'static SupportedProtocolVersion]>,
    /// Authorities of the clients that it serves.
    pub(crate) clients: Option<&'a Path>,
}

impl TlsFront {
    pub(crate) fn of(worker: SocketAddr, shown: &Pair) -> Self {
        Self::with(worker, shown, Manners::default())
    }

    pub(crate) fn with(worker: SocketAddr, shown: &Pair, manners: Manners<'_>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(manners.versions.unwrap_or(rustls::ALL_VERSIONS))
            .unwrap();
        let builder = match manners.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add(chain(path).remove(0)).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = builder.with_single_cert(chain(&shown.cert), private(&shown.key)).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (cuts, cut) = watch::channel(0);
        let accepted = Arc::new(AtomicUsize::new(0));
        let told = channel();
        let count = Arc::clone(&accepted);
        let (tell, address) = told;
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(pass(acceptor.clone(), socket, worker, cut.clone()));
                }
            });
        });
        Self { address: address.recv().unwrap(), cuts, accepted }
    }

    /// `https://` and this name, which need not be the certificate's.
    pub(crate) fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.address.port())
    }

    /// Ends all connections without a word.
    pub(crate) fn cut_all(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn accepted_count(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn pass(
    acceptor: TlsAcceptor,
    socket: TcpStream,
    worker: SocketAddr,
    mut cut: watch::Receiver<usize>,
) {
    cut.mark_unchanged();
    let _ = socket.set_nodelay(true);
    let Ok(mut tls) = acceptor.accept(socket).await else { return };
    let Ok(mut plain) = TcpStream::connect(worker).await else { return };
    let _ = plain.set_nodelay(true);
    tokio::select! {
        _ = copy_bidirectional(&mut tls, &mut plain) => {}
        _ = cut.changed() => {}
    }
}

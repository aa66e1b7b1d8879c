//! Requests to stop: from the process (a watch) and from the operator (SIGTERM, SIGINT).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Who may ask for the end.
pub(super) struct Stop {
    stopped: watch::Receiver<bool>,
    signals: Option<Signals>,
}

impl Stop {
    /// Listens; to signals only where asked to.
    pub(super) fn listen(stopped: watch::Receiver<bool>, signals: bool) -> std::io::Result<Self> {
        let signals = if signals { Some(Signals::install()?) } else { None };
        Ok(Self { stopped, signals })
    }

    /// Resolves once per request to stop. Cancel-safe.
    pub(super) async fn asked(&mut self) {
        let Self { stopped, signals } = self;
        let told = async {
            loop {
                if stopped.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if *stopped.borrow() {
                    return;
                }
            }
        };
        match signals {
            None => told.await,
            Some(signals) => tokio::select! {
                () = told => {}
                _ = signals.terminate.recv() => {}
                _ = signals.interrupt.recv() => {}
            },
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

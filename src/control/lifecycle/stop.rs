//! Orders from outside: to stop, from the process (a watch) and from the operator (SIGTERM,
//! SIGINT); to read the configuration again (SIGHUP).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// An order from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOrder {
    /// Drain; the second order cuts.
    Stop,
    /// Read the configuration again.
    Reload,
}

/// Sources of stop and reload orders.
pub(crate) struct StopSignal {
    stopped: watch::Receiver<bool>,
    signals: Option<Signals>,
}

impl StopSignal {
    /// Listens; to signals only where asked to.
    pub(crate) fn listen(stopped: watch::Receiver<bool>, signals: bool) -> std::io::Result<Self> {
        let signals = if signals { Some(Signals::install()?) } else { None };
        Ok(Self { stopped, signals })
    }

    /// Resolves once per order. Cancel-safe.
    pub(crate) async fn next_order(&mut self) -> StopOrder {
        let Self { stopped, signals } = self;
        let stopped = async {
            loop {
                if stopped.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if *stopped.borrow() {
                    return StopOrder::Stop;
                }
            }
        };
        match signals {
            None => stopped.await,
            Some(signals) => tokio::select! {
                order = stopped => order,
                _ = signals.terminate.recv() => StopOrder::Stop,
                _ = signals.interrupt.recv() => StopOrder::Stop,
                _ = signals.hangup.recv() => StopOrder::Reload,
            },
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

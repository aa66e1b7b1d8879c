//! Orders to end requests, told to all that run. SGLang's `/abort_request` gives them.

use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Tells every running request which ids are to end. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Aborts {
    orders: broadcast::Sender<Arc<str>>,
}

/// Hears of aborts from its making on.
#[derive(Debug)]
pub(super) struct AbortListener {
    orders: broadcast::Receiver<Arc<str>>,
}

impl Aborts {
    pub(super) fn new() -> Self {
        Self { orders: broadcast::Sender::new(ORDERS_MAX) }
    }

    pub(super) fn listen(&self) -> AbortListener {
        AbortListener { orders: self.orders.subscribe() }
    }

    /// Every request whose id begins so ends.
    pub(super) fn abort(&self, prefix: &str) {
        let _nobody_runs = self.orders.send(prefix.into());
    }
}

impl AbortListener {
    /// Returns when the request of that id is to end.
    pub(super) async fn aborted(&mut self, rid: &str) {
        loop {
            match self.orders.recv().await {
                Ok(prefix) if rid.starts_with(&*prefix) => return,
                // More than `ORDERS_MAX` orders came at once. This request misses the oldest.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Orders that a request may be behind.
const ORDERS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_matched_by_their_beginning() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let aborts = Aborts::new();
            let mut listening = aborts.listen();
            aborts.abort("fb-2");
            aborts.abort("fb-1");
            listening.aborted("fb-11").await;
        });
    }
}

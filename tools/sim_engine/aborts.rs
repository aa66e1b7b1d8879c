//! Aborts of requests, broadcast to all running requests. SGLang's `/abort_request` sends them.

use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Sender of aborts to every running request. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Aborts {
    orders: broadcast::Sender<Arc<str>>,
}

/// Receiver of all aborts since its creation.
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

    /// Aborts every request with that prefix of its id.
    pub(super) fn abort(&self, prefix: &str) {
        let _nobody_runs = self.orders.send(prefix.into());
    }
}

impl AbortListener {
    /// Returns once the request with that id is aborted.
    pub(super) async fn aborted(&mut self, rid: &str) {
        loop {
            match self.orders.recv().await {
                Ok(prefix) if rid.starts_with(&*prefix) => return,
                // More than `ORDERS_MAX` aborts came at once. This request misses the oldest.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Most aborts that a request has not read yet.
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

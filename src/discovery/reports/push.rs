//! Subscribes to the load that a rank of an SGLang server publishes. Messages are states: gaps do
//! not matter; silence does, and shows as an aging report.

use forebay_load::{AnnouncedLoad, LoadPlan, LoadReporter, ReadFault, Readings, read_load_stat};
use forebay_zmq::{Connection, SocketError, ZmqSource};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// Pause before the first reconnection; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Messages that are read before the thread's other tasks run.
const MESSAGES_PER_TURN: u32 = 32;

/// Subscription to the reports of a rank.
pub(crate) struct Push {
    pub(crate) plan: Rc<LoadPlan>,
    pub(crate) dp_rank: u32,
    pub(crate) publisher: AnnouncedLoad,
    pub(crate) reporter: Rc<LoadReporter>,
}

impl Push {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) -> Infallible {
        let mut pause = BACKOFF_MIN;
        let mut silent = false;
        loop {
            let error = match self.subscribe().await {
                Ok(connection) => {
                    pause = BACKOFF_MIN;
                    silent = false;
                    self.listen(connection).await
                }
                Err(error) => error,
            };
            self.reporter.fault(self.plan.worker, ReadFault::Unreachable);
            let worker = &*self.plan.name;
            let dp_rank = self.dp_rank;
            if std::mem::replace(&mut silent, true) {
                debug!(worker, dp_rank, %error, "still no load reports");
            } else {
                let endpoint = &self.publisher.endpoint;
                warn!(worker, dp_rank, %endpoint, %error, "no load reports until it is reached; trying on");
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    async fn subscribe(&self) -> Result<Connection, SocketError> {
        let source = ZmqSource::open(&self.publisher.endpoint).await?;
        let connection = source.subscribe(&self.publisher.topic).await?;
        let endpoint = &self.publisher.endpoint;
        let worker = &*self.plan.name;
        let dp_rank = self.dp_rank;
        info!(worker, dp_rank, %endpoint, "following load reports");
        Ok(connection)
    }

    async fn listen(&self, mut connection: Connection) -> SocketError {
        let mut readings = Readings::default();
        let mut taken_count = 0_u32;
        loop {
            taken_count = taken_count.wrapping_add(1);
            if taken_count.is_multiple_of(MESSAGES_PER_TURN) {
                yield_now().await;
            }
            let (parts, end) = match connection.message().await {
                Ok(message) => message,
                Err(error) => return error,
            };
            readings.begin_at(self.plan.first, self.plan.ranks.len());
            match parts.as_slice() {
                [_, _, payload] => {
                    read_load_stat(connection.part(payload), self.dp_rank, &mut readings);
                }
                _ => readings.fault(ReadFault::Malformed),
            }
            connection.done(end);
            // The engine made its figures before they arrived: they may include requests that this
            // router counted a moment ago.
            self.reporter.lay(&self.plan, &readings, &self.reporter.own_before(&self.plan));
        }
    }
}

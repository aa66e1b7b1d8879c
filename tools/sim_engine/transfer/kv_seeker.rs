//! The decode side: requests KV from a prefill engine until the KV is there, the prefill failed, or
//! a timeout.

use super::offers::HandedKv;
use super::question::{ASK_TIME_MAX, TAKE_PATH, TransferQuestion, WireAnswer};
use forebay_base::Clock;
use std::time::Duration;

/// Address of the prefill engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferPeer {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The KV that a decode requests.
#[derive(Clone, Debug)]
pub(crate) struct TransferRequest {
    pub(crate) peer: TransferPeer,
    pub(crate) key: String,
    /// Id of the engine, if the request contains it.
    pub(crate) engine_id: Option<String>,
    pub(crate) patience: Patience,
}

/// Timeouts of a KV request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Timeout for the KV, from the first question.
    pub(crate) total: Duration,
    /// Timeout for a prefill engine that was never reached.
    pub(crate) unreached: Duration,
    /// Timeout for a prefill engine that was reached and does not answer any more.
    pub(crate) lost: Duration,
}

/// Why there is no KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SeekError {
    /// The prefill engine never answered.
    Unreached,
    /// The prefill engine stopped answering.
    Lost,
    /// The prefill engine answered, but did not have the KV in time.
    TimedOut,
    /// The prefill engine reported that the prefill failed.
    Prefill(String),
}

/// Client of prefill engines. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct KvSeeker {
    client: reqwest::Client,
    clock: Clock,
}

impl KvSeeker {
    pub(crate) fn new(clock: Clock) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_TIME_MAX);
        Ok(Self { client: client.build()?, clock })
    }

    /// Waits for the KV and takes it.
    pub(crate) async fn take(&self, wanted: &TransferRequest) -> Result<HandedKv, SeekError> {
        let asking = self.ask_until_answered(wanted);
        tokio::time::timeout(wanted.patience.total, asking)
            .await
            .unwrap_or(Err(SeekError::TimedOut))
    }

    async fn ask_until_answered(&self, wanted: &TransferRequest) -> Result<HandedKv, SeekError> {
        let patience = wanted.patience;
        let mut reached = false;
        let mut silent_since = self.clock.now();
        loop {
            match self.ask(wanted).await {
                Ok(WireAnswer::Kv(kv)) => return Ok(kv),
                Ok(WireAnswer::Failed(why)) => return Err(SeekError::Prefill(why)),
                Ok(WireAnswer::NotYet) => {
                    reached = true;
                    silent_since = self.clock.now();
                }
                // The engine was reachable: an open connection broke.
                Err(error) if !error.is_connect() && !error.is_status() && !error.is_timeout() => {
                    reached = true;
                    silent_since = self.clock.now();
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(_unreachable) => {
                    let silent_ns = self.clock.now().0.saturating_sub(silent_since.0);
                    let silent = Duration::from_nanos(silent_ns);
                    if reached && silent >= patience.lost {
                        return Err(SeekError::Lost);
                    }
                    if !reached && silent >= patience.unreached {
                        return Err(SeekError::Unreached);
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn ask(&self, wanted: &TransferRequest) -> Result<WireAnswer, reqwest::Error> {
        let TransferPeer { host, port } = &wanted.peer;
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.clone()
        };
        let wait_ms = u64::try_from(ASK_TIME_MAX.as_millis()).unwrap_or(u64::MAX);
        let key = wanted.key.clone();
        let engine_id = wanted.engine_id.clone();
        let question = TransferQuestion { key, wait_ms, engine_id };
        let asked = self.client.post(format!("http://{host}:{port}{TAKE_PATH}"));
        let asked = asked.timeout(ASK_TIME_MAX * 2).json(&question).send().await?;
        asked.error_for_status()?.json().await
    }
}

const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Interval between two questions to an engine that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

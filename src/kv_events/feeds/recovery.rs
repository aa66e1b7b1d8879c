//! Requests missed batches from the engine's replay socket: after connecting, in a gap, and during
//! silence, when a lost last batch or a dead connection would otherwise go unnoticed.
//!
//! Every request starts at a batch that was applied, at the last or before, not behind it. Only if
//! the answer begins with the same bytes do its batches continue the stream: a restarted engine
//! that has counted past that number cannot pass for the old process. An answer that is complete
//! without the batch that the live stream has reached is from another process too. After a hole in
//! an answer, the feed sends a request from before the hole again, as long as answers bring new
//! batches.
//! Blocks of an incomplete answer are out of date, so a replay that fails early leaves none.
//! Limits: time per request and in total, a single request at a time, growing pauses after
//! failures.

use super::feed::Feed;
use super::port::KvPort;
use super::replays::ReplayCause;
use crate::counters::{ReplayResult, ResetReason};
use crate::ranks::rank::KvMessage;
use crate::ranks::sequence::{BatchArrival, Mark};
use crate::status::FeedState;
use forebay_zmq::{SocketError, ZmqEndpoint, ZmqSource, ZmtpError};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

/// Longest recovery of a rank without blocks.
const HISTORY_TIME_MAX: Duration = Duration::from_secs(60);
/// Requests in a row without a new batch, after which the missing batches count as lost.
const FRUITLESS_MAX: u32 = 3;
/// Sequence number of the message that ends a replay.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayEnd {
    /// The answer is complete.
    Reached,
    /// Batches are missing in the answer, or it broke off.
    Hole,
    /// Another process than the publisher answered.
    Foreign,
}

/// Result of a recovery.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    batches: u64,
    /// The engine did not send all missing batches.
    incomplete: bool,
    /// The engine cannot fill the holes any more.
    past_holes: bool,
}

impl<P: KvPort> Feed<P> {
    /// Requests missed batches and applies them. Returns the number of batches.
    pub(crate) async fn recover(&mut self, cause: ReplayCause) -> u64 {
        let Some(endpoint) = self.replay.clone() else { return 0 };
        // Without a batch of the live stream, nothing shows which engine answers.
        let is_unprovable = self.replays.is_foreign && self.state.borrow().last_number().is_none();
        if Instant::now() < self.replays.not_before || is_unprovable {
            return 0;
        }
        self.status.enter(FeedState::Replaying);
        let before = (self.state.borrow().last_number(), self.status.resets());
        self.state.borrow_mut().expect_repeats();
        let recovery_max = self.timers.recovery_max;
        let time_max = if cause == ReplayCause::Joined { HISTORY_TIME_MAX } else { recovery_max };
        let reached = match cause {
            ReplayCause::Behind(mark) => Some(mark),
            ReplayCause::Joined | ReplayCause::Quiet => None,
        };
        let outcome = timeout(time_max, self.replay_all(&endpoint, reached)).await;
        let outcome = outcome.unwrap_or(Err(SocketError::TimedOut));
        let recovered = match outcome {
            Ok(recovered) => recovered,
            Err(error) => {
                self.give_up(&endpoint, &error, before).await;
                return 0;
            }
        };
        self.replays.worked();
        self.state.borrow_mut().replayed();
        let mut recovered = recovered;
        if let Some(Mark { number, .. }) = reached {
            let is_reached = |last| number.saturating_sub(last) <= 1;
            recovered.incomplete |= !self.state.borrow().last_number().is_some_and(is_reached);
        }
        self.counters.replay(match (recovered.incomplete, recovered.batches) {
            (true, _) => ReplayResult::Incomplete,
            (false, 0) if cause == ReplayCause::Quiet => ReplayResult::Nothing,
            _ => ReplayResult::Complete,
        });
        if recovered.batches > 0
            && (cause == ReplayCause::Joined || self.replay_log.admit().is_some())
        {
            info!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                batches = recovered.batches,
                complete = !recovered.incomplete,
                "KV event batches replayed"
            );
        }
        recovered.batches
    }

    /// After a failed replay, tries again to get the engine's whole history. The present blocks are
    /// given up for it only once the engine answers again.
    pub(crate) async fn settle_debt(&mut self) {
        if !self.replays.take_debt_try() {
            return;
        }
        let knew_some = self.state.borrow().last_number().is_some();
        self.recover(ReplayCause::Quiet).await;
        // Blocks of a snapshot may go back further than the engine's history.
        let is_continued = self.state.borrow().is_continued();
        if !self.replays.owed && knew_some && !is_continued {
            self.begin_again(ResetReason::Replay).await;
            self.recover(ReplayCause::Joined).await;
        }
        self.settle(FeedState::Live).await;
    }

    /// Checks after a silence of the live stream whether the engine has published batches.
    pub(crate) async fn audit(&mut self) -> Result<(), SocketError> {
        self.settle_debt().await;
        let batches = self.recover(ReplayCause::Quiet).await;
        self.settle(FeedState::Live).await;
        if batches > 0 && self.audit.found {
            // Twice in a row the live stream lacked batches that the engine had published.
            return Err(SocketError::Silent);
        }
        self.audit.found = batches > 0;
        if batches == 0 {
            self.state.borrow_mut().rest();
            let timers = self.timers;
            let after = self.audit.after * 2;
            self.audit.after = after.clamp(timers.audit_after, timers.audit_after_max());
        }
        self.audit.due = Instant::now() + self.audit.after;
        Ok(())
    }

    /// `before`: the last number and the number of resets when the replay began.
    async fn give_up(
        &mut self,
        endpoint: &ZmqEndpoint,
        error: &SocketError,
        before: (Option<u64>, u64),
    ) {
        self.counters.replay(ReplayResult::Incomplete);
        // The control plane warns of a foreign endpoint.
        if !self.replays.is_foreign {
            warn!(
                worker = &*self.worker,
                dp_rank = self.dp_rank.0,
                %endpoint,
                %error,
                again_after_s = self.replays.pause.as_secs(),
                "missed KV event batches cannot be replayed"
            );
        }
        self.replays.failed();
        if (self.state.borrow().last_number(), self.status.resets()) != before {
            self.begin_again(ResetReason::Replay).await;
        }
    }

    async fn begin_again(&mut self, reason: ResetReason) {
        self.state.borrow_mut().reset(reason, &self.counters, &mut self.ops);
        self.state.borrow_mut().expect_repeats();
        self.status.reset(0);
        self.post().await;
    }

    /// Sends requests until an answer is complete, or the engine has no more batches. `reached`:
    /// batch of the live stream that the engine has published before the first request.
    async fn replay_all(
        &mut self,
        endpoint: &ZmqEndpoint,
        reached: Option<Mark>,
    ) -> Result<Recovery, SocketError> {
        let mut recovered = Recovery::default();
        let mut fruitless = 0;
        loop {
            let published = reached.or_else(|| self.state.borrow().last_mark());
            let (batches, end) = self.replay_once(endpoint, published, &mut recovered).await?;
            recovered.batches += batches;
            fruitless = if batches > 0 { 0 } else { fruitless + 1 };
            match end {
                ReplayEnd::Reached => return Ok(recovered),
                // What the live stream has brought stays.
                ReplayEnd::Foreign if self.replays.is_foreign => {
                    return Err(ZmtpError::Framing.into());
                }
                ReplayEnd::Foreign if self.replays.mark_foreign() => {
                    self.begin_again(ResetReason::Restart).await;
                    return Err(ZmtpError::Framing.into());
                }
                ReplayEnd::Foreign => {
                    info!(
                        worker = &*self.worker,
                        dp_rank = self.dp_rank.0,
                        "the engine was restarted: what was known of it is forgotten"
                    );
                    self.status.restarted();
                    self.begin_again(ResetReason::Restart).await;
                }
                ReplayEnd::Hole if fruitless < FRUITLESS_MAX => {}
                ReplayEnd::Hole if recovered.past_holes => return Ok(recovered),
                ReplayEnd::Hole => {
                    // The engine lacks the batches: start with the batches that it has.
                    recovered.incomplete = true;
                    recovered.past_holes = true;
                    self.begin_again(ResetReason::Gap).await;
                }
            }
        }
    }

    /// Sends a request and applies its answer up to the first hole, or past holes once the engine
    /// is known to lack batches. `published`: a batch that the engine has published.
    async fn replay_once(
        &mut self,
        endpoint: &ZmqEndpoint,
        published: Option<Mark>,
        recovered: &mut Recovery,
    ) -> Result<(u64, ReplayEnd), SocketError> {
        // The answer shall contain the published batch.
        let until = published.map_or(u64::MAX, |mark| mark.number);
        let from = self.state.borrow().replay_from().map(|from| from.min(until));
        let mut joined = from.is_none();
        let mut fit = ProcessFit::new(published);
        let source = ZmqSource::open(endpoint).await?;
        let start = from.unwrap_or(0).to_be_bytes();
        let mut connection = source.request(&[b"", &start]).await?;
        let mut batches = 0;
        loop {
            let silence_max = self.timers.replay_silence_max;
            let (parts, end) = match timeout(silence_max, connection.message()).await {
                Ok(Ok(message)) => message,
                _ if batches > 0 => return Ok((batches, ReplayEnd::Hole)),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(SocketError::TimedOut),
            };
            let parts: Vec<&[u8]> = parts.iter().map(|part| connection.part(part)).collect();
            let Some((number, payload)) = answered(&parts) else {
                return Err(ZmtpError::Framing.into());
            };
            if number == REPLAY_END {
                let is_own = joined && !fit.lacks_batch();
                return Ok((batches, if is_own { ReplayEnd::Reached } else { ReplayEnd::Foreign }));
            }
            let Some(message) = KvMessage::read(&[b"".as_slice(), &number, payload]) else {
                return Err(ZmtpError::Framing.into());
            };
            if self.stream_ranks.is_of_other_rank(message.rank()) {
                connection.done(end);
                continue;
            }
            if fit.contradicts(message.mark()) {
                return Ok((batches, ReplayEnd::Foreign));
            }
            let arrival = self.state.borrow().arrival(&message);
            match arrival {
                BatchArrival::Repeated => {
                    joined = true;
                    self.confirm();
                }
                BatchArrival::Restarted if joined => return Err(ZmtpError::Framing.into()),
                BatchArrival::Restarted if Some(u64::from_be_bytes(number)) == from => {
                    return Ok((batches, ReplayEnd::Foreign));
                }
                // Older than the request.
                BatchArrival::Restarted => {}
                BatchArrival::First { missed } => {
                    recovered.incomplete |= missed > 0;
                    self.take_replayed(message).await;
                    batches += 1;
                }
                BatchArrival::Gap { .. } if recovered.past_holes => {
                    self.take_replayed(message).await;
                    joined = true;
                    batches += 1;
                }
                BatchArrival::Next if joined => {
                    self.take_replayed(message).await;
                    batches += 1;
                }
                BatchArrival::Next | BatchArrival::Gap { .. } => {
                    return Ok((batches, ReplayEnd::Hole));
                }
            }
            connection.done(end);
        }
    }

    /// Applies a batch of an answer. The engine has published it, so that the next request begins
    /// there, also if this answer ends early.
    async fn take_replayed(&mut self, message: KvMessage<'_>) {
        self.take_in_turns(Some(message)).await;
        self.state.borrow_mut().replayed();
    }
}

/// Whether an answer can be of the process that published a batch of the live stream.
#[derive(Clone, Copy, Debug)]
struct ProcessFit {
    /// Published before the request, so that a complete answer contains it.
    published: Option<Mark>,
    /// Number of the last batch of the answer.
    last: Option<u64>,
}

impl ProcessFit {
    const fn new(published: Option<Mark>) -> Self {
        Self { published, last: None }
    }

    /// Takes a batch of the answer. True if the published batch has other bytes.
    fn contradicts(&mut self, mark: Mark) -> bool {
        self.last = Some(mark.number);
        self.published.is_some_and(|own| own.number == mark.number && own.digest != mark.digest)
    }

    /// True if a complete answer ends before the batch. A publisher may remember a batch only after
    /// it has sent the batch, so an answer may lack the last.
    fn lacks_batch(&self) -> bool {
        let lacked = |own: Mark| {
            let next = self.last.map_or(0, |last| last.saturating_add(1));
            next < own.number
        };
        self.published.is_some_and(lacked)
    }
}

/// Number and payload of an answer. Answers start with a delimiter, and contain the topic since
/// vLLM 0.26 and SGLang 0.5.22.
fn answered<'a>(parts: &[&'a [u8]]) -> Option<([u8; 8], &'a [u8])> {
    let (&[_, number, payload] | &[_, _, number, payload]) = parts else { return None };
    Some((number.try_into().ok()?, payload))
}

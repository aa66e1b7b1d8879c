//! The loop of a feed: connect, request missed batches, follow the live stream, and reconnect.

use super::feed::Feed;
use super::patience::Backoff;
use super::port::KvPort;
use super::relay::BatchPassage;
use super::replays::{Audit, ReplayCause};
use crate::counters::ResetReason;
use crate::ranks::rank::KvMessage;
use crate::ranks::restore::overdue;
use crate::ranks::sequence::BatchArrival;
use crate::status::{FEED_HELP, FeedState};
use forebay_base::count_broken_invariant;
use forebay_zmq::{Connection, SocketError, ZmqSource};
use futures_util::FutureExt;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, info, warn};

/// After a connection that lasted this long, the next attempt comes soon and the next loss is
/// logged.
const SESSION_SOUND: Duration = Duration::from_secs(5);

impl<P: KvPort> Feed<P> {
    /// Follows the rank until `stop`, then takes its blocks out of the index.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            let overdue = overdue(self.state(), self.verified_by);
            tokio::select! {
                _ = &mut stop => break,
                () = overdue => self.give_up_restored(),
                ended = AssertUnwindSafe(self.follow()).catch_unwind() => {
                    // Only a panic ends `follow`: remove the blocks from the index, then restart.
                    if ended.is_err() {
                        count_broken_invariant();
                        self.warn("following KV events failed: a bug, please report; trying on");
                    }
                    self.status.lost();
                    self.forget().await;
                    sleep(self.timers.backoff_max()).await;
                }
            }
        }
        self.forget().await;
    }

    async fn follow(&mut self) -> Infallible {
        let mut backoff = Backoff::new(&self.timers);
        // Operations left over from an interrupted call.
        self.post().await;
        self.settle(FeedState::Connecting).await;
        loop {
            let error = match ZmqSource::open(&self.endpoint).await {
                Ok(source) => self.follow_from(&source, &mut backoff).await,
                Err(error) => error,
            };
            self.lost(&error, &mut backoff);
            sleep(backoff.next_pause()).await;
        }
    }

    /// Follows connections of a source: until the first error where the feed connects, without end
    /// where the feed listens, because the listening socket must stay open.
    async fn follow_from(&mut self, source: &ZmqSource, backoff: &mut Backoff) -> SocketError {
        loop {
            let error = match source.subscribe(&self.topic).await {
                Ok(subscriber) => {
                    let begun = Instant::now();
                    let error = self.session(subscriber).await;
                    self.counters.loss(error.reason());
                    self.status.lost();
                    // Blocks of a snapshot that no event has touched yet are as valid as before.
                    if self.state.borrow().is_unverified() {
                        self.settle(FeedState::Connecting).await;
                    } else {
                        self.forget().await;
                    }
                    if begun.elapsed() >= SESSION_SOUND {
                        *backoff = Backoff::new(&self.timers);
                    }
                    error
                }
                Err(error) => error,
            };
            if matches!(source, ZmqSource::Connect(_)) {
                return error;
            }
            self.lost(&error, backoff);
            sleep(backoff.next_pause()).await;
        }
    }

    /// Follows a connection from its first message to its end.
    async fn session(&mut self, mut live: Connection) -> SocketError {
        debug!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            endpoint = %self.endpoint,
            "connected for KV events"
        );
        self.replays = self.replays.of_next_connection();
        live.set_heartbeat(self.timers.heartbeat);
        self.stream_ranks = self.stream_ranks.of_next_connection();
        let trees_before = self.trees();
        self.recover(ReplayCause::Joined).await;
        let is_continued = self.state.borrow().is_continued();
        if self.replay.is_some() && self.trees() != trees_before && !is_continued {
            // A tier got its tree in the middle of the replay. Replay again, so that earlier blocks
            // join the tree.
            self.state.borrow_mut().begin_again(&self.counters, &mut self.ops);
            self.state.borrow_mut().expect_repeats();
            self.post().await;
            self.recover(ReplayCause::Joined).await;
        }
        self.settle(FeedState::Live).await;
        self.status.clear_fault();
        self.audit = Audit::after(self.timers.audit_joined);
        info!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            endpoint = %self.endpoint,
            blocks = self.state.borrow().block_count(),
            "following KV events"
        );
        loop {
            let due = self.expire().await.map_or(self.audit.due, |at| at.min(self.audit.due));
            let status = Rc::clone(&self.status);
            let message = select! {
                message = timeout_at(due, live.message()) => message,
                () = status.is_emptied() => {
                    self.empty().await;
                    continue;
                }
            };
            let (parts, end) = match message {
                Ok(Ok(message)) => message,
                Ok(Err(error)) => return error,
                Err(_) if due < self.audit.due => continue,
                Err(_) => match self.audit().await {
                    Ok(()) => continue,
                    Err(error) => return error,
                },
            };
            let parts: Vec<&[u8]> = parts.iter().map(|part| live.part(part)).collect();
            // The wait may have been long: the stores of the message are not as old as the last.
            self.expire().await;
            self.take(&parts).await;
            live.done(end);
        }
    }

    /// Applies a message of the live stream, after the batches missing before it.
    async fn take(&mut self, parts: &[&[u8]]) {
        self.audit = Audit::after(self.timers.audit_after);
        self.settle_debt().await;
        let message = KvMessage::read(parts);
        if let Some(message) = &message
            && !self.is_own(message).await
        {
            return;
        }
        if let Some(message) = &message {
            self.status.mark_live_batch();
            let arrival = self.state.borrow().arrival(message);
            match arrival {
                BatchArrival::Repeated => {
                    self.confirm();
                    self.settle(FeedState::Live).await;
                    return;
                }
                BatchArrival::Next | BatchArrival::First { missed: 0 } => {
                    self.state.borrow_mut().no_more_repeats();
                }
                BatchArrival::First { .. } | BatchArrival::Gap { .. } | BatchArrival::Restarted => {
                    self.recover(ReplayCause::Behind(message.mark())).await;
                    self.settle(FeedState::Live).await;
                }
            }
        }
        self.take_in_turns(message).await;
        self.settle(FeedState::Live).await;
    }

    /// False for a batch of another rank, in a stream that several ranks share.
    async fn is_own(&mut self, message: &KvMessage<'_>) -> bool {
        let rank = message.rank();
        match self.stream_ranks.judge(rank) {
            BatchPassage::Own => true,
            BatchPassage::Foreign => false,
            BatchPassage::Nameless => {
                if self.stream_ranks.is_first_nameless() {
                    warn!(
                        worker = &*self.worker,
                        dp_rank = self.dp_rank.0,
                        endpoint = %self.endpoint,
                        "a stream of several ranks has batches that name no rank: each of them \
                         clears what is known of this rank's cache; give each rank an endpoint of \
                         its own"
                    );
                }
                self.contradict().await;
                false
            }
            BatchPassage::Mixed => {
                warn!(
                    worker = &*self.worker,
                    dp_rank = self.dp_rank.0,
                    endpoint = %self.endpoint,
                    batch_rank = rank,
                    "one stream carries the KV events of several ranks: only batches that name \
                     this rank count, so its cache is unknown if none does; give each rank an \
                     endpoint of its own"
                );
                self.contradict().await;
                self.stream_ranks.is_own(rank)
            }
        }
    }

    /// Forgets the blocks of a rank with events that may be of another rank.
    async fn contradict(&mut self) {
        let reason = ResetReason::Contradiction;
        self.state.borrow_mut().reset(reason, &self.counters, &mut self.ops);
        self.status.set_blocks(0);
        self.post().await;
    }

    /// Removes the blocks of an engine that emptied its cache. Its stream goes on.
    async fn empty(&mut self) {
        self.state.borrow_mut().empty(&self.counters, &mut self.ops);
        self.status.set_blocks(0);
        self.post().await;
    }

    async fn forget(&mut self) {
        self.state.borrow_mut().disconnected(&self.counters, &mut self.ops);
        self.status.set_blocks(0);
        self.post().await;
        self.settle(FeedState::Connecting).await;
    }

    /// Logs once per outage why there are no events.
    fn lost(&self, error: &SocketError, backoff: &mut Backoff) {
        self.status.set_fault(format!("{}: {error}", self.endpoint));
        if std::mem::replace(&mut backoff.is_reported, true) {
            debug!(worker = &*self.worker, dp_rank = self.dp_rank.0, %error, "still no KV events");
            return;
        }
        warn!(
            worker = &*self.worker,
            dp_rank = self.dp_rank.0,
            endpoint = %self.endpoint,
            %error,
            help = FEED_HELP,
            "no KV events: prompts are not matched against this rank until it is reached; trying on"
        );
    }
}

//! The prefill leg of a request, on the shard of the request: posted to the home shard of its rank,
//! awaited, and cancelled when no longer wanted.

use super::down::DownWatch;
use super::shard::Shard;
use crate::ingress::Conn;
use crate::relay::{Client, Watch, WatchEnd};
use forebay_base::{NanosSinceStart, RankIndex, ShardIndex};
use forebay_mailbox::{MeshMessage, PrefillLeg, PrefillOutcome, Ticket};
use forebay_router::dispatch::RelayError;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// The home shard ends a leg at its deadline. The request waits this much longer for the outcome.
const NO_WORD_MAX: Duration = Duration::from_secs(1);

/// A leg under way. Dropping it before its end cancels the leg, unless the request let it go.
pub(crate) struct PostedLeg<'a> {
    shard: &'a Shard,
    home: ShardIndex,
    ticket: Ticket,
    rank: RankIndex,
    posted_at: NanosSinceStart,
    timeout: Duration,
    ended: Option<PrefillOutcome>,
    is_wanted: bool,
}

impl<'a> PostedLeg<'a> {
    /// Posts the leg that `make` builds for its ticket to the home shard of its rank.
    pub(crate) fn post(shard: &'a Shard, make: impl FnOnce(Ticket) -> Box<PrefillLeg>) -> Self {
        let ticket = shard.queues.legs.borrow_mut().open();
        let leg = make(ticket);
        let rank = leg.lease.rank();
        let home = shard.links.home_of_rank(&shard.env, rank);
        let posted_at = leg.posted_at;
        let timeout = leg.timeout;
        shard.post(home, MeshMessage::Prefill(leg));
        Self { shard, home, ticket, rank, posted_at, timeout, ended: None, is_wanted: true }
    }

    pub(crate) const fn rank(&self) -> RankIndex {
        self.rank
    }

    pub(crate) const fn posted_at(&self) -> NanosSinceStart {
        self.posted_at
    }

    /// Keeps a drop from cancelling the leg: the request no longer depends on it.
    pub(crate) const fn let_go(&mut self) {
        self.is_wanted = false;
    }

    /// Outcome of the leg, if already received.
    pub(crate) const fn ended(&self) -> Option<&PrefillOutcome> {
        self.ended.as_ref()
    }

    /// Polls for the outcome first, then returns it.
    pub(crate) fn look(&mut self) -> Option<&PrefillOutcome> {
        let _ = self.poll_ended(&Context::from_waker(Waker::noop()));
        self.ended()
    }

    fn poll_ended(&mut self, cx: &Context<'_>) -> Poll<&PrefillOutcome> {
        if self.ended.is_none() {
            match self.shard.queues.legs.borrow_mut().poll(self.ticket, cx) {
                Poll::Ready(ended) => self.ended = Some(ended),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.ended.as_ref().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits for the end of the leg, which the decode leg depends on. Returns the KV transfer
    /// parameters for the decode leg, if any.
    ///
    /// # Errors
    /// [`RelayError::PrefillFailed`], with the reason in [`Self::ended`];
    /// [`RelayError::ClientGone`] or [`RelayError::FirstByteTimedOut`].
    pub(crate) async fn done(&mut self, conn: &mut Conn) -> Result<Option<Vec<u8>>, RelayError> {
        conn.wait_at_most(self.timeout.saturating_add(NO_WORD_MAX));
        poll_fn(|cx| {
            if let Poll::Ready(ended) = self.poll_ended(cx) {
                return Poll::Ready(match ended {
                    PrefillOutcome::Done(params) => Ok(params.clone()),
                    _ => Err(RelayError::PrefillFailed),
                });
            }
            if conn.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(RelayError::ClientGone));
            }
            conn.poll_deadline(cx).map(|()| Err(RelayError::FirstByteTimedOut))
        })
        .await
    }
}

impl Drop for PostedLeg<'_> {
    fn drop(&mut self) {
        self.shard.queues.legs.borrow_mut().close(self.ticket);
        if self.ended.is_none() && self.is_wanted {
            let ticket = self.ticket;
            self.shard.post(self.home, MeshMessage::PrefillCancel { ticket });
        }
    }
}

/// Watch of an attempt: the client, the prefill leg that the answer depends on, if any, and the
/// health of the worker.
pub(crate) struct AttemptWatch<'a, 'b> {
    pub(crate) conn: &'a mut Conn,
    pub(crate) leg: Option<&'a mut PostedLeg<'b>>,
    /// Health of the answering worker.
    pub(crate) down: DownWatch<'a>,
}

impl Watch for AttemptWatch<'_, '_> {
    #[inline]
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        if self.conn.poll_gone(cx).is_ready() {
            return Poll::Ready(RelayError::ClientGone);
        }
        match self.leg.as_mut().map(|leg| leg.poll_ended(cx)) {
            Some(Poll::Ready(PrefillOutcome::Refused(_) | PrefillOutcome::Failed(_))) => {
                Poll::Ready(RelayError::PrefillFailed)
            }
            _ => Poll::Pending,
        }
    }

    #[inline]
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<WatchEnd> {
        loop {
            ready!(self.conn.poll_deadline(cx));
            match self.down.next() {
                Ok(step) => self.conn.wait_at_most(step),
                Err(over) => return Poll::Ready(over),
            }
        }
    }

    #[inline]
    fn wait_at_most(&mut self, after: Duration) {
        let step = self.down.begin(after);
        self.conn.wait_at_most(step);
    }
}

impl Client for AttemptWatch<'_, '_> {
    #[inline]
    fn conn(&mut self) -> &mut Conn {
        self.conn
    }
}

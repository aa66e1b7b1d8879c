//! The way in for a request that two ranks serve: first a decode rank, chosen together with the
//! prefill that it can be handed, then a prefill rank near it. Always in this order, and who waits
//! for a decode rank holds no prefill rank, so no two requests ever wait for each other.

use super::{Applicant, Entry, Turned, enter};
use crate::account::Lease;
use crate::base::RankIndex;
use crate::mailbox::{Ticket, Waiter};
use crate::select::{Binder, Candidates, PickRequest};
use crate::worker::{Leg, QueueWanted};
use std::time::Duration;

/// What becomes of it.
#[derive(Debug)]
pub enum PairEntry {
    /// Both legs have their ranks.
    Pair {
        /// Of the rank that answers.
        decode: Lease,
        /// Of the rank that computes the prompt.
        prefill: Lease,
    },
    /// No pair had room, and a rank that serves whole requests had.
    Whole(Lease),
    /// It waits for a decode rank, as in [`Entry::Wait`]. Its verdict goes to [`enter_prefill`].
    WaitDecode(Box<Waiter>, QueueWanted),
    /// It has a decode rank and waits for a prefill rank. Granted: a pair. Sent on:
    /// [`enter_prefill`] again, with the same lease.
    WaitPrefill {
        /// To be kept meanwhile.
        decode: Lease,
        /// As in [`Entry::Wait`].
        waiter: Box<Waiter>,
        /// As in [`Entry::Wait`].
        wanted: QueueWanted,
    },
    /// It is refused, for want of this leg's rank; the other's lease has been given back.
    /// [`Turned::NoWorker`] means that the ranks that were there have just gone: the request may be
    /// routed again.
    Turned(Leg, Turned),
}

/// Decides. The applicant's `leg` and `near` are not looked at. `seat` makes the ticket of one that
/// waits, and is called once at most; `projected` says how long it takes until so many requests of
/// the leg's pool have ended, if that is known.
pub fn enter_pair(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    mut seat: impl FnMut() -> Ticket,
    projected: impl Fn(Leg, u64) -> Option<Duration>,
) -> PairEntry {
    let decode = leg(applicant, Leg::Decode, None);
    let ahead = |ahead| projected(Leg::Decode, ahead);
    match enter(binder, candidates, &decode, &mut seat, ahead) {
        Entry::Bound(lease) => enter_prefill(binder, candidates, applicant, lease, seat, projected),
        Entry::Wait(waiter, wanted) => PairEntry::WaitDecode(waiter, wanted),
        Entry::Turned(turned) => PairEntry::Turned(Leg::Decode, turned),
    }
}

/// Goes on with the lease that was given to a decode leg: looks for a prefill rank near it. If the
/// lease is of a rank that serves whole requests, that is all there is to do.
pub fn enter_prefill(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    decode: Lease,
    seat: impl FnMut() -> Ticket,
    projected: impl Fn(Leg, u64) -> Option<Duration>,
) -> PairEntry {
    if binder.fleet.is_whole_only(decode.rank()) {
        return PairEntry::Whole(decode);
    }
    let prefill = leg(applicant, Leg::Prefill, Some(decode.rank()));
    let ahead = |ahead| projected(Leg::Prefill, ahead);
    match enter(binder, candidates, &prefill, seat, ahead) {
        Entry::Bound(prefill) => PairEntry::Pair { decode, prefill },
        Entry::Wait(waiter, wanted) => PairEntry::WaitPrefill { decode, waiter, wanted },
        Entry::Turned(turned) => PairEntry::Turned(Leg::Prefill, turned),
    }
}

const fn leg<'a>(applicant: &Applicant<'a>, leg: Leg, near: Option<RankIndex>) -> Applicant<'a> {
    let request = PickRequest { leg, ..applicant.request };
    Applicant { request, near, ..*applicant }
}

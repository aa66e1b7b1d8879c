//! The way in for a request that two ranks serve: first a decode rank, chosen together with the
//! prefill that it can be handed, then a prefill rank near it. Always in this order, and who waits
//! for a decode rank holds no prefill rank, so no two requests ever wait for each other.

use super::enter::{Applicant, Entry, enter};
use forebay_fleet::account::Lease;
use forebay_fleet::mailbox::Ticket;
use forebay_fleet::worker::Leg;
use forebay_select::{Binder, Candidates, PickRequest};
use std::time::Duration;

/// What a request that looks for ranks is in want of.
#[derive(Debug)]
pub(crate) enum Sought {
    /// One rank that serves it whole.
    Whole,
    /// A pair of ranks, or one rank that serves whole requests only.
    Pair,
    /// A prefill rank near the decode rank that it has. If that rank serves whole requests, the
    /// request has all that it needs.
    PrefillFor(Lease),
}

/// Decides. The applicant's `leg` and `near` are not looked at. `open` makes the ticket of one that
/// waits, and is called once at most; `projected` says how long it takes until so many requests of
/// the leg's pool have ended, if that is known.
pub(crate) fn enter_by(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    sought: Sought,
    mut open: impl FnMut() -> Ticket,
    projected: impl Fn(Leg, u64) -> Option<Duration>,
) -> Entry {
    let mut enter_leg = |binder: &mut Binder<'_>, leg, near| {
        let request = PickRequest { leg, ..applicant.request };
        let applicant = Applicant { request, near, ..*applicant };
        enter(binder, candidates, &applicant, &mut open, |ahead| projected(leg, ahead))
    };
    let decode = match sought {
        Sought::Whole => return enter_leg(binder, Leg::Whole, None),
        Sought::PrefillFor(decode) => decode,
        Sought::Pair => match enter_leg(binder, Leg::Decode, None) {
            Entry::Bound(decode) => {
                let serves = binder.fleet.serves(decode.rank(), Leg::Decode)
                    || binder.fleet.is_whole_only(decode.rank());
                debug_assert!(serves, "{:?} cannot answer", decode.rank());
                decode
            }
            other => return other,
        },
    };
    if binder.fleet.is_whole_only(decode.rank()) {
        return Entry::Bound(decode);
    }
    match enter_leg(binder, Leg::Prefill, Some(decode.rank())) {
        Entry::Bound(prefill) => {
            let are_near = binder.fleet.are_near(prefill.rank(), decode.rank());
            debug_assert!(are_near, "a pair that cannot split");
            debug_assert!(prefill.rank() != decode.rank(), "a pair of one rank");
            Entry::Pair { decode, prefill }
        }
        Entry::Wait { waiter, wanted, .. } => Entry::Wait { decode: Some(decode), waiter, wanted },
        other => other,
    }
}

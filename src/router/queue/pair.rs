//! Entry of a request that two ranks serve: first a decode rank, chosen with regard to the prefill
//! ranks near it, then a prefill rank near that decode rank. The order is fixed, and a request that
//! waits for a decode rank holds no prefill rank, so two requests never wait for each other.

use super::enter::{Applicant, Entry, enter};
use forebay_board::account::Lease;
use forebay_fleet::worker::Leg;
use forebay_mailbox::Ticket;
use forebay_select::{Binder, Candidates, PickRequest};
use std::time::Duration;

/// Ranks that a request looks for.
#[derive(Debug)]
pub(crate) enum WantedRanks {
    /// A single rank that serves the request whole.
    Whole,
    /// A pair of ranks, or a single rank that serves whole requests only.
    Pair,
    /// A prefill rank near the decode rank that the request holds. If the held rank serves whole
    /// requests, no prefill rank is needed.
    PrefillFor(Lease),
}

/// Binds, queues or refuses the request. The applicant's `leg` and `near` are ignored. `open` makes
/// the ticket of a wait, and is called once at most. `projected` estimates the time until that many
/// requests of the leg's pool have ended, if known.
pub(crate) fn enter_by(
    binder: &mut Binder<'_>,
    candidates: &mut Candidates,
    applicant: &Applicant<'_>,
    wanted_ranks: WantedRanks,
    mut open: impl FnMut() -> Ticket,
    projected: impl Fn(Leg, u64) -> Option<Duration>,
) -> Entry {
    let mut enter_leg = |binder: &mut Binder<'_>, leg, near| {
        let request = PickRequest { leg, ..applicant.request };
        let applicant = Applicant { request, near, ..*applicant };
        enter(binder, candidates, &applicant, &mut open, |ahead| projected(leg, ahead))
    };
    let decode = match wanted_ranks {
        WantedRanks::Whole => return enter_leg(binder, Leg::Whole, None),
        WantedRanks::PrefillFor(decode) => decode,
        WantedRanks::Pair => match enter_leg(binder, Leg::Decode, None) {
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

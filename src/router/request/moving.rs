//! Streams that the operator moves off a worker. A stream moves only while another rank has room;
//! otherwise the stream stays.

use super::stages::{Loads, Matching, Stages};
use forebay_base::NanosSinceStart;
use forebay_board::account::LeaseCost;
use forebay_fleet::worker::{Dialect, FleetSnapshot, Leg};
use forebay_mailbox::{Pin, RequestFacts};
use forebay_select::{Binder, RankSearch};

/// Pin for the rest of a stream that began at an engine of that family. A `dp_rank` number that
/// the client requested still applies.
pub(super) const fn pin_of_rest(pin: Option<Pin>, dialect: Dialect) -> Pin {
    match pin {
        Some(Pin::Number(number) | Pin::Engine(_, Some(number))) => {
            Pin::Engine(dialect, Some(number))
        }
        Some(Pin::Engine(_, None) | Pin::Beside(_)) | None => Pin::Engine(dialect, None),
    }
}

impl Stages {
    /// Could another rank take a stream of `token_count` tokens now? Waiting requests come first.
    pub fn has_room_elsewhere(
        &mut self,
        fleet: &FleetSnapshot,
        facts: &RequestFacts,
        dialect: Dialect,
        token_count: u64,
        now: NanosSinceStart,
    ) -> bool {
        let Some(model) = fleet.models.get(facts.model.index()) else { return false };
        let Self { rules, loads: Loads { board, reports }, matching, turn, random, .. } = self;
        let Matching { candidates, .. } = matching;
        let pin = Some(pin_of_rest(facts.pin, dialect));
        let seeking = RankSearch {
            requester: facts.requester(),
            leg: Leg::Whole,
            near: None,
            pin,
            tried: &facts.tried,
        };
        if candidates.collect(fleet, model, board, seeking, now).is_err() {
            return false;
        }
        let binder = Binder { fleet, board, reports, policy: rules.policy, now, turn, random };
        let most = token_count.saturating_add(u64::from(facts.output_tokens));
        let cost = LeaseCost {
            prefill_tokens: token_count,
            decode_tokens: most,
            kv_tokens: most,
            shared_tokens: 0,
        };
        candidates
            .ranks()
            .iter()
            .any(|&rank| binder.has_room(rank, facts.model, || cost) && !binder.is_waited_for(rank))
    }
}

//! What one request wishes, and what it has been through on its way to a worker.

use super::slot::Slot;
use super::state::Shard;
use crate::base::{DpRank, NanosSinceStart, RankIndex};
use crate::parse::{Reason, Refusal, rank_pin};
use crate::select::reaches;
use crate::worker::{FleetSnapshot, Leg, Model};
use std::cell::OnceCell;
use std::time::Duration;

/// Is this request among the share that an open window refuses? Drawn once a request, whatever
/// windows it meets.
#[derive(Debug, Default)]
pub(super) struct Drawn(OnceCell<bool>);

impl Drawn {
    pub(super) fn is_refused(&self, shard: &Shard, fleet: &FleetSnapshot) -> bool {
        let share = fleet.flow.rejection.share_percent;
        *self.0.get_or_init(|| share >= 100 || shard.random.borrow_mut().u32(..100) < share)
    }
}

/// What a request has been through, and what it wishes.
#[derive(Debug)]
pub(super) struct Journey {
    /// When it had been read: its place among others, and how long it waits, count from here. How
    /// long a client takes to send a body is neither.
    pub(super) arrived_at: NanosSinceStart,
    /// It waits for a rank no longer than this.
    pub(super) wait_until: NanosSinceStart,
    /// Its client gives up at this moment, as far as it says; it counts from when it sent the head.
    pub(super) client_deadline: Option<NanosSinceStart>,
    pub(super) class: u8,
    pub(super) tenant: u64,
    pub(super) weight: u32,
    /// The data-parallel rank that it asks for.
    pub(super) pin: Option<DpRank>,
    /// Ranks that failed it, or could not be connected to.
    pub(super) tried: Vec<RankIndex>,
    /// The last of them, if it may not be to blame: asked again when nobody else is left.
    spared: Option<RankIndex>,
    /// Attempts that failed after the request was sent.
    pub(super) failed_count: u32,
    /// How often engines had no room for it.
    pub(super) refused_count: u32,
    /// How often a queue sent it on.
    pub(super) hop_count: u32,
    /// Open windows refuse it.
    pub(super) drawn: Drawn,
}

impl Journey {
    /// At the request's beginning.
    ///
    /// # Errors
    /// A refusal when it asks for a rank that there is not.
    pub(super) fn start(
        shard: &Shard,
        slot: &mut Slot,
        fleet: &FleetSnapshot,
        model: &Model,
        (head_at, read_at, drawn): (NanosSinceStart, NanosSinceStart, Drawn),
    ) -> Result<Self, Refusal> {
        shard.retry.borrow_mut().deposit();
        let pin = pin(slot, fleet, model)?;
        let Slot { head, message, request, .. } = slot;
        let wishes = shard.wish_rules.borrow().read(head, message, request.priority);
        slot.told_priority = wishes.told_priority;
        let client_deadline = wishes.deadline.map(|deadline| head_at.plus(deadline));
        let configured = fleet.flow.queue.wait_max.map(|wait| read_at.plus(wait));
        let wait_until = match (configured, client_deadline) {
            (Some(configured), Some(deadline)) => configured.min(deadline),
            (Some(end), None) | (None, Some(end)) => end,
            (None, None) => read_at.plus(shard.config.timeouts.first_byte),
        };
        Ok(Self {
            arrived_at: read_at,
            wait_until,
            client_deadline,
            class: wishes.class,
            tenant: wishes.tenant,
            weight: wishes.weight,
            pin,
            tried: Vec::new(),
            spared: None,
            failed_count: 0,
            refused_count: 0,
            hop_count: 0,
            drawn,
        })
    }

    /// Whatever it waits for, it is not sent after this moment.
    pub(super) fn gives_up_at(&self, first_byte: Duration) -> NanosSinceStart {
        self.client_deadline.unwrap_or_else(|| self.arrived_at.plus(first_byte))
    }

    /// An attempt failed on that rank, and `with` another that may be well.
    pub(super) fn failed_with(&mut self, rank: RankIndex, with: Option<RankIndex>) {
        self.failed_count += 1;
        self.tried.push(rank);
        self.tried.extend(with);
        self.spared = with;
    }

    /// Nobody is left to ask. True if there is one after all: it failed together with another.
    pub(super) fn spare(&mut self) -> bool {
        let Some(spared) = self.spared.take() else { return false };
        self.tried.retain(|&tried| tried != spared);
        true
    }

    /// It has not been anywhere.
    pub(super) const fn is_new(&self) -> bool {
        self.tried.is_empty() && self.refused_count == 0 && self.hop_count == 0
    }
}

/// The rank that a request asks for.
///
/// # Errors
/// A refusal when no worker of its model has a rank of that number.
fn pin(slot: &Slot, fleet: &FleetSnapshot, model: &Model) -> Result<Option<DpRank>, Refusal> {
    let pin = rank_pin(&slot.head, &slot.message)?;
    let Some(DpRank(number)) = pin else { return Ok(None) };
    let ranks = model
        .ranks
        .iter()
        .filter(|&&rank| fleet.serves(rank, Leg::Whole) || fleet.serves(rank, Leg::Decode));
    let numbers = ranks.filter_map(|rank| Some(fleet.ranks.get(rank.index())?.dp_rank.0));
    let highest = numbers.max().unwrap_or(0);
    if number <= highest {
        // Engines that do not read the rank there ignore the client's, and so does the router.
        let is_heard = |&rank: &RankIndex| {
            slot.request.endpoint.is_none_or(|endpoint| reaches(fleet, rank, endpoint))
        };
        return Ok(pin.filter(|_| model.ranks.iter().any(is_heard)));
    }
    Err(Refusal::new(Reason::BadRequest).with_message(format!(
        "`X-Data-Parallel-Rank: {number}` is out of range: the workers of this model have ranks 0 to {highest}."
    )))
}

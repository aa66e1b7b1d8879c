//! A limit of a rank, shared among the replicas: the part that this replica may use. Sans-IO.
//!
//! Every rank has a *steward* that all replicas compute alike ([`steward`]). It alone grants the
//! rank's places, so no replica has to guess the next steps of other replicas. The rules that keep
//! the sum within the limit:
//! - A replica uses at most its grant, and *claims* everything that it may still hold: a claim
//!   falls only after the requests above it have ended, a turn after the shards received the
//!   allowance.
//! - The steward counts the larger of grant and claim of each replica, and drops an earlier larger
//!   grant only when the replica has *acknowledged* the smaller grant and claims less.
//! - Acknowledgement and claims belong together: a message contains only changed claims, so an
//!   acknowledgement counts only from a message without a gap before it, or from a full message
//!   (`peers`).
//! - Usage above a grant (an empty rank takes a request of any size) is deducted from unused grants
//!   of other replicas. They receive the deduction before, or together with, the place that could
//!   use it: that place is granted only after the first replica has reported its release, and its
//!   usage.
//! - The steward then grants only the remainder, and only while every replica that knows the rank
//!   agrees on the steward, and no replica receives messages from a replica unknown to the steward.
//!
//! So with stable membership the claims never exceed the limit in sum, whatever messages are late
//! or lost; a loss costs utilization, not the limit. Proof: a replica holds at most the larger of
//! its last received grant and its running requests. Any grant that it may still receive, late or
//! never, was sent after the last acknowledged grant, and the steward counts the largest of these
//! (`owed`). Requests beyond them were part of its claim when it acknowledged, since a claim covers
//! the allowance until a turn later. The steward knows that claim, as no earlier message is
//! missing; it only falls until a larger grant arrives, which counts from the moment of the grant.
//! New grants come from the rest of the limit.
//!
//! For KV tokens, the limit of the sum may be larger than the limit of the rank ([`SharedLimit`]).
//! It follows the reports of the engine. When it falls, grants fall, and claims fall as requests
//! end.
//!
//! When replicas join, leave or reconnect, the limit may be exceeded by their existing requests
//! until these have ended. A replica that finds a rank takes a single request until every other
//! replica has acknowledged that, and so has reported the rank.

use super::divide::{ReplicaDemand, divide};
use super::wire::ReplicaId;
use forebay_base::NanosSinceStart;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// A replica that disagrees on the steward for this long is left out; its claim still counts. Nor
/// does a rank wait longer for the reports of replicas that acknowledge nothing.
const DISAGREED_MAX: Duration = Duration::from_secs(3);

/// This replica's part in a limit of a rank.
#[derive(Debug, Default)]
pub(crate) struct Account {
    allowed: u64,
    /// Claims of the other replicas; only while this replica is the steward.
    seats: Vec<ReplicaClaim>,
    disagreed_since: Option<NanosSinceStart>,
}

#[derive(Debug)]
struct ReplicaClaim {
    replica: ReplicaId,
    granted: u64,
    /// Most that the replica may still hold.
    owed: u64,
    /// Number of the message with the last change of `granted`.
    changed_seq: u64,
}

/// A limit of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedLimit {
    /// Most that a replica may use.
    pub(crate) each: u64,
    /// Most that all replicas may use in sum; at least `each`. More than `each` if the replicas
    /// count the same tokens.
    pub(crate) all: u64,
}

/// This replica's usage and demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnUsage {
    pub(crate) id: ReplicaId,
    pub(crate) limit: SharedLimit,
    pub(crate) held: u64,
    pub(crate) want: u64,
    /// Most that it takes before every replica has reported the rank.
    pub(crate) unheard_max: Option<u64>,
    /// Every replica has reported the rank, if it has the rank. No replica is known only by name.
    pub(crate) knows_all: bool,
    /// Number of the message that will report this turn.
    pub(crate) next_seq: u64,
    pub(crate) now: NanosSinceStart,
}

/// Last report of another replica that has a limit there too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherReport {
    pub(crate) id: ReplicaId,
    pub(crate) held: u64,
    pub(crate) claim: u64,
    pub(crate) want: u64,
    /// Steward in its view.
    pub(crate) by: ReplicaId,
    /// Its grant to this replica, if it considers itself the steward.
    pub(crate) grant: Option<u64>,
    /// This replica's last message that it has acknowledged.
    pub(crate) obeys_seq: u64,
}

/// Result of a turn, for the other replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountReport {
    pub(crate) claim: u64,
    pub(crate) by: ReplicaId,
    pub(crate) grants: Vec<(ReplicaId, u64)>,
}

/// The steward of a rank: the replica with the highest hash, so that ranks are spread over the
/// replicas and most keep their steward when replicas join or leave.
pub(crate) fn steward(
    rank_hash: u64,
    replicas: impl Iterator<Item = ReplicaId>,
) -> Option<ReplicaId> {
    let weight = |replica: &ReplicaId| {
        let mut bytes = [0; 16];
        let (left, right) = bytes.split_at_mut(8);
        left.copy_from_slice(&rank_hash.to_le_bytes());
        right.copy_from_slice(&replica.0.to_le_bytes());
        (XxHash3_64::oneshot(&bytes), *replica)
    };
    replicas.max_by_key(weight)
}

impl Account {
    /// Allowance of the shards from now on.
    pub(crate) const fn allowed(&self) -> u64 {
        self.allowed
    }

    /// A turn: processes the other replicas' reports, decides, and returns this replica's report.
    /// Calls must be some milliseconds apart, so that requests admitted under the old allowance are
    /// in `held`.
    pub(crate) fn turn(
        &mut self,
        own: &OwnUsage,
        rank_hash: u64,
        others: &[OtherReport],
    ) -> AccountReport {
        let claim_before = own.held.max(self.allowed);
        let ids = others.iter().map(|other| other.id).chain([own.id]);
        let by = steward(rank_hash, ids).unwrap_or(own.id);
        if others.is_empty() {
            self.seats.clear();
            let unheard_max = own.unheard_max.filter(|_| !self.is_hopeless(own.now));
            if unheard_max.is_none() {
                self.disagreed_since = None;
            }
            self.allowed = unheard_max.unwrap_or(own.limit.each).min(own.limit.each);
        } else if by == own.id {
            self.lead(own, others, claim_before);
        } else {
            self.follow(own, others, by);
        }
        let claim = claim_before.max(self.allowed);
        let obedient = |seat: &&ReplicaClaim| {
            others.iter().any(|other| other.id == seat.replica && other.by == own.id)
        };
        let grants = self.seats.iter().filter(obedient);
        AccountReport {
            claim,
            by,
            grants: grants.map(|seat| (seat.replica, seat.granted)).collect(),
        }
    }

    fn follow(&mut self, own: &OwnUsage, others: &[OtherReport], by: ReplicaId) {
        self.seats.clear();
        let granted = others.iter().find(|other| other.id == by).and_then(|other| other.grant);
        match granted {
            Some(granted) => {
                self.disagreed_since = None;
                self.allowed = granted.min(own.limit.each);
            }
            None => {
                self.allowed = self.allowed.min(own.limit.each);
                if self.is_hopeless(own.now) {
                    let count = u64::try_from(others.len()).unwrap_or(u64::MAX).saturating_add(1);
                    self.allowed = self.allowed.max((own.limit.each / count).max(1));
                }
            }
        }
    }

    fn lead(&mut self, own: &OwnUsage, others: &[OtherReport], claim_before: u64) {
        self.seats.retain(|seat| others.iter().any(|other| other.id == seat.replica));
        for other in others {
            self.hear(own.id, other);
        }
        let agreed = own.knows_all && others.iter().all(|other| other.by == own.id);
        if agreed {
            self.disagreed_since = None;
        } else if !self.is_hopeless(own.now) {
            self.allowed = self.allowed.min(own.limit.each);
            return;
        }
        let outside = others.iter().filter(|other| other.by != own.id);
        let outside = outside.fold(0_u64, |sum, other| sum.saturating_add(other.claim));
        let inside: Vec<&OtherReport> = others.iter().filter(|other| other.by == own.id).collect();
        // In the order of ids: an engine with two names may have two stewards. Both must give a
        // whole rank to the same replica.
        let own_place = inside.partition_point(|other| other.id < own.id);
        let mut wishes: Vec<ReplicaDemand> = inside
            .iter()
            .map(|other| ReplicaDemand { want: other.want, held: other.held })
            .collect();
        wishes.insert(own_place, ReplicaDemand { want: own.want, held: own.held });
        let shares = divide(own.limit.all.saturating_sub(outside), &wishes);
        let own_share = shares.get(own_place).copied().unwrap_or(0).min(own.limit.each);
        let other_shares = shares.iter().enumerate().filter(|(place, _)| *place != own_place);
        let targets: Vec<(&OtherReport, u64)> = inside
            .into_iter()
            .zip(other_shares.map(|(_, share)| *share.min(&own.limit.each)))
            .collect();
        let count = u64::try_from(others.len()).unwrap_or(u64::MAX).saturating_add(1);
        self.give(own, claim_before, own_share, &targets, own.limit.all.max(count));
    }

    /// Updates a replica's claim from its report.
    fn hear(&mut self, id: ReplicaId, other: &OtherReport) {
        let position = self.seats.iter().position(|seat| seat.replica == other.id);
        let known = position.and_then(|position| self.seats.get_mut(position));
        let fresh = ReplicaClaim {
            replica: other.id,
            granted: other.claim,
            owed: other.claim,
            changed_seq: 0,
        };
        match known {
            None => self.seats.push(fresh),
            Some(seat) if other.by != id => *seat = fresh,
            Some(seat) if other.obeys_seq >= seat.changed_seq => {
                seat.owed = seat.granted.max(other.claim);
            }
            Some(seat) => seat.owed = seat.owed.max(seat.granted).max(other.claim),
        }
    }

    /// Reduces excess grants, and grants the remainder.
    fn give(
        &mut self,
        own: &OwnUsage,
        claim_before: u64,
        own_share: u64,
        targets: &[(&OtherReport, u64)],
        capacity: u64,
    ) {
        let of = |replica: ReplicaId| targets.iter().find(|(other, _)| other.id == replica);
        let target = |replica: ReplicaId| of(replica).map(|(_, share)| *share);
        let held = |replica: ReplicaId| of(replica).map_or(0, |(other, _)| other.held);
        let own_kept = own_share.min(claim_before);
        let mut used = claim_before;
        let mut kept = own_kept.max(own.held);
        for seat in &mut self.seats {
            if let Some(share) = target(seat.replica).filter(|share| *share < seat.granted) {
                seat.granted = share;
                seat.changed_seq = own.next_seq;
            }
            used = used.saturating_add(seat.owed);
            kept = kept.saturating_add(seat.granted.max(held(seat.replica)));
        }
        let mut free = capacity.saturating_sub(used);
        // Usage above a grant (an empty rank takes a request of any size) is deducted from unused
        // grants of other replicas.
        let mut over = kept.saturating_sub(capacity);
        let own_cut = over.min(own_kept.saturating_sub(own.held));
        over -= own_cut;
        // This replica may reuse its own claim; more only from the free part.
        self.allowed = own_share.min(claim_before.saturating_add(free)).saturating_sub(own_cut);
        let more = self.allowed.saturating_sub(claim_before);
        free -= more;
        for seat in &mut self.seats {
            let cut = over.min(seat.granted.saturating_sub(held(seat.replica)));
            if cut > 0 && target(seat.replica).is_some() {
                over -= cut;
                seat.granted -= cut;
                seat.changed_seq = own.next_seq;
            }
        }
        let mut spare = capacity.saturating_sub(kept).saturating_sub(more);
        for seat in &mut self.seats {
            let Some(share) = target(seat.replica) else { continue };
            let kept = seat.granted.max(held(seat.replica));
            let granted = share.min(seat.owed.saturating_add(free)).min(kept.saturating_add(spare));
            if granted > seat.granted {
                spare -= granted.saturating_sub(kept);
                free -= granted.saturating_sub(seat.owed);
                seat.owed = seat.owed.max(granted);
                seat.granted = granted;
                seat.changed_seq = own.next_seq;
            }
        }
    }

    fn is_hopeless(&mut self, now: NanosSinceStart) -> bool {
        now >= self.disagreed_since.get_or_insert(now).plus(DISAGREED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ReplicaId = ReplicaId(1);
    const IT: ReplicaId = ReplicaId(2);

    fn own(held: u64, want: u64, next_seq: u64) -> OwnUsage {
        let now = NanosSinceStart(0);
        let limit = SharedLimit { each: 4, all: 4 };
        OwnUsage { id: ME, limit, held, want, unheard_max: None, knows_all: true, next_seq, now }
    }

    fn other(claim: u64, want: u64, by: ReplicaId) -> OtherReport {
        OtherReport { id: IT, held: 0, claim, want, by, grant: None, obeys_seq: 0 }
    }

    /// A hash for which this one is the steward of the two.
    fn hash_of(wanted: ReplicaId) -> u64 {
        (0..).find(|hash| steward(*hash, [ME, IT].into_iter()) == Some(wanted)).unwrap()
    }

    #[test]
    fn alone_all_is_allowed() {
        let mut account = Account::default();
        let told = account.turn(&own(0, 0, 1), 7, &[]);
        assert_eq!((account.allowed(), told.claim, told.by), (4, 4, ME));
        let joining = OwnUsage { unheard_max: Some(1), ..own(0, 0, 2) };
        account.turn(&joining, 7, &[]);
        assert_eq!(account.allowed(), 1, "not before it knows that it is alone");
        let now = NanosSinceStart(3_000_000_000);
        account.turn(&OwnUsage { now, ..joining }, 7, &[]);
        assert_eq!(account.allowed(), 4, "the wait for acknowledgements has an end");
    }

    #[test]
    fn a_steward_gives_when_all_agree_and_takes_back_when_heard() {
        let hash = hash_of(ME);
        let mut account = Account::default();
        account.turn(&own(0, 0, 1), hash, &[]);
        let told = account.turn(&own(0, 0, 2), hash, &[other(1, 4, IT)]);
        assert_eq!((account.allowed(), told.grants.len()), (4, 0), "they do not agree yet");
        let told = account.turn(&own(0, 0, 3), hash, &[other(1, 4, ME)]);
        assert_eq!(account.allowed(), 0, "gives it up");
        assert_eq!(told.grants, [(IT, 1)], "but only from the next turn on");
        let told = account.turn(&own(0, 0, 4), hash, &[other(1, 4, ME)]);
        assert_eq!((told.claim, told.grants), (0, vec![(IT, 4)]));
        // Now this one wants half; the other has 4 until it says otherwise.
        let told = account.turn(&own(0, 2, 5), hash, &[other(4, 4, ME)]);
        assert_eq!((account.allowed(), told.grants), (0, vec![(IT, 2)]));
        let late = OtherReport { obeys_seq: 4, ..other(0, 4, ME) };
        account.turn(&own(0, 2, 6), hash, &[late]);
        assert_eq!(account.allowed(), 0, "it may not have heard of the smaller grant");
        let heard = OtherReport { obeys_seq: 5, ..other(3, 4, ME) };
        account.turn(&own(0, 2, 7), hash, &[heard]);
        assert_eq!(account.allowed(), 1, "heard, and three requests go on");
        account.turn(&own(1, 2, 8), hash, &[OtherReport { claim: 2, ..heard }]);
        assert_eq!(account.allowed(), 2);
    }

    #[test]
    fn a_follower_obeys_its_steward_alone() {
        let hash = hash_of(IT);
        let mut account = Account::default();
        let says = |grant| OtherReport { grant, ..other(4, 0, IT) };
        let told = account.turn(&own(0, 4, 1), hash, &[says(None)]);
        assert_eq!((account.allowed(), told.by), (0, IT));
        account.turn(&own(0, 4, 2), hash, &[says(Some(3))]);
        assert_eq!(account.allowed(), 3);
        let told = account.turn(&own(3, 4, 3), hash, &[says(Some(1))]);
        assert_eq!((account.allowed(), told.claim), (1, 3), "what runs is claimed until it ends");
        let told = account.turn(&own(1, 4, 4), hash, &[says(Some(1))]);
        assert_eq!(told.claim, 1);
    }

    #[test]
    fn what_runs_above_a_grant_is_taken_off_what_others_do_not_use() {
        let hash = hash_of(ME);
        let mut account = Account::default();
        let limit = SharedLimit { each: 1_000, all: 1_000 };
        let own = |held, seq| OwnUsage { limit, ..own(held, 500, seq) };
        let says =
            |held, claim, obeys_seq| OtherReport { held, obeys_seq, ..other(claim, 500, ME) };
        for seq in 1..3 {
            account.turn(&own(0, seq), hash, &[says(0, 0, 0)]);
        }
        let told = account.turn(&own(0, 3), hash, &[says(0, 0, 2)]);
        assert_eq!((account.allowed(), told.grants), (500, vec![(IT, 500)]));
        // Its rank was empty: it took a request of 800.
        for seq in 4..6 {
            account.turn(&own(0, seq), hash, &[says(800, 800, 3)]);
            assert_eq!(account.allowed(), 200);
        }
        account.turn(&own(0, 6), hash, &[says(0, 500, 3)]);
        assert_eq!(account.allowed(), 500, "it has ended");
        // The other way round.
        for seq in 7..9 {
            let told = account.turn(&own(800, seq), hash, &[says(0, 500, 6)]);
            assert_eq!(told.grants, [(IT, 200)]);
        }
        let told = account.turn(&own(0, 9), hash, &[says(0, 200, 8)]);
        assert_eq!((account.allowed(), told.grants), (500, vec![(IT, 500)]));
    }

    #[test]
    fn who_never_agrees_does_not_stop_the_others() {
        let hash = hash_of(ME);
        let mut account = Account::default();
        let stubborn = other(1, 4, IT);
        account.turn(&own(0, 4, 1), hash, &[stubborn]);
        assert_eq!(account.allowed(), 0);
        let later = OwnUsage { now: NanosSinceStart(3_000_000_000), ..own(0, 4, 2) };
        account.turn(&later, hash, &[stubborn]);
        assert_eq!(account.allowed(), 3, "its claim is left to it");
    }

    #[test]
    fn a_replica_gets_more_than_its_part_and_never_more_than_the_rank() {
        let hash = hash_of(ME);
        let shares = |all: u64, wants: [u64; 2]| {
            let mut account = Account::default();
            let limit = SharedLimit { each: 4, all };
            let mut grant = 0;
            for seq in 1..6 {
                let mine = OwnUsage { limit, ..own(0, wants[0], seq) };
                let told = OtherReport { obeys_seq: seq - 1, ..other(grant, wants[1], ME) };
                let report = account.turn(&mine, hash, &[told]);
                grant = report.grants.first().map_or(0, |(_, granted)| *granted);
            }
            [account.allowed(), grant]
        };
        assert_eq!(shares(4, [4, 4]), [2, 2]);
        assert_eq!(shares(6, [4, 4]), [3, 3]);
        assert_eq!(shares(8, [4, 4]), [4, 4]);
        assert_eq!(shares(7, [0, 4]), [2, 4], "the rest is even, and the rank has 4");
    }
}

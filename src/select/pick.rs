//! The policies, and the expected cost of a request on a rank.

use super::CostParts;
use super::Prices;
use super::PromptSize;
use super::RankCost;
use super::RankSnapshot;
use super::RankWork;
use super::predicted_work;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::LeaseCost;
use forebay_board::{LoadBoard, LoadReports, ReportWeight};
use forebay_fleet::worker::{FleetSnapshot, Leg, Requester, SessionKey};
use forebay_index::{Overlaps, PrefixMarks};

pub use forebay_config::Policy;

/// Bytes per token before the first matched block. English and code under the common vocabularies:
/// 3.5 to 4.5.
pub const BYTES_PER_TOKEN_DEFAULT: f32 = 4.0;

/// Expected output tokens of a request without a limit.
const OUTPUT_TOKENS_DEFAULT: u32 = 256;

/// Output tokens counted at most: limits like 128k are ceilings, not expectations.
const OUTPUT_TOKENS_COUNTED_MAX: u32 = 2_048;
const _: () = assert!(OUTPUT_TOKENS_DEFAULT <= OUTPUT_TOKENS_COUNTED_MAX);

/// Input of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PickRequest<'a> {
    /// The caller and the model of the request.
    pub requester: Requester,
    pub leg: Leg,
    /// Ranks to choose from; not empty.
    pub ranks: &'a [RankIndex],
    pub fleet: &'a FleetSnapshot,
    /// Load of all ranks, counted by this router.
    pub board: &'a LoadBoard,
    /// Load that engines report.
    pub reports: &'a LoadReports,
    /// Time to which the age of reports and the progress of prefill are computed.
    pub now: NanosSinceStart,
    /// Prompt bytes found per rank.
    pub overlaps: &'a Overlaps,
    /// Cost of tokens beyond their own computation.
    pub prices: Prices,
    pub prompt: PromptSize,
    /// Keys of the prompt's prefixes.
    pub marks: &'a PrefixMarks,
    pub session: Option<SessionKey>,
    /// Rank that the session prefers, if `ranks` holds it; see [`Self::anchor_among`].
    pub anchor: Option<RankIndex>,
}

/// Round-robin positions of a shard, a position for each leg: with a shared position, the first leg
/// of pairs would always get the even ranks, the second leg the odd ranks.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: [usize; 3],
}

impl RoundRobin {
    fn next(&mut self, leg: Leg) -> usize {
        let [whole, prefill, decode] = &mut self.next;
        let next = match leg {
            Leg::Whole => whole,
            Leg::Prefill => prefill,
            Leg::Decode => decode,
        };
        let now = *next;
        *next = now.wrapping_add(1);
        now
    }
}

/// Chooses a rank; `None` only if `request.ranks` is empty.
#[must_use]
pub fn pick(
    policy: Policy,
    request: &PickRequest<'_>,
    turn: &mut RoundRobin,
    random: &mut fastrand::Rng,
) -> Option<RankIndex> {
    pick_by(policy, request, turn, random, |rank, most| {
        Some(request.weight(policy, rank, most)).filter(|weight| *weight <= most)
    })
}

/// [`pick`] with a cost function of the caller. `weight` returns `None` for a rank that costs more
/// than the given limit, or that must not be taken.
pub(super) fn pick_by(
    policy: Policy,
    request: &PickRequest<'_>,
    turn: &mut RoundRobin,
    random: &mut fastrand::Rng,
    weight: impl Fn(RankIndex, RankCost) -> Option<RankCost>,
) -> Option<RankIndex> {
    let ranks = request.ranks;
    match policy {
        Policy::Kv | Policy::LeastLoaded | Policy::Session => {
            cheapest(request, ranks, random, weight)
        }
        Policy::PowerOfTwo => {
            let two = [any(ranks, random)?, any(ranks, random)?];
            cheapest(request, &two, random, weight)
        }
        Policy::RoundRobin => ranks.get(turn.next(request.leg) % ranks.len().max(1)).copied(),
        Policy::Random => any(ranks, random),
    }
}

impl PickRequest<'_> {
    /// Prompt tokens that the rank would have to compute.
    #[must_use]
    #[inline]
    pub fn uncached_tokens(&self, rank: RankIndex) -> u64 {
        // Most ranks have no overlap, and the conversion of bytes to tokens costs a division.
        match u64::from(self.overlaps.get(rank).bytes) {
            0 => self.prompt.tokens(),
            held => self.prompt.tokens_of(self.prompt.bytes().saturating_sub(held)),
        }
    }

    /// Prompt tokens that running requests on the rank already hold.
    #[must_use]
    #[inline]
    pub fn shared_tokens(&self, rank: RankIndex) -> u64 {
        let shared = self.board.pinned(rank).map_or(0, |pinned| pinned.shared_tokens(self.marks));
        shared.min(self.prompt.tokens())
    }

    /// Cost of the rank under the policy. Policies that do not compare ranks cost 0. A cost above
    /// `most` is not computed to its end: the returned cost may be too low, but is above `most`.
    #[must_use]
    #[inline(always)]
    pub fn weight(&self, policy: Policy, rank: RankIndex, most: RankCost) -> RankCost {
        match policy {
            Policy::Kv => self.cost_up_to(rank, self.tokens_to_compute(rank), most),
            Policy::LeastLoaded | Policy::PowerOfTwo => self.load_only(rank),
            Policy::RoundRobin | Policy::Random => RankCost(0),
            Policy::Session => self.session_cost(rank, most),
        }
    }

    /// Cost of the rank under policy `kv`.
    #[must_use]
    pub fn cost(&self, rank: RankIndex) -> RankCost {
        self.cost_of(rank, self.tokens_to_compute(rank), RankCost::MAX)
    }

    /// Parts of [`Self::cost`]; `None` for an unknown rank.
    #[must_use]
    pub fn cost_parts(&self, rank: RankIndex) -> Option<CostParts> {
        self.parts_of(rank, self.tokens_to_compute(rank), RankCost::MAX)
    }

    #[inline]
    fn tokens_to_compute(&self, rank: RankIndex) -> u64 {
        // A decode leg computes no prompt tokens.
        if self.leg == Leg::Decode { 0 } else { self.uncached_tokens(rank) }
    }

    /// Cost of the rank if it computes `tokens` of the prompt. Above `most`, see [`Self::weight`].
    #[inline(always)]
    pub(super) fn cost_up_to(&self, rank: RankIndex, tokens: u64, most: RankCost) -> RankCost {
        // After a rank with a large overlap, the loads of most other ranks need not be read.
        let least = RankCost(self.prices.least(tokens));
        if least > most {
            return least;
        }
        let cost = self.cost_of(rank, tokens, most);
        debug_assert!(cost >= least, "{rank:?} costs less than what it computes");
        cost
    }

    #[inline]
    fn cost_of(&self, rank: RankIndex, tokens: u64, most: RankCost) -> RankCost {
        self.parts_of(rank, tokens, most).map_or(RankCost::MAX, |parts| parts.total())
    }

    #[inline]
    fn parts_of(&self, rank: RankIndex, uncached_tokens: u64, most: RankCost) -> Option<CostParts> {
        let work = RankWork {
            prompt_tokens: self.prompt.tokens(),
            uncached_tokens,
            prices: self.prices,
            kv_capacity_tokens: self.fleet.kv_capacity_tokens(rank),
            most,
        };
        let load = self.board.rank(rank)?;
        let past = self.board.past(rank)?;
        let seen = RankSnapshot { load, past, report: self.reports.newest(rank), now: self.now };
        Some(predicted_work(seen, &work, |report| self.reports.weight_of(report, self.now)))
    }

    /// Cost under policies that compare load alone: requests of this router and reported requests,
    /// in units of 1/1,024.
    #[must_use]
    pub fn load_only(&self, rank: RankIndex) -> RankCost {
        let Some(load) = self.board.rank(rank) else { return RankCost::MAX };
        let own = ReportWeight::FULL.fine_part_of(u64::from(load.in_flight()));
        let report = self.reports.counting(rank, self.now);
        let foreign = report
            .map_or(0, |(report, weight)| weight.fine_part_of(u64::from(report.foreign.requests)));
        RankCost(own.saturating_add(foreign))
    }
}

/// Expected output tokens of a request.
#[must_use]
pub fn output_tokens(max_tokens: Option<u32>) -> u32 {
    max_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(OUTPUT_TOKENS_COUNTED_MAX)
}

/// Cost of a request that its lease counts on the rank.
#[must_use]
#[inline]
pub fn lease_cost(request: &PickRequest<'_>, rank: RankIndex, output_tokens: u32) -> LeaseCost {
    let uncached = request.uncached_tokens(rank);
    // A prefill leg produces a single token.
    let output = if request.leg == Leg::Prefill { 1 } else { u64::from(output_tokens) };
    debug_assert!(uncached <= request.prompt.tokens(), "more to compute than the prompt has");
    LeaseCost {
        prefill_tokens: if request.leg == Leg::Decode { 0 } else { uncached },
        decode_tokens: request.prompt.tokens().saturating_add(output),
        // A decode rank receives the KV that it does not hold.
        kv_tokens: uncached.saturating_add(output),
        shared_tokens: request.shared_tokens(rank),
    }
}

/// The rank with the least cost. Equal ranks have equal chances (reservoir sampling).
fn cheapest(
    request: &PickRequest<'_>,
    ranks: &[RankIndex],
    random: &mut fastrand::Rng,
    cost: impl Fn(RankIndex, RankCost) -> Option<RankCost>,
) -> Option<RankIndex> {
    let mut best: Option<(RankIndex, RankCost)> = None;
    let mut ties = 1_u32;
    for &rank in ranks {
        let most = best.map_or(RankCost::MAX, |(_, least)| least);
        let Some(this) = cost(rank, most) else { continue };
        debug_assert!(this <= most, "{rank:?} costs more than asked for");
        match best {
            Some((other, least)) if this == least => {
                if let Some(is_nearer) = request.is_nearer(rank, other) {
                    if is_nearer {
                        best = Some((rank, this));
                    }
                    continue;
                }
                // A single pass without a list of ties: the n-th tie wins with probability 1/n.
                ties = ties.saturating_add(1);
                if random.u32(..ties) == 0 {
                    best = Some((rank, this));
                }
            }
            _ => {
                best = Some((rank, this));
                ties = 1;
            }
        }
    }
    best.map(|(rank, _)| rank)
}

fn any(ranks: &[RankIndex], random: &mut fastrand::Rng) -> Option<RankIndex> {
    if ranks.is_empty() { None } else { ranks.get(random.usize(..ranks.len())).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ShardIndex;
    use forebay_board::{LoadReading, LoadReport, OwnLoad};
    use forebay_fleet::worker::test_support::REQUESTER;
    use forebay_fleet::worker::{RoomDemand, RoomLimits};
    use forebay_index::{BlockKey, KeySeed, RootName};
    use forebay_index::{IndexReader, SliceWriter, index, slice_of};
    use forebay_index::{KvOp, Overlap};
    use proptest::prelude::*;
    use std::time::Duration;

    const SEED: KeySeed = KeySeed(7);
    const PROMPT: &[u8] = b"0123456789abcdef0123456789ABCDEF";

    fn root() -> BlockKey {
        BlockKey::root(SEED, &RootName { model: "m", block_size_tokens: 4, ..RootName::default() })
    }

    /// `rank` holds the first `blocks` 16-byte blocks of the prompt.
    fn holds(writers: &mut [SliceWriter], rank: RankIndex, blocks: usize) {
        let mut parent = root();
        let first = parent.child(SEED, &PROMPT[..16]);
        let ShardIndex(slice) = slice_of(first, writers.len());
        for block in PROMPT.chunks(16).take(blocks) {
            let key = parent.child(SEED, block);
            writers[usize::from(slice)].apply(rank, KvOp::Store { parent, key, block_bytes: 16 });
            parent = key;
        }
    }

    fn overlaps(reader: &IndexReader) -> Overlaps {
        let mut overlaps = Overlaps::new(8);
        reader.overlap(root(), PROMPT, &mut overlaps);
        overlaps
    }

    fn picks(policy: Policy, board: &LoadBoard, overlaps: &Overlaps) -> Vec<u16> {
        let ranks = [RankIndex(0), RankIndex(1), RankIndex(2)];
        let request = PickRequest {
            requester: REQUESTER,
            leg: Leg::Whole,
            ranks: &ranks,
            board,
            reports: &LoadReports::new(Duration::from_secs(5)),
            now: NanosSinceStart(0),
            overlaps,
            fleet: &FleetSnapshot::default(),
            prices: Prices::LEAST,
            prompt: PromptSize::new(32, 4.0),
            marks: &PrefixMarks::NONE,
            session: None,
            anchor: None,
        };
        let mut turn = RoundRobin::default();
        let mut random = fastrand::Rng::with_seed(1);
        (0..300).map(|_| pick(policy, &request, &mut turn, &mut random).unwrap().0).collect()
    }

    fn share(picks: &[u16], rank: u16) -> usize {
        picks.iter().filter(|&&pick| pick == rank).count()
    }

    #[test]
    fn kv_prefers_the_longest_overlap_and_leaves_it_when_it_is_busy() {
        let (reader, mut writers) = index(2, SEED, 1 << 24);
        holds(&mut writers, RankIndex(1), 2);
        holds(&mut writers, RankIndex(2), 1);
        let board = LoadBoard::new();
        let found = overlaps(&reader);
        assert_eq!(found.get(RankIndex(1)).blocks, 2);
        assert_eq!(share(&picks(Policy::Kv, &board, &found), 1), 300);
        board.rank(RankIndex(1)).unwrap().add_prefill(100);
        assert_eq!(share(&picks(Policy::Kv, &board, &found), 2), 300, "the next best holder");
    }

    #[test]
    fn ties_are_shared() {
        let board = LoadBoard::new();
        for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo, Policy::Random] {
            let picks = picks(policy, &board, &Overlaps::new(8));
            for rank in 0..3 {
                assert!(share(&picks, rank) > 60, "{policy:?} gave rank {rank} too little");
            }
        }
    }

    #[test]
    fn least_loaded_and_power_of_two_look_at_requests_in_flight() {
        let board = LoadBoard::new();
        for rank in [0, 1] {
            assert!(
                board
                    .rank(RankIndex(rank))
                    .unwrap()
                    .try_acquire(RoomLimits::default(), RoomDemand::default())
                    .is_some()
            );
        }
        let none = Overlaps::new(8);
        assert_eq!(share(&picks(Policy::LeastLoaded, &board, &none), 2), 300);
        assert!(share(&picks(Policy::PowerOfTwo, &board, &none), 2) > 140);
    }

    #[test]
    fn round_robin_takes_turns() {
        let picks = picks(Policy::RoundRobin, &LoadBoard::new(), &Overlaps::new(8));
        assert_eq!(picks[..6], [0, 1, 2, 0, 1, 2]);
    }

    const AGE_MAX: Duration = Duration::from_secs(5);

    /// Sends `count` equal requests in sequence and holds each lease. Returns the requests per
    /// rank.
    fn burst(policy: Policy, reports: &LoadReports, now: u64, ranks: u16, count: u32) -> Vec<u32> {
        let board = LoadBoard::new();
        let all: Vec<RankIndex> = (0..ranks).map(RankIndex).collect();
        let mut turn = RoundRobin::default();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..count {
            let request = PickRequest {
                requester: REQUESTER,
                leg: Leg::Whole,
                ranks: &all,
                board: &board,
                reports,
                now: NanosSinceStart(now),
                overlaps: &Overlaps::new(8),
                fleet: &FleetSnapshot::default(),
                prices: Prices::LEAST,
                prompt: PromptSize::new(400, 4.0),
                marks: &PrefixMarks::NONE,
                session: None,
                anchor: None,
            };
            let rank = pick(policy, &request, &mut turn, &mut random).unwrap();
            assert!(
                board
                    .rank(rank)
                    .unwrap()
                    .try_acquire(RoomLimits::default(), RoomDemand::default())
                    .is_some()
            );
        }
        all.iter().map(|&rank| board.rank(rank).unwrap().in_flight()).collect()
    }

    /// Reports of ranks 0, 1, …, each with its running requests and those of this router.
    fn reports(figures: &[(u32, u32)]) -> LoadReports {
        let mut reports = LoadReports::new(AGE_MAX);
        for (rank, &(running, in_flight)) in (0..).map(RankIndex).zip(figures) {
            let reading = LoadReading { running, ..LoadReading::default() };
            let own = OwnLoad { in_flight, ..OwnLoad::default() };
            reports.take(LoadReport::new(rank, NanosSinceStart(0), &reading, own));
        }
        reports
    }

    proptest! {
        #[test]
        fn the_cheapest_is_chosen_whichever_rank_holds_the_prompt(
            held_bytes in proptest::collection::vec(0_u32..40_000, 6),
            queued in proptest::collection::vec(0_u64..20_000, 6),
            decoded in proptest::collection::vec(0_u64..500_000, 6),
            tokens_per_ms in proptest::collection::vec(1_u64..100, 6),
            are_alike in proptest::bool::ANY,
            times in 1_u64..10,
            leg in proptest::sample::select(vec![Leg::Whole, Leg::Prefill, Leg::Decode]),
            (policy, anchor) in proptest::sample::select(vec![
                (Policy::Kv, None),
                (Policy::Session, None),
                (Policy::Session, Some(RankIndex(4))),
            ]),
        ) {
            let board = LoadBoard::new();
            let mut overlaps = Overlaps::new(6);
            let ranks: Vec<RankIndex> = (0..6).map(RankIndex).collect();
            for (at, &rank) in ranks.iter().enumerate() {
                let bytes = held_bytes[at].saturating_sub(10_000);
                overlaps.set(rank, Overlap { blocks: 1, bytes });
                let load = board.rank(rank).unwrap();
                let past = board.past(rank).unwrap();
                load.add_prefill(queued[at]);
                load.correct(0, decoded[at]);
                let tokens = if are_alike { 50 } else { tokens_per_ms[at] };
                (0..32).for_each(|_| past.waited(tokens * 1_000, 1_000_000_000));
            }
            let pasts = ranks.iter().filter_map(|rank| board.past(*rank));
            let request = PickRequest {
                requester: REQUESTER,
                leg,
                ranks: &ranks,
                board: &board,
                reports: &LoadReports::new(AGE_MAX),
                now: NanosSinceStart(0),
                overlaps: &overlaps,
                fleet: &FleetSnapshot::default(),
                prices: Prices::of_token(times).with_speeds(pasts),
                prompt: PromptSize::new(30_000, 4.0),
                marks: &PrefixMarks::NONE,
                session: SessionKey::of(b"a session"),
                anchor,
            };
            let mut turn = RoundRobin::default();
            let mut random = fastrand::Rng::with_seed(1);
            let picked = pick(policy, &request, &mut turn, &mut random).unwrap();
            let cost = |rank| request.weight(policy, rank, RankCost::MAX);
            let least = ranks.iter().map(|rank| cost(*rank)).min().unwrap();
            prop_assert_eq!(cost(picked), least);
        }

        #[test]
        fn reports_of_our_own_load_change_nothing(
            figures in proptest::collection::vec((0_u32..50, 0_u32..50), 4),
            count in 0_u32..40,
            now in 0_u64..20_000_000_000,
        ) {
            let none = LoadReports::new(AGE_MAX);
            let ours: Vec<_> =
                figures.iter().map(|&(running, more)| (running, running + more)).collect();
            let old = u64::try_from(AGE_MAX.as_nanos()).unwrap() + now;
            for policy in [Policy::Kv, Policy::LeastLoaded, Policy::PowerOfTwo] {
                let leases_alone = burst(policy, &none, now, 4, count);
                prop_assert_eq!(&burst(policy, &reports(&ours), now, 4, count), &leases_alone);
                prop_assert_eq!(
                    &burst(policy, &reports(&figures), old, 4, count),
                    &leases_alone,
                    "old"
                );
            }
        }

        #[test]
        fn a_burst_between_two_reports_fills_the_room_that_is_left(
            foreign in proptest::collection::vec(0_u32..12, 4),
            count in 0_u32..60,
        ) {
            let figures: Vec<_> = foreign.iter().map(|&others| (others, 0)).collect();
            for policy in [Policy::Kv, Policy::LeastLoaded] {
                let sent = burst(policy, &reports(&figures), 0, 4, count);
                prop_assert_eq!(sent.iter().sum::<u32>(), count, "reports are no gate");
                let level = sent.iter().zip(&foreign).map(|(sent, others)| sent + others);
                let most_filled = sent.iter().zip(level.clone()).filter(|(sent, _)| **sent > 0);
                let most_filled = most_filled.map(|(_, level)| level).max().unwrap_or(0);
                let least = level.min().unwrap_or(0);
                prop_assert!(most_filled <= least + 1, "{foreign:?} {sent:?}");
            }
        }
    }
}

//! Whole or pair: does a single rank serve the request, or a prefill rank and a decode rank?
//!
//! * A request stays whole if fewer than `uncached_tokens_min` prompt tokens are left to compute on
//!   some rank that can serve it whole: a KV transfer would cost more than it saves.
//! * Otherwise a pair is preferred, even if the model has ranks that only serve whole requests
//!   (`role = "both"`). Such ranks take the request when no pair has room, at arrival and while the
//!   request waits ([`Binder::bind`](super::Binder::bind)); no request waits for a pair while such
//!   a rank is free. Decode ranks compute prompts only in the cases below, since a prefill delays
//!   all decodes on its rank.
//! * A request that the engine's protocol cannot split stays whole. A model with prefill ranks of
//!   several engines follows the strictest engine.
//! * Without a usable pair, the request stays whole if the configured fallback lets decode ranks
//!   compute prompts. Ranks that only serve whole requests always may.

use super::Candidates;
use super::PickRequest;
use super::usable::{UsableRank, meets};
use forebay_base::RankIndex;
use forebay_config::{DisaggregationConfig, Fallback, PairObstacle};
use forebay_fleet::worker::{FleetSnapshot, KvTransfer, Leg, Model};
use forebay_mailbox::Pin;

#[derive(Clone, Copy, Debug)]
pub struct RouteRules {
    /// Prompts with fewer tokens to compute stay whole; 0: no such minimum.
    pub uncached_tokens_min: u64,
    /// Decode ranks compute prompts themselves if no prefill rank can.
    pub falls_back: bool,
}

impl RouteRules {
    #[must_use]
    pub fn of(config: &DisaggregationConfig) -> Self {
        Self {
            uncached_tokens_min: u64::from(config.uncached_tokens_min),
            falls_back: config.fallback != Fallback::Reject,
        }
    }
}

/// Input of a routing decision.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    pub fleet: &'a FleetSnapshot,
    pub model: &'a Model,
    /// The prompt and its overlaps; `leg` and `ranks` are ignored.
    pub request: PickRequest<'a>,
    /// Restricts the ranks that may answer; `None`: all may.
    pub pin: Option<Pin>,
    /// Ranks that failed the request.
    pub tried: &'a [RankIndex],
    /// Paused ranks may take the request too.
    pub ignores_pauses: bool,
    pub rules: RouteRules,
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By a single rank.
    Whole(WholeReason),
    /// By a pair, or by a rank that only serves whole requests, whichever has room.
    Pair,
}

/// Why a single rank serves the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeReason {
    /// All ranks of the model only serve whole requests.
    NoRoles,
    /// Few prompt tokens are uncached.
    FewUncached,
    /// No pair can serve the request.
    NoPair(NoPair),
}

/// Why no pair can serve the request. As an error: no rank may serve it whole either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPair {
    /// No decode rank is usable.
    NoDecode,
    /// No prefill rank is usable.
    NoPrefill,
    /// No usable prefill rank can be a pair with a usable decode rank.
    NotNear(PairObstacle),
    /// The request cannot be split.
    CannotSplit,
}

impl WholeReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoles => "no_roles",
            Self::FewUncached => "few_uncached_tokens",
            Self::NoPair(why) => why.as_str(),
        }
    }
}

impl NoPair {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoDecode => "no_decode",
            Self::NoPrefill => "no_prefill",
            Self::NotNear(_) => "not_near",
            Self::CannotSplit => "cannot_split",
        }
    }

    /// Text for the refused client, after "No worker can take this request: ".
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::NoDecode => "the decode workers that serve its model are down, or failed it",
            Self::NoPrefill => {
                "the prefill workers that serve its model are down, not registered yet, or failed it, and no other worker \
                 may compute its prompt"
            }
            Self::NotNear(PairObstacle::Engines) => {
                "the prefill workers that are up are of another engine than the decode workers \
                 that are up: start both with the same engine"
            }
            Self::NotNear(PairObstacle::Topologies) => {
                "no prefill worker that is up is in the same part of the network as a decode \
                 worker that is up: compare their `topology`"
            }
            Self::NotNear(PairObstacle::Connectors) => {
                "the prefill workers that are up move KV by another connector than the decode \
                 workers that are up: compare their `kv_flow`"
            }
            Self::NotNear(PairObstacle::Pages) => {
                "the KV pages of the prefill workers that are up have another size than the pages \
                 of the decode workers that are up: compare their `--page-size`"
            }
            Self::CannotSplit => {
                "all workers that serve its model and are up need a prefill worker and a decode worker for each request, \
                 and this kind of request cannot be split"
            }
        }
    }
}

/// Decides between whole and pair. `can_split` is called for each kind of KV transfer that the
/// model's prefill ranks use, and only if the result matters.
///
/// # Errors
/// [`NoPair`] if no rank may take the request.
pub fn route(
    asked: &RouteRequest<'_>,
    candidates: &mut Candidates,
    mut can_split: impl FnMut(&KvTransfer) -> bool,
) -> Result<Route, NoPair> {
    let by_pauses = decide(asked, candidates, &mut can_split);
    // If all ranks are paused, pauses do not count.
    by_pauses.or_else(|_| {
        let forced = RouteRequest { ignores_pauses: true, ..*asked };
        decide(&forced, candidates, &mut can_split)
    })
}

fn decide(
    asked: &RouteRequest<'_>,
    candidates: &mut Candidates,
    can_split: impl FnMut(&KvTransfer) -> bool,
) -> Result<Route, NoPair> {
    let fleet = asked.fleet;
    let model = asked.model;
    if model.ranks.iter().all(|&rank| fleet.is_whole_only(rank)) {
        return Ok(Route::Whole(WholeReason::NoRoles));
    }
    let whole = Whole::of(asked);
    if whole.uncached_least.is_some_and(|least| least < asked.rules.uncached_tokens_min) {
        return Ok(Route::Whole(WholeReason::FewUncached));
    }
    let Err(why) = pair(asked, candidates, can_split) else { return Ok(Route::Pair) };
    // The fallback covers missing prefill ranks. A request that cannot be split stays whole anyway.
    let by_fallback = matches!(why, NoPair::NoPrefill | NoPair::NotNear(_));
    match whole.uncached_least {
        None => Err(why),
        Some(_) if !by_fallback || asked.rules.falls_back => {
            Ok(Route::Whole(WholeReason::NoPair(why)))
        }
        // Without the fallback, only ranks that serve whole requests replace the pair.
        Some(_) if whole.has_own_ranks => Ok(Route::Pair),
        Some(_) => Err(why),
    }
}

/// Summary of the usable ranks that can serve the request whole.
struct Whole {
    /// Fewest prompt tokens that any such rank would have to compute; `None` without such a rank.
    uncached_least: Option<u64>,
    /// Some of these ranks only serve whole requests.
    has_own_ranks: bool,
}

impl Whole {
    fn of(asked: &RouteRequest<'_>) -> Self {
        let mut whole = Self { uncached_least: None, has_own_ranks: false };
        for &rank in &asked.model.ranks {
            if asked.fleet.serves(rank, Leg::Whole) && asked.is_usable(rank) {
                let uncached = asked.request.uncached_tokens(rank);
                let least = whole.uncached_least.map_or(uncached, |least| least.min(uncached));
                whole.uncached_least = Some(least);
                whole.has_own_ranks |= asked.fleet.is_whole_only(rank);
            }
        }
        whole
    }
}

/// Tests whether a usable pair exists.
fn pair(
    asked: &RouteRequest<'_>,
    candidates: &mut Candidates,
    mut can_split: impl FnMut(&KvTransfer) -> bool,
) -> Result<(), NoPair> {
    let fleet = asked.fleet;
    let model = asked.model;
    let kv_transfer = |rank: &RankIndex| fleet.ranks.get(rank.index())?.kv_transfer.as_ref();
    let mut known = None;
    for kv_transfer in model.ranks.iter().filter_map(kv_transfer) {
        let kind = std::mem::discriminant(kv_transfer);
        // By kind, not by rank: whether a body can be split depends on the protocol alone.
        if known != Some(kind) && !can_split(kv_transfer) {
            return Err(NoPair::CannotSplit);
        }
        known = Some(kind);
    }
    let sources = &mut candidates.sources;
    sources.collect(model, asked.usable());
    let mut why = NoPair::NoDecode;
    for &rank in &model.ranks {
        if fleet.serves(rank, Leg::Decode) && asked.is_usable(rank) {
            if sources.reach(fleet, rank) {
                return Ok(());
            }
            why = sources.obstacle(fleet, rank).map_or(NoPair::NoPrefill, NoPair::NotNear);
        }
    }
    Err(why)
}

impl<'a> RouteRequest<'a> {
    fn usable(&self) -> UsableRank<'a> {
        let PickRequest { board, requester, now, .. } = self.request;
        UsableRank { fleet: self.fleet, board, requester, tried: self.tried, now }
    }

    /// May the rank answer the request?
    fn is_usable(&self, rank: RankIndex) -> bool {
        let usable = self.usable();
        self.pin.is_none_or(|pin| meets(self.fleet, rank, pin))
            && (usable.holds(rank) || self.ignores_pauses && usable.is_last_resort(rank))
    }
}

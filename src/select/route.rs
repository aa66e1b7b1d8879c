//! Whole or in two: does one rank serve the request, or does one compute its prompt for another?
//!
//! * A prompt of which some rank that can serve it whole has all but `uncached_tokens_min` tokens
//!   stays whole: handing KV over would cost more than it saves.
//! * Otherwise a pair is preferred, also where the model has ranks that only serve whole requests
//!   (`role = "both"`). Those take it when no pair has room, at arrival and while it waits
//!   ([`Binder::bind`](super::Binder::bind)); no request waits for a pair beside a free one. Decode
//!   ranks that could compute prompts do so only in the cases below: it would hold up everybody's
//!   tokens there.
//! * What cannot be split (the engine's protocol has no way for it) stays whole. A model with
//!   prefill ranks of several engines goes by the strictest.
//! * Without a usable pair the request stays whole if the configured fallback lets decode ranks
//!   compute prompts; ranks that only serve whole requests may always.

use super::usable::{Usable, meets};
use super::{Candidates, PickRequest};
use forebay_base::RankIndex;
use forebay_config::{DisaggregationConfig, Fallback};
use forebay_fleet::mailbox::Pin;
use forebay_fleet::worker::{FleetSnapshot, KvTransfer, Leg, Model};

/// What is configured of it.
#[derive(Clone, Copy, Debug)]
pub struct RouteRules {
    /// Prompts with fewer tokens to compute stay whole; 0: none does for that.
    pub uncached_tokens_min: u64,
    /// Decode ranks compute prompts themselves when nobody can do it for them.
    pub falls_back: bool,
}

impl RouteRules {
    /// As configured.
    #[must_use]
    pub fn of(config: &DisaggregationConfig) -> Self {
        Self {
            uncached_tokens_min: u64::from(config.uncached_tokens_min),
            falls_back: config.fallback != Fallback::Reject,
        }
    }
}

/// Who is to be routed.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// The ranks.
    pub fleet: &'a FleetSnapshot,
    /// What it asks for.
    pub model: &'a Model,
    /// Its prompt and what ranks hold of it; `leg` and `ranks` are not looked at.
    pub request: PickRequest<'a>,
    /// The ranks that may answer it, where not all may.
    pub pin: Option<Pin>,
    /// Ranks that failed it.
    pub tried: &'a [RankIndex],
    /// Ranks that are paused may take it too.
    pub ignores_pauses: bool,
    /// What is configured.
    pub rules: RouteRules,
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By one rank.
    Whole(WholeBecause),
    /// By two, or by one that only serves whole requests, whichever has room.
    Pair,
}

/// Why one rank serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeBecause {
    /// The model has no other ranks.
    NoRoles,
    /// Little of its prompt has to be computed.
    FewUncached,
    /// There is no pair for it.
    NoPair(NoPair),
}

/// Why there is no pair for a request. As an error: nor is there a rank that may serve it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPair {
    /// No decode rank is usable.
    NoDecode,
    /// No prefill rank is usable.
    NoPrefill,
    /// None that are usable are near each other.
    NotNear,
    /// The request cannot be split.
    CannotSplit,
}

impl WholeBecause {
    /// A word for it.
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
    /// A word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoDecode => "no_decode",
            Self::NoPrefill => "no_prefill",
            Self::NotNear => "not_near",
            Self::CannotSplit => "cannot_split",
        }
    }

    /// What a client is told who is refused for it, to be put after "No worker can take this
    /// request: ".
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::NoDecode => "the decode workers that serve its model are down, or failed it",
            Self::NoPrefill => {
                "the prefill workers that serve its model are down, not registered yet, or failed it, and no other worker \
                 may compute its prompt"
            }
            Self::NotNear => {
                "no prefill worker that is up is in the same part of the network as a decode worker that is up"
            }
            Self::CannotSplit => {
                "all workers that serve its model and are up need a prefill worker and a decode worker for each request, \
                 and this kind of request cannot be split"
            }
        }
    }
}

/// Decides. `can_split` is asked for each kind of KV transfer that the model's prefill ranks use,
/// and only when it matters.
///
/// # Errors
/// [`NoPair`] when no rank may take it: why there is no pair for it.
pub fn route(
    asked: &RouteRequest<'_>,
    candidates: &mut Candidates,
    mut can_split: impl FnMut(&KvTransfer) -> bool,
) -> Result<Route, NoPair> {
    let by_pauses = decide(asked, candidates, &mut can_split);
    // Without a rank that is not paused, pauses do not count.
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
        return Ok(Route::Whole(WholeBecause::NoRoles));
    }
    let whole = Whole::of(asked);
    if whole.uncached_least.is_some_and(|least| least < asked.rules.uncached_tokens_min) {
        return Ok(Route::Whole(WholeBecause::FewUncached));
    }
    let Err(why) = pair(asked, candidates, can_split) else { return Ok(Route::Pair) };
    // The fallback is for prefill ranks that are missing. What cannot be split has no other way.
    let by_fallback = matches!(why, NoPair::NoPrefill | NoPair::NotNear);
    match whole.uncached_least {
        None => Err(why),
        Some(_) if !by_fallback || asked.rules.falls_back => {
            Ok(Route::Whole(WholeBecause::NoPair(why)))
        }
        // Of those that would take the pair's place none is a decode rank.
        Some(_) if whole.has_own_ranks => Ok(Route::Pair),
        Some(_) => Err(why),
    }
}

/// The usable ranks that can serve the request whole.
struct Whole {
    /// Tokens that the one with most of the prompt would have to compute; `None` without such a
    /// rank.
    uncached_least: Option<u64>,
    /// Some of them do nothing else.
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

/// Is there a pair for the request?
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
        // By kind, not by rank: what a body allows depends on the protocol alone.
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
            why = if sources.is_empty() { NoPair::NoPrefill } else { NoPair::NotNear };
        }
    }
    Err(why)
}

impl<'a> RouteRequest<'a> {
    fn usable(&self) -> Usable<'a> {
        let PickRequest { board, requester, now, .. } = self.request;
        Usable { fleet: self.fleet, board, requester, tried: self.tried, now }
    }

    /// May the rank answer it?
    fn is_usable(&self, rank: RankIndex) -> bool {
        let usable = self.usable();
        self.pin.is_none_or(|pin| meets(self.fleet, rank, pin))
            && (usable.holds(rank) || self.ignores_pauses && usable.is_last_resort(rank))
    }
}

//! State that a step of a request may touch, and its two calls of select: whole or pair, and which
//! rank.

use super::split::Split;
use super::stages::{Loads, Matching, Stages};
use super::stop::{cannot_split, no_worker};
use crate::dispatch::SendPlan;
use crate::queue::{Applicant, Entry, QueuePlace, WantedRanks, closed_pool, enter_by};
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::Count;
use forebay_board::{LoadBoard, LoadReports};
use forebay_config::PairObstacle;
use forebay_disagg::Obstacle;
use forebay_fleet::worker::{FleetSnapshot, KvTransfer, Leg, Model};
use forebay_mailbox::RequestFacts;
use forebay_prompt::parse::{Endpoint, Refusal};
use forebay_select::{
    self, Binder, NoPair, PickRequest, Policy, Prices, Prompt, PromptOverlaps, PromptSize, Route,
    RouteRequest, RouteRules, WholeReason,
};
use std::rc::Rc;

/// All that a step reads and writes.
pub struct Scene<'a> {
    pub fleet: &'a FleetSnapshot,
    pub stages: &'a mut Stages,
    /// The prompt, once it has been matched.
    pub prompt: &'a Prompt,
    /// Size of a prompt that was not matched: mostly text, a little JSON, without the bytes of
    /// images.
    pub text_bytes: u64,
    pub body: &'a [u8],
    /// The fields of the body that a KV transfer changes.
    pub split: &'a mut Split,
    /// Counts events that only the state machine sees.
    pub count: &'a dyn Fn(Count),
}

/// The request that looks for a rank.
pub(super) struct Seeker<'a> {
    pub(super) facts: &'a RequestFacts,
    pub(super) model: &'a Model,
    pub(super) body_bytes: u64,
    /// The request's place in the queue that rerouted it.
    pub(super) queued: Option<QueuePlace>,
    /// May the request move to another queue later?
    pub(super) is_movable: bool,
}

impl Scene<'_> {
    pub(super) fn plan(&mut self, rank: RankIndex, endpoint: Endpoint) -> Option<Rc<SendPlan>> {
        self.stages.sends.plans.of(self.fleet, rank, endpoint)
    }

    /// Decides between a single rank and a pair.
    pub(super) fn route(
        &mut self,
        now: NanosSinceStart,
        facts: &RequestFacts,
        endpoint: Endpoint,
        model: &Model,
    ) -> Result<Route, Refusal> {
        let fleet = self.fleet;
        if model.ranks.iter().all(|&rank| fleet.is_whole_only(rank)) {
            return Ok(Route::Whole(WholeReason::NoRoles));
        }
        self.stages.matching.matched.recall(self.prompt);
        self.split.look(self.body, endpoint);
        let Stages { rules, loads: Loads { board, reports }, matching, .. } = &mut *self.stages;
        let Matching { matched, candidates, ratios } = matching;
        let policy = rules.policy;
        let ratio = ratios.of(facts.model);
        let view = LoadView { fleet, model, policy, board, reports, matched, ratio, facts };
        let request = view.request(self.prompt, self.text_bytes, now);
        let rules = RouteRules::of(&fleet.config.flow.disaggregation);
        let asked = RouteRequest {
            fleet,
            model,
            request,
            pin: facts.pin,
            tried: &facts.tried,
            ignores_pauses: false,
            rules,
        };
        let can_split = |kv_transfer: &KvTransfer| self.split.can_split(kv_transfer);
        forebay_select::route(&asked, candidates, can_split).map_err(|none| match none {
            NoPair::CannotSplit if could_be_whole(fleet, model) => {
                no_worker("the workers that serve it in one piece are down, or failed it")
            }
            NoPair::CannotSplit => cannot_split(self.obstacle(model)),
            NoPair::NotNear(obstacle) => match names_apart(fleet, model, obstacle) {
                Some([prefill, decode]) => {
                    no_worker(&format!("{}, such as {prefill} and {decode}", none.why()))
                }
                None => no_worker(none.why()),
            },
            NoPair::NoDecode | NoPair::NoPrefill => no_worker(none.why()),
        })
    }

    /// Why the request cannot be split.
    fn obstacle(&self, model: &Model) -> Option<Obstacle> {
        let kv_transfer =
            |rank: &RankIndex| self.fleet.ranks.get(rank.index())?.kv_transfer.as_ref();
        model
            .ranks
            .iter()
            .filter_map(kv_transfer)
            .find_map(|kv_transfer| self.split.obstacle(kv_transfer))
    }

    /// Takes the leases of ranks that have room, or counts the request into a queue. Opens the
    /// rejection window of a pool that has no room for any new request.
    pub(super) fn enter(
        &mut self,
        now: NanosSinceStart,
        wanted_ranks: WantedRanks,
        seeker: &Seeker<'_>,
    ) -> Entry {
        let fleet = self.fleet;
        let facts = seeker.facts;
        let model = seeker.model;
        self.stages.matching.matched.recall(self.prompt);
        let ratio = self.stages.matching.ratios.of(facts.model);
        let Stages {
            rules,
            loads: Loads { board, reports },
            matching: Matching { matched, candidates, .. },
            turn,
            random,
            waits,
            drain_rates,
            ..
        } = &mut *self.stages;
        let policy = rules.policy;
        let view = LoadView { fleet, model, policy, board, reports, matched, ratio, facts };
        let request = view.request(self.prompt, self.text_bytes, now);
        let Seeker { body_bytes, queued, is_movable: movable, .. } = *seeker;
        let applicant =
            Applicant { model, request, facts, body_bytes, near: None, movable, queued };
        let mut binder = Binder { fleet, board, reports, policy: rules.policy, now, turn, random };
        let projected = |leg, ahead| drain_rates.projected_wait(model.pool_of(leg), now, ahead);
        let open = || waits.open();
        let entry = enter_by(&mut binder, candidates, &applicant, wanted_ranks, open, projected);
        if let Some((pool, cause)) = closed_pool(&binder, model, &entry) {
            self.stages.close(fleet, pool, cause, now);
        }
        entry
    }
}

/// Input of a policy.
struct LoadView<'a> {
    fleet: &'a FleetSnapshot,
    model: &'a Model,
    policy: Policy,
    board: &'a LoadBoard,
    reports: &'a LoadReports,
    matched: &'a PromptOverlaps,
    ratio: f32,
    facts: &'a RequestFacts,
}

impl<'a> LoadView<'a> {
    /// The prompt and its overlap with ranks. A prompt that was not matched has the size of its
    /// text.
    fn request(
        &self,
        prompt: &'a Prompt,
        text_bytes: u64,
        now: NanosSinceStart,
    ) -> PickRequest<'a> {
        let matched_bytes = self.matched.prompt_bytes();
        let bytes = if matched_bytes == 0 { text_bytes } else { matched_bytes };
        PickRequest {
            requester: self.facts.requester(),
            leg: Leg::Whole,
            ranks: &[],
            fleet: self.fleet,
            board: self.board,
            reports: self.reports,
            prices: Prices::of(self.policy, self.fleet, self.board, &self.model.ranks),
            now,
            overlaps: self.matched.overlaps(),
            prompt: PromptSize::new(bytes, self.ratio),
            marks: prompt.marks(),
            session: self.facts.caller.session,
            anchor: None,
        }
    }
}

/// Has the model ranks that serve whole requests, in any state?
fn could_be_whole(fleet: &FleetSnapshot, model: &Model) -> bool {
    model.ranks.iter().any(|&rank| fleet.serves(rank, Leg::Whole))
}

/// Names of a prefill and of a decode worker of the model that this obstacle keeps apart.
fn names_apart<'a>(
    fleet: &'a FleetSnapshot,
    model: &Model,
    wanted: PairObstacle,
) -> Option<[&'a str; 2]> {
    let serving = |leg| model.ranks.iter().copied().filter(move |&rank| fleet.serves(rank, leg));
    let name = |rank| fleet.rank(rank).map(|(_, worker)| &*worker.name);
    serving(Leg::Decode).find_map(|decode| {
        let is_apart = |prefill: &RankIndex| fleet.pair_obstacle(*prefill, decode) == Some(wanted);
        let prefill = serving(Leg::Prefill).find(is_apart)?;
        Some([name(prefill)?, name(decode)?])
    })
}

//! A world that grows while it runs: requests arrive from outside, and leave when they are over.

use super::{Event, World};
use crate::live_figures::LiveFigures;
use crate::plan::SimPlan;
use crate::rivals::Rule;
use crate::summary::RequestOutcome;
use crate::traces::trace::{NO_BLOCK, Trace, TraceRequest};
use std::borrow::Cow;
use std::cmp::Reverse;

/// Requests that are over before the lists are shortened: each shortening moves the rest.
const FORGOTTEN_MIN: usize = 64;

impl World<'_> {
    /// Does the trace grow?
    pub(super) const fn is_live(&self) -> bool {
        matches!(self.trace, Cow::Owned(_))
    }
}

impl World<'_> {
    /// Frees the blocks of the request at this position of the lists, which is over. The request
    /// may stay for long: requests leave the lists in the order of their arrival, and an earlier
    /// request may still run.
    pub(super) fn drop_blocks(&mut self, at: usize) {
        if let Cow::Owned(trace) = &mut self.trace
            && let Some(request) = trace.requests.get_mut(at)
        {
            request.blocks = Vec::new();
            request.made = Vec::new();
        }
    }
}

impl World<'static> {
    /// A world without requests, at time 0.
    pub(crate) fn live(block_tokens: u32, plan: SimPlan, rule: Rule) -> Self {
        let trace = Cow::Owned(Trace::growing(block_tokens));
        let mut world = World::new(trace, Cow::Owned(plan), rule, &|| 0);
        world.at(0, Event::Reports);
        world
    }

    /// Takes a request at `now`, which is no earlier than before.
    pub(crate) fn add(&mut self, request: TraceRequest, now: u64) {
        self.advance(now);
        let trace = self.trace.to_mut();
        let id = trace.forgotten.wrapping_add(trace.requests.len() as u32);
        trace.requests.push(request);
        let requests = &mut self.requests;
        requests.leases.push(None);
        requests.prefills.push(None);
        requests.started_ns.push(now);
        requests.sent.push(None);
        requests.outcomes.push(RequestOutcome::default());
        requests.followers.push(Vec::new());
        requests.left += 1;
        self.priorities.push(0);
        self.happen(now, Event::Arrives(id));
    }

    /// Runs all events up to `now`.
    pub(crate) fn advance(&mut self, now: u64) {
        while self.events.planned.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some((at, event)) = self.next() else { break };
            self.happen(at, event);
        }
        self.ranks.samples.clear();
        self.ranks.loads.clear();
        self.forget();
    }

    fn forget(&mut self) {
        let outcomes = &self.requests.outcomes;
        let over = outcomes.iter().take_while(|outcome| outcome.is_over).count();
        if over < FORGOTTEN_MIN.max(outcomes.len() / 2) {
            return;
        }
        let requests = &mut self.requests;
        requests.past.figures.count(requests.outcomes.drain(..over));
        requests.leases.drain(..over);
        requests.prefills.drain(..over);
        requests.started_ns.drain(..over);
        requests.sent.drain(..over);
        requests.followers.drain(..over);
        self.priorities.drain(..over);
        self.trace.to_mut().forget(over);
    }

    /// Figures since the start of the world.
    pub(crate) fn figures(&self) -> LiveFigures {
        let mut figures = self.requests.past.figures;
        figures.count(self.requests.outcomes.iter().copied());
        for totals in self.ranks.engines.iter().map(|engine| engine.totals()) {
            figures.cached_tokens += totals.cached_tokens;
            figures.computed_tokens += totals.computed_tokens;
        }
        figures
    }

    /// Sets the path of a block: the next block, or a block that nothing uses.
    pub(crate) fn name_block(&mut self, block: u32, parent: u32) {
        let parents = &mut self.trace.to_mut().parents;
        match parents.get_mut(block as usize) {
            Some(known) => *known = parent,
            None => parents.push(parent),
        }
        self.routers.name_block(block, parent);
    }

    /// Marks the blocks in use: in caches, in requests, in events on their way.
    pub(crate) fn mark_used(&self, used: &mut [bool]) {
        let held = self.ranks.engines.iter().flat_map(|engine| engine.held_blocks());
        let events = self.ranks.pending_events.iter();
        let changed =
            events.flat_map(|(_, _, changes)| changes.iter().map(|change| change.block()));
        let requests = self.trace.requests.iter();
        let asked =
            requests.flat_map(|request| request.blocks.iter().chain(&request.made).copied());
        for block in held.chain(changed).chain(asked).filter(|&block| block != NO_BLOCK) {
            if let Some(mark) = used.get_mut(block as usize) {
                *mark = true;
            }
        }
    }

    /// Has each rank computed as many tokens as its cache has room for?
    pub(crate) fn has_turned(&self) -> bool {
        self.turned_share() >= 1.0
    }

    /// Tokens that a rank has computed, in parts of the room of its cache; of the slowest rank.
    pub(crate) fn turned_share(&self) -> f64 {
        let blocks = self.plan.device_blocks(&self.trace);
        let room = |rank| blocks(rank) as f64 * f64::from(self.trace.block_tokens);
        let computed = self.ranks.engines.iter().map(|engine| engine.totals().computed_tokens);
        let shares = computed.enumerate().map(|(rank, computed)| {
            let room = room(rank);
            if room > 0.0 { computed as f64 / room } else { 1.0 }
        });
        shares.fold(1.0, f64::min)
    }

    /// Blocks of the requests in the lists.
    #[cfg(test)]
    pub(crate) fn held_block_count(&self) -> usize {
        let blocks = |request: &TraceRequest| request.blocks.len() + request.made.len();
        self.trace.requests.iter().map(blocks).sum()
    }

    /// Requests in the lists.
    pub(crate) fn request_count(&self) -> usize {
        self.trace.requests.len()
    }

    /// Blocks of the smallest rank.
    pub(crate) fn device_blocks_min(&self) -> usize {
        let blocks = self.plan.device_blocks(&self.trace);
        (0..self.plan.ranks).map(blocks).min().unwrap_or(0)
    }
}

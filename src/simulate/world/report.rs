//! Load reports of the engines, each second.

use super::{EngineLoad, Event, REPORT_INTERVAL_NS, World};
use crate::ranks::engine::{EngineRequests, ModelEngine};
use crate::series::TokenSample;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{LoadReading, TokenProgress};

impl World<'_> {
    pub(super) fn report(&mut self, now: u64) {
        if self.requests.left == 0 && !self.is_live() {
            return;
        }
        self.routers.fade(NanosSinceStart(now));
        let mut sample = TokenSample { at_ns: now, ..TokenSample::default() };
        for totals in self.ranks.engines.iter().map(ModelEngine::totals) {
            sample.cached += totals.cached_tokens;
            sample.computed += totals.computed_tokens;
        }
        self.ranks.samples.push(sample);
        for (at, engine) in self.ranks.engines.iter().enumerate() {
            let load =
                if self.plan.speed(at).declares_limit { engine.load() } else { engine.reported() };
            let EngineRequests { running, waiting, deferred } = load;
            let load = EngineLoad { at_ns: now, rank: at, running, waiting };
            self.ranks.loads.push(load);
            let kv_permille = Some(engine.used_permille());
            let progress = TokenProgress {
                first_tokens: Some(engine.totals().first_tokens),
                first_token_wait_ms: Some(self.ranks.waited_ns[at] / 1_000_000),
                ..TokenProgress::default()
            };
            let rest = LoadReading { progress, ..LoadReading::default() };
            let reading = LoadReading { running, waiting, deferred, kv_permille, ..rest };
            if let Some(rank) = RankIndex::try_from_index(at) {
                self.routers.report(rank, NanosSinceStart(now), reading);
            }
        }
        self.at(now.saturating_add(REPORT_INTERVAL_NS), Event::Reports);
        // A limit learned from a report may admit queued requests.
        self.serve(false, now);
    }
}

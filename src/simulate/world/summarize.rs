//! Figures of a finished run.

use super::World;
use crate::plan::SimPlan;
use crate::ranks::engine::ModelEngine;
use crate::summary::PolicySummary;

impl World<'_> {
    pub(super) fn summary(&self) -> PolicySummary {
        let mut summary = PolicySummary::default();
        summary.count(&self.requests.outcomes);
        let totals = || self.ranks.engines.iter().map(ModelEngine::totals);
        // Prompts are computed by the prefill ranks, or by all ranks.
        let SimPlan { ranks, prefill_ranks, .. } = *self.plan;
        let computing = if prefill_ranks > 0 { prefill_ranks } else { ranks };
        let computed = totals().take(computing).map(|totals| totals.computed_tokens);
        let cached: u64 = totals().map(|totals| totals.cached_tokens).sum();
        let prompts = self.trace.requests.iter().zip(&self.requests.outcomes);
        let served = prompts.filter(|(_, outcome)| outcome.ttft_ns.is_some());
        let tokens: u64 = served.map(|(request, _)| u64::from(request.input_tokens)).sum();
        summary.hits.hit_rate = cached as f64 / tokens.max(1) as f64;
        let loaded: u64 = totals().map(|totals| totals.loaded_tokens).sum();
        summary.hits.host_hit_rate = loaded as f64 / tokens.max(1) as f64;
        let pooled: u64 = totals().map(|totals| totals.pooled_tokens).sum();
        summary.hits.pool_hit_rate = pooled as f64 / tokens.max(1) as f64;
        summary.preempted = totals().map(|totals| totals.preempted).sum();
        let prompt_tokens = self.trace.mean_input_tokens();
        let work = computed
            .enumerate()
            .map(|(rank, tokens)| tokens as f64 * self.plan.slowness(rank, prompt_tokens));
        let (most, all) = work.fold((0.0, 0.0), |(most, all), work| (work.max(most), all + work));
        summary.load_max_over_mean = most / (all / computing.max(1) as f64).max(1.0);
        let busy: u64 = totals().map(|totals| totals.busy_ns).sum();
        let all = self.requests.past.arrival_ns.max(1) as f64 * ranks as f64;
        summary.busy = busy as f64 / all;
        summary
    }
}

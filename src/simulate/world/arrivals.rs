//! Arrival times of requests, by the trace and the load.

use super::{Event, World};
use crate::traces::trace::TurnStart;
use std::cmp::Reverse;

impl World<'_> {
    /// Scales the times of the trace so that the offered prompts match the load of the plan.
    pub(super) fn plan_arrivals(&mut self) {
        let work: u64 = self.requests.outcomes.iter().map(|outcome| outcome.alone_ns).sum();
        let capacity = self.plan.ranks as f64 * self.plan.load_percent / 100.0;
        let starts = self.trace.requests.iter().map(|request| match request.turn {
            TurnStart::At { ns } => Some(ns),
            TurnStart::After { .. } => None,
        });
        let starts: Vec<Option<u64>> = starts.collect();
        let first = starts.iter().flatten().min().copied().unwrap_or(0);
        let span = starts.iter().flatten().max().copied().unwrap_or(0) - first;
        let stretch = work as f64 / capacity / (span as f64).max(1.0);
        let step = coarse_step(&starts);
        let mut random = fastrand::Rng::with_seed(self.plan.seed);
        for (id, start) in starts.iter().enumerate() {
            match (start, self.trace.requests[id].turn) {
                (Some(start), _) => {
                    let start = start - first + random.u64(..step.max(1));
                    self.events.arrivals.push(((start as f64 * stretch) as u64, id as u32));
                }
                (None, TurnStart::After { request, .. }) => {
                    self.requests.followers[request as usize].push(id as u32);
                }
                (None, TurnStart::At { .. }) => {}
            }
        }
        self.events.arrivals.sort_unstable_by_key(|&arrival| Reverse(arrival));
        self.at(0, Event::Reports);
        self.exchange_messages(0);
    }
}

/// Resolution of the trace's timestamps: arrivals with equal timestamps have no known order.
fn coarse_step(starts: &[Option<u64>]) -> u64 {
    let mut times: Vec<u64> = starts.iter().flatten().copied().collect();
    times.sort_unstable();
    times.dedup();
    times.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(0)
}

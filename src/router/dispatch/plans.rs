//! The send plans of a fleet, each made when the first request needs it.

use super::SendPlan;
use forebay_base::RankIndex;
use forebay_fleet::worker::FleetSnapshot;
use forebay_prompt::parse::Endpoint;
use forebay_select::reaches;
use std::rc::Rc;

/// By rank: a plan for endpoints where the engine ignores a requested rank, a plan for the other
/// endpoints. Each shard has its own: a request that takes a plan writes to no cache line of
/// another core.
#[derive(Debug, Default)]
pub struct SendPlans {
    plans: Vec<[Option<Rc<SendPlan>>; 2]>,
    generation: u64,
}

impl SendPlans {
    /// The plan for a rank; `None` if the snapshot does not contain the rank.
    pub fn of(
        &mut self,
        fleet: &FleetSnapshot,
        rank: RankIndex,
        endpoint: Endpoint,
    ) -> Option<Rc<SendPlan>> {
        // All of them: a reload may change a worker's address or its key.
        if self.generation != fleet.generation {
            self.plans.clear();
            self.generation = fleet.generation;
        }
        if self.plans.len() < fleet.ranks.len() {
            self.plans.resize(fleet.ranks.len(), [None, None]);
        }
        let is_reached = reaches(fleet, rank, endpoint);
        let plan = self.plans.get_mut(rank.index())?.get_mut(usize::from(is_reached))?;
        if plan.is_none() {
            *plan = SendPlan::new(fleet, rank, endpoint).map(Rc::new);
        }
        debug_assert!(plan.as_ref().is_none_or(|plan| plan.rank == rank), "a plan of another rank");
        plan.clone()
    }
}

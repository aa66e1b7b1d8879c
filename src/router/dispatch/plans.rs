//! The send plans of one fleet, each made when the first request needs it.

use super::SendPlan;
use forebay_base::RankIndex;
use forebay_fleet::worker::FleetSnapshot;
use forebay_prompt::parse::Endpoint;
use forebay_select::reaches;
use std::rc::Rc;

/// By rank, one for the endpoints where the engine would not hear of the rank, and one for those
/// where it does. One per shard: a request that takes a plan writes to no word of another core.
#[derive(Debug, Default)]
pub struct SendPlans {
    plans: Vec<[Option<Rc<SendPlan>>; 2]>,
    generation: u64,
}

impl SendPlans {
    /// The plan for one rank; `None` if the snapshot does not know it.
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
        let is_told = reaches(fleet, rank, endpoint);
        let plan = self.plans.get_mut(rank.index())?.get_mut(usize::from(is_told))?;
        if plan.is_none() {
            *plan = SendPlan::new(fleet, rank, endpoint).map(Rc::new);
        }
        debug_assert!(plan.as_ref().is_none_or(|plan| plan.rank == rank), "a plan of another rank");
        plan.clone()
    }
}

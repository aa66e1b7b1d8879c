//! An engine is a single worker, however its address is spelled: requests use a single worker of
//! each engine. Decision 0109 has the rule.

use super::engine_seat::EngineSeat;
use super::{Fleet, KnownWorker, OperatorOrder};
use forebay_base::{RankIndex, WorkerIndex};
use forebay_config::{EngineAddress, EngineHost, EngineLikeness, WorkerUrl};
use forebay_discovery::Description;
use forebay_fleet::worker::WorkerState;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Two workers that are the same engine, or may be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedEngine {
    /// The worker that requests use.
    pub(crate) first: Arc<str>,
    /// The worker that gets no requests.
    pub(crate) second: Arc<str>,
    /// Address that both workers resolve to.
    pub(crate) address: SocketAddr,
    /// False for two names, which may be two engines behind a gateway.
    pub(crate) is_certain: bool,
}

impl KnownWorker {
    /// Address that the worker's name resolved to.
    fn resolved(&self) -> Option<SocketAddr> {
        (self.shown.address.port() != 0).then_some(self.shown.address)
    }

    /// Does the engine answer here, or is it kept idle by the operator's order?
    fn holds_engine(&self) -> bool {
        match self.order {
            OperatorOrder::Gone | OperatorOrder::Leave(..) => false,
            OperatorOrder::Drain(_) | OperatorOrder::Sleep(_) => self.description.is_some(),
            OperatorOrder::Serve => self.shown.state == WorkerState::Up,
        }
    }

    fn likeness(&self, other: &Self) -> EngineLikeness {
        let addresses = [self.resolved(), other.resolved()];
        self.engine.place.likeness(&other.engine.place, addresses)
    }

    /// Keys of the engine: two workers of the same engine share at least a key.
    fn engine_keys(&self) -> Vec<(EngineHost, u16)> {
        let EngineAddress { host, port, .. } = &self.engine.place;
        let loopback = || [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let resolved = self.resolved().map(|at| EngineHost::of(&at.ip().to_string()));
        let loopback = (*host == EngineHost::Localhost).then(loopback).into_iter().flatten();
        let hosts = [host.clone()].into_iter().chain(resolved);
        hosts.chain(loopback.map(EngineHost::Address)).map(|host| (host, *port)).collect()
    }
}

impl Fleet {
    /// Does another engine than before answer at the worker's address: of another type, or with
    /// other models? An equal restarted process is not seen here.
    pub(crate) fn is_other_engine(&self, worker: WorkerIndex, now: &Description) -> bool {
        let known = self.workers.get(worker.index());
        let before = known.and_then(|known| known.description.as_ref());
        before.is_some_and(|before| {
            before.dialect != now.dialect
                || before.root_model() != now.root_model()
                || before.listing.is_nothing() != now.listing.is_nothing()
        })
    }

    /// The ranks that the worker ever had.
    pub(crate) fn rank_indices(&self, worker: WorkerIndex) -> impl Iterator<Item = RankIndex> {
        let ranks = self.ranks.iter().enumerate();
        let of_worker = ranks.filter(move |(_, rank)| rank.worker == worker);
        of_worker.filter_map(|(index, _)| RankIndex::try_from_index(index))
    }

    /// Chooses the worker by which each engine is used. The chosen worker stays for as long as it
    /// answers at its address, or the operator keeps it idle. Then the first worker that answers is
    /// chosen.
    pub(super) fn choose_engine_users(&mut self) {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        let is_used = |place: &usize| self.workers.get(*place).is_some_and(|k| k.engine.is_used);
        order.sort_by_key(|place| !is_used(place));
        let mut holders: HashMap<(EngineHost, u16), Vec<usize>> = HashMap::new();
        for place in order {
            let Some(known) = self.workers.get(place) else { continue };
            let is_used = known.holds_engine() && self.holder(known, &holders).is_none();
            if is_used {
                let keys = known.engine_keys().into_iter();
                keys.for_each(|key| holders.entry(key).or_default().push(place));
            }
            if let Some(known) = self.workers.get_mut(place) {
                known.engine.is_used = is_used;
            }
        }
        // After all holders are known: a worker that has just lost its engine has a holder, too.
        for place in 0..self.workers.len() {
            let Some(known) = self.workers.get(place) else { continue };
            // The name of a worker that is gone may be the name of another engine by now.
            let is_other = !known.engine.is_used && known.order != OperatorOrder::Gone;
            let holder = self.holder(known, &holders).filter(|_| is_other);
            if let Some(known) = self.workers.get_mut(place) {
                known.engine.used_by = holder.and_then(WorkerIndex::try_from_index);
            }
        }
    }

    /// The worker, of `holders`, by which requests use the worker's engine.
    fn holder(
        &self,
        known: &KnownWorker,
        holders: &HashMap<(EngineHost, u16), Vec<usize>>,
    ) -> Option<usize> {
        let keys = known.engine_keys();
        let mut places = keys.iter().filter_map(|key| holders.get(key)).flatten().copied();
        let is_one = |other: &KnownWorker| known.likeness(other) == EngineLikeness::One;
        places.find(|place| self.workers.get(*place).is_some_and(is_one))
    }

    /// The rank by which requests use the engine of the worker's rank, if the engine has another
    /// worker.
    pub(super) fn used_as(&self, worker: &KnownWorker, number: u32) -> Option<RankIndex> {
        self.rank_index(worker.engine.used_by?, number)
    }

    /// Pairs of workers that are the same engine, or may be. Each pair is returned once.
    pub(crate) fn take_shared_engines(&mut self) -> Vec<SharedEngine> {
        let mut by_place: HashMap<(EngineHost, u16), Vec<usize>> = HashMap::new();
        let present = self.workers.iter().enumerate();
        for (place, known) in present.filter(|(_, known)| known.shown.state == WorkerState::Up) {
            if !matches!(known.order, OperatorOrder::Gone | OperatorOrder::Leave(..)) {
                let keys = known.engine_keys();
                keys.into_iter().for_each(|key| by_place.entry(key).or_default().push(place));
            }
        }
        let mut found = Vec::new();
        for places in by_place.into_values().filter(|places| places.len() > 1) {
            let of = |place: &usize| self.workers.get(*place).map(|known| (*place, known));
            let workers: Vec<_> = places.iter().filter_map(of).collect();
            let Some((first, user)) = workers.iter().min_by_key(|(_, k)| !k.engine.is_used) else {
                continue;
            };
            for (place, known) in workers.iter().filter(|(place, _)| place != first) {
                let likeness = user.likeness(known);
                let earlier = *first.min(place);
                let later = *first.max(place);
                let Some(earlier) = WorkerIndex::try_from_index(earlier) else { continue };
                let has_named = |seat: &EngineSeat| seat.named_with.contains(&earlier);
                let is_named = self.workers.get(later).is_some_and(|k| has_named(&k.engine));
                if likeness != EngineLikeness::Two && !is_named {
                    found.push((
                        later,
                        earlier,
                        SharedEngine {
                            first: Arc::clone(&user.shown.name),
                            second: Arc::clone(&known.shown.name),
                            address: user.shown.address,
                            is_certain: likeness == EngineLikeness::One,
                        },
                    ));
                }
            }
        }
        let mut named = Vec::new();
        for (later, earlier, shared) in found {
            let seat = self.workers.get_mut(later).map(|known| &mut known.engine);
            if let Some(seat) = seat.filter(|seat| !seat.named_with.contains(&earlier)) {
                seat.named_with.push(earlier);
                named.push(shared);
            }
        }
        named
    }

    /// Ranks, each with a rank of another worker of the same engine that has requests: the engine
    /// counts both. Compares only workers that leave or have lost the engine with all workers.
    pub(crate) fn busy_twins(
        &self,
        in_flight: impl Fn(RankIndex) -> u32,
    ) -> Vec<(RankIndex, RankIndex)> {
        let mut twins = Vec::new();
        for (place, rank) in self.ranks.iter().enumerate() {
            let Some(index) = RankIndex::try_from_index(place) else { continue };
            let Some(worker) = self.workers.get(rank.worker.index()) else { continue };
            let is_busy = in_flight(index) > 0;
            let is_leaving = matches!(worker.order, OperatorOrder::Leave(..));
            if worker.engine.is_used || !is_busy && !is_leaving {
                continue;
            }
            for (other, twin) in self.twins(rank.worker, rank.number) {
                if is_busy {
                    twins.push((twin, index));
                }
                if other.engine.is_used && in_flight(twin) > 0 {
                    twins.push((index, twin));
                }
            }
        }
        twins
    }

    /// Other workers of the worker's engine, each with its rank of that number.
    fn twins(
        &self,
        of: WorkerIndex,
        number: u32,
    ) -> impl Iterator<Item = (&KnownWorker, RankIndex)> {
        let worker = self.workers.get(of.index());
        let others = self.workers.iter().enumerate().filter(move |(place, _)| *place != of.index());
        others.filter_map(move |(place, other)| {
            let is_twin = other.likeness(worker?) == EngineLikeness::One;
            let index = WorkerIndex::try_from_index(place).filter(|_| is_twin)?;
            Some((other, self.rank_index(index, number)?))
        })
    }

    /// The present worker of the engine at `place`, as far as known without a lookup.
    pub(super) fn user_of(&self, place: &EngineAddress) -> Option<Arc<str>> {
        let is_present = |known: &&KnownWorker| {
            !matches!(known.order, OperatorOrder::Gone | OperatorOrder::Leave(..))
        };
        let is_it = |known: &&KnownWorker| {
            let addresses = [known.resolved(), None];
            known.engine.place.likeness(place, addresses) == EngineLikeness::One
        };
        let found = self.workers.iter().filter(is_present).find(is_it);
        found.map(|known| Arc::clone(&known.shown.name))
    }

    /// The present worker of the engine at a URL, however the URL spells its address.
    pub(crate) fn engine_at(&self, url: &str) -> Option<WorkerIndex> {
        let url = WorkerUrl::parse(url).ok()?;
        let name = self.user_of(&EngineAddress::of(&url, None))?;
        self.worker_named(&name)
    }

    /// Why a worker that answers gets no requests, if another worker is the same engine.
    pub(crate) fn engine_used_by(&self, worker: WorkerIndex) -> Option<&str> {
        let known = self.workers.get(worker.index())?;
        let user = self.workers.get(known.engine.used_by?.index())?;
        (known.shown.state == WorkerState::Up).then_some(&*user.shown.name)
    }
}

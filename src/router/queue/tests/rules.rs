//! A line against a plain model of its rules, over random steps.

use super::*;

/// The same rules in their simplest form, without indexes.
#[derive(Default)]
struct Naive {
    standing: Vec<Naively>,
    /// Tag and group, by tenant.
    rows: BTreeMap<u64, (u64, usize)>,
    /// Tokens served since the last oldest request left, by tenant.
    passed: BTreeMap<u64, u64>,
    clocks: [u64; CLASSES],
    next_number: u64,
    looks: u64,
    passed_over: Vec<Destination>,
}

#[derive(Clone)]
struct Naively {
    waiter: Waiter,
    number: u64,
    promoted: usize,
    target: Option<RankIndex>,
    /// Number of the last scan that examined the request.
    looked: u64,
}

/// Requests without room in a turn of the naive line.
#[derive(Default)]
struct Misses {
    requests: Vec<u64>,
    dests: Vec<Destination>,
    passed_over: Vec<Destination>,
}

impl Misses {
    fn is_closed(&self, dest: Destination) -> bool {
        let endless = dest.target.is_none() && dest.is_narrow;
        let is_tired = !endless && self.dests.iter().filter(|of| **of == dest).count() >= 8;
        is_tired || self.passed_over.contains(&dest)
    }
}

impl Naively {
    fn requested(&self) -> usize {
        usize::from(self.waiter.facts.caller.class.min(QUEUE_CLASSES - 1))
    }

    fn tenant(&self) -> u64 {
        self.waiter.facts.caller.tenant
    }

    fn dest(&self) -> Destination {
        FlowKey::of(&self.waiter).aimed(self.target).part.dest
    }

    fn order(&self) -> (u64, NanosSinceStart, u64) {
        (tokens_to_compute(&self.waiter), self.waiter.facts.arrived_at, self.number)
    }
}

impl Naive {
    fn push(&mut self, waiter: Waiter) {
        let tenant = waiter.facts.caller.tenant;
        // A row that was empty starts at the clock.
        let is_new = !self.standing.iter().any(|one| one.tenant() == tenant);
        let row = self.rows.entry(tenant).or_default();
        if is_new {
            row.0 = row.0.max(self.clocks[row.1]);
        }
        let promoted = usize::from(waiter.facts.caller.class.min(QUEUE_CLASSES - 1));
        let number = self.next_number;
        let target = waiter.prompt.target;
        self.standing.push(Naively { waiter, number, promoted, target, looked: 0 });
        self.next_number += 1;
        self.regroup(tenant);
    }

    /// A row joins the group of its best requested class, as far ahead of the clock as before.
    fn regroup(&mut self, tenant: u64) {
        let of = self.standing.iter().filter(|one| one.tenant() == tenant);
        let Some(best) = of.map(Naively::requested).min() else { return };
        let (tag, group) = self.rows[&tenant];
        let tag = i128::from(self.clocks[best]) + i128::from(tag) - i128::from(self.clocks[group]);
        self.rows.insert(tenant, (u64::try_from(tag.max(0)).unwrap(), best));
    }

    fn remove(&mut self, slot: u32) -> bool {
        let index = self.standing.iter().position(|one| one.waiter.ticket.slot == slot);
        let Some(index) = index else { return false };
        let tenant = self.standing[index].tenant();
        let is_oldest = self.oldest(tenant).is_some_and(|one| one.waiter.ticket.slot == slot);
        if is_oldest {
            self.passed.remove(&tenant);
        }
        self.standing.remove(index);
        self.regroup(tenant);
        true
    }

    fn promote(&mut self, now: u64) {
        for one in &mut self.standing {
            let waited = now.saturating_sub(one.waiter.facts.arrived_at.0);
            let steps = waited / u64::try_from(AFTER.as_nanos()).unwrap();
            one.promoted = one.requested().saturating_sub(usize::try_from(steps).unwrap());
        }
    }

    fn levels(&self) -> [usize; CLASSES] {
        std::array::from_fn(|class| {
            let at_least = self.standing.iter().filter(|one| one.requested() >= class);
            at_least.map(|one| one.promoted).min().unwrap_or(CLASSES)
        })
    }

    fn look(&mut self, slot: u32, target: Option<RankIndex>) {
        self.looks += 1;
        let looks = self.looks;
        let one = self.standing.iter_mut().find(|one| one.waiter.ticket.slot == slot).unwrap();
        one.looked = looks;
        one.target = target;
    }

    fn oldest(&self, tenant: u64) -> Option<&Naively> {
        let of_row = self.standing.iter().filter(|one| one.tenant() == tenant);
        of_row.min_by_key(|one| (one.waiter.facts.arrived_at, one.number))
    }

    /// The first of a row, and is it overdue?
    fn first(
        &self,
        tenant: u64,
        takes_part: &dyn Fn(&Naively) -> bool,
        misses: &Misses,
        (ranks, overtaken_max): (&RankSet, u32),
    ) -> Option<(Naively, bool)> {
        let oldest = self.oldest(tenant)?;
        let most = oldest.order().0.max(1) * u64::from(overtaken_max);
        let passed = self.passed.get(&tenant).copied().unwrap_or(0);
        if passed >= most && takes_part(oldest) && !misses.requests.contains(&oldest.number) {
            return Some((oldest.clone(), true));
        }
        let row = || self.standing.iter().filter(|one| one.tenant() == tenant);
        let best = row().map(Naively::requested).min()?;
        let is_open = |one: &Naively| {
            let same = row().filter(|other| {
                (other.dest(), other.requested(), other.promoted)
                    == (one.dest(), one.requested(), one.promoted)
            });
            let least = same.map(|other| other.order().0).min().unwrap();
            !misses.is_closed(one.dest()) && ranks.is_open(one.dest(), least)
        };
        let free = row().filter(|one| {
            takes_part(one) && !misses.requests.contains(&one.number) && is_open(one)
        });
        let first = free.min_by_key(|one| (one.promoted.max(best), one.order()))?;
        Some((first.clone(), false))
    }

    fn serve(&mut self, rules: Rules, ranks: &mut RankSet) {
        self.promote(rules.now.0);
        let mut by_look: Vec<_> =
            self.standing.iter().map(|one| (one.looked, one.waiter.ticket)).collect();
        by_look.sort_unstable();
        for (_, ticket) in by_look.into_iter().take(8) {
            let of = |one: &&Naively| one.waiter.ticket == ticket;
            let one = self.standing.iter().find(of).unwrap();
            self.look(ticket.slot, ranks.aimed(&one.waiter, one.target));
        }
        let levels = self.levels();
        let passed_over = std::mem::take(&mut self.passed_over);
        let mut misses = Misses { passed_over, ..Misses::default() };
        for level in (0..CLASSES).filter(|level| levels.contains(level)) {
            while misses.requests.len() < 32 {
                let takes_part = |one: &Naively| levels[one.requested()] <= level;
                let rows = self.rows.iter().filter_map(|(&tenant, &(tag, group))| {
                    let ranks = (&*ranks, rules.overtaken_max);
                    let (first, is_overdue) = self.first(tenant, &takes_part, &misses, ranks)?;
                    // A row ranks with its best requested class.
                    let takes_turns = levels[group] <= level;
                    let ahead = i128::from(tag) - i128::from(self.clocks[group]);
                    takes_turns.then_some(((ahead, tenant), first, is_overdue))
                });
                let Some((_, first, is_overdue)) = rows.min_by_key(|(at, ..)| *at) else { break };
                self.place(&first, is_overdue, (level, &levels), &mut misses, (rules, ranks));
            }
        }
        if misses.requests.len() >= 32 {
            self.passed_over = [misses.passed_over, misses.dests].concat();
        }
    }

    fn place(
        &mut self,
        first: &Naively,
        is_overdue: bool,
        (level, levels): (usize, &[usize; CLASSES]),
        misses: &mut Misses,
        (rules, ranks): (Rules, &mut RankSet),
    ) {
        let waiter = &first.waiter;
        let slot = first.waiter.ticket.slot;
        if waiter.facts.deadline <= rules.now {
            self.remove(slot);
            return;
        }
        match ranks.place(waiter, first.target, &Backlog::default()) {
            PlaceResult::Bound => {
                let passed = self.passed.get(&first.tenant()).copied().unwrap_or(0);
                self.passed.insert(first.tenant(), passed + first.order().0);
                let row = self.rows.get_mut(&first.tenant()).unwrap();
                let ahead = row.0.saturating_sub(self.clocks[row.1]);
                row.0 += cost(waiter) * 1_000 / u64::from(waiter.facts.caller.weight.max(1));
                for (clock, _) in self.clocks.iter_mut().zip(levels).filter(|(_, of)| **of <= level)
                {
                    *clock += ahead;
                }
                self.remove(slot);
            }
            PlaceResult::Waits(target) => {
                ranks.held_back.extend(target.filter(|_| is_overdue));
                misses.requests.push(first.number);
                misses.dests.push(first.dest());
                self.look(slot, target);
            }
            PlaceResult::Never => panic!("these ranks are always there"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join {
        class: u8,
        tenant: u64,
        bytes: u64,
        held: u32,
        tried: u8,
        late: u64,
        patience: Option<u64>,
        target: Option<u16>,
    },
    Leave(usize),
    Serve([u8; 4], [u64; 4], u32),
    Pass(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let join = (
        0..6_u8,
        0..3_u64,
        0..2_000_u64,
        0..2_500_u32,
        0..8_u8,
        0..50_u64,
        prop::option::of(1..200_u64),
        prop::option::weighted(0.8, 0..RANKS),
    );
    let join =
        join.prop_map(|(class, tenant, bytes, held, tried, late, patience, target)| Op::Join {
            class,
            tenant,
            bytes,
            held,
            tried: tried.saturating_sub(4),
            late,
            patience,
            target,
        });
    let places = [0..3_u8, 0..2, 0..2, 0..3];
    let tokens = [0..900_u64, 0..300, 0..2_000, 0..900];
    prop_oneof![
        8 => join,
        1 => (0..20_usize).prop_map(Op::Leave),
        3 => (places, tokens, 0..12_u32)
            .prop_map(|(places, tokens, turned)| Op::Serve(places, tokens, turned)),
        3 => (0..90_u64).prop_map(Op::Pass),
    ]
}

fn joining(op: &Op, slot: u32, now: u64) -> Option<Waiter> {
    let &Op::Join { class, tenant, bytes, held, tried, late, patience, target } = op else {
        return None;
    };
    let tried = (0..2_u16).filter(|rank| tried >> rank & 1 == 1).map(RankIndex).collect();
    Some(waiter_with(slot, |waiter| {
        waiter.facts.caller.class = class;
        waiter.facts.caller.tenant = tenant;
        waiter.prompt.bytes = bytes;
        let bytes = held.min(u32::try_from(bytes).unwrap());
        waiter.prompt.holdings = vec![Holding { rank: RankIndex(1), bytes }];
        waiter.facts.caller.weight = [1, 3, 0][usize::try_from(tenant).unwrap()];
        waiter.facts.arrived_at = NanosSinceStart(now.saturating_sub(late));
        waiter.joined_at = NanosSinceStart(now);
        waiter.facts.deadline = patience.map_or(NEVER, |patience| NanosSinceStart(now + patience));
        waiter.movable = tenant != 1;
        waiter.prompt.target = target.map(RankIndex);
        waiter.facts.tried = tried;
    }))
}

proptest! {
    #[test]
    fn a_line_serves_by_its_rules(ops in prop::collection::vec(any_op(), 1..160)) {
        let mut line = Line::new(AFTER);
        let mut naive = Naive::default();
        let mut now = 1_000_u64;
        let mut slot = 0;
        for op in ops {
            match &op {
                Op::Join { .. } => {
                    let waiter = joining(&op, slot, now).unwrap();
                    slot += 1;
                    naive.push(waiter.clone());
                    line.push(Box::new(waiter));
                }
                Op::Leave(index) => {
                    let left =
                        naive.standing.get(*index).map_or(u32::MAX, |one| one.waiter.ticket.slot);
                    let removed = line.remove(ticket(left));
                    prop_assert_eq!(
                        removed.map(|waiter| waiter.ticket.slot),
                        naive.remove(left).then_some(left)
                    );
                    prop_assert!(line.remove(ticket(left)).is_none(), "once");
                }
                Op::Serve(places, tokens, turned) => {
                    let mut here = RankSet::new(*places, *tokens, *turned);
                    let mut there = here.clone();
                    line.serve(rules(now, AFTER), &mut here);
                    naive.serve(rules(now, AFTER), &mut there);
                    prop_assert_eq!(&here.served, &there.served);
                    prop_assert_eq!(&here.held_back, &there.held_back);
                    prop_assert!(here.aims <= 8 && here.places_looks <= 32 + here.served.len());
                    prop_assert!(line.promote_at().0 > now, "the next look is in the future");
                }
                Op::Pass(time) => now += time,
            }
            prop_assert_eq!(line.len(), naive.standing.len());
            let movable = naive.standing.iter().filter(|one| one.waiter.movable);
            let oldest = movable.map(|one| one.waiter.joined_at).min();
            prop_assert_eq!(line.oldest_movable(), oldest);
            // The backlog of a rank is the sum of the requests that wait for it.
            for rank in (0..RANKS).map(RankIndex) {
                let there = naive.standing.iter().filter(|one| one.target == Some(rank));
                let mut sum = WaitingSum::default();
                there.for_each(|one| {
                    let one = waiting(&one.waiter);
                    sum.requests += one.requests;
                    sum.tokens += one.tokens;
                    sum.held_tokens += one.held_tokens;
                });
                prop_assert_eq!(line.backlog().all(rank), sum);
            }
            for one in &naive.standing {
                prop_assert_eq!(line.target(one.waiter.ticket), Some(one.target));
            }
        }
        // All that are left leave with the room, and only once.
        let left = line.len();
        let all = serve(&mut line, now, |waiter| waiter.facts.deadline.0 > now);
        prop_assert!(all.len() <= left && line.is_empty());
    }

    /// Two tenants with requests always waiting get tokens by their weights, up to a request each.
    #[test]
    fn shares_are_weights(
        sizes in prop::collection::vec((1..4_000_u64, 1..4_000_u64), 40..80),
        weights in prop::sample::select(vec![(1_u32, 3_u32), (1, 1), (2, 7)]),
    ) {
        let mut line = Line::new(AFTER);
        let mut cost_of = BTreeMap::new();
        let mut slot = 0;
        for (turn, (left, right)) in sizes.iter().enumerate() {
            for (tenant, bytes, weight) in [(0, *left, weights.0), (1, *right, weights.1)] {
                // The first asks for three models in turn, which makes no difference.
                let model =
                    ModelIndex(if tenant == 0 { u16::try_from(turn % 3).unwrap() } else { 0 });
                let waiter = waiter_with(slot, |waiter| {
                    waiter.facts.caller.tenant = tenant;
                    waiter.facts.caller.weight = weight;
                    waiter.facts.model = model;
                    waiter.prompt.bytes = bytes;
                });
                cost_of.insert(slot, (tenant, cost(&waiter)));
                line.push(Box::new(waiter));
                slot += 1;
            }
        }
        let mut got = [0_u64; 2];
        let mut left = [sizes.len(); 2];
        while left.iter().all(|&left| left > 0) {
            let served = serve_some(&mut line, 0, 1);
            let (tenant, tokens) = cost_of[&served[0]];
            got[usize::try_from(tenant).unwrap()] += tokens;
            left[usize::try_from(tenant).unwrap()] -= 1;
            let a = got[0] * 1_000 / u64::from(weights.0);
            let b = got[1] * 1_000 / u64::from(weights.1);
            let one_each = 1_000_000 / u64::from(weights.0) + 1_000_000 / u64::from(weights.1);
            prop_assert!(a.abs_diff(b) <= one_each + 2, "{got:?} by {weights:?}");
        }
    }

    /// A tenant with a single request waiting, now and then none, earns no credit against a tenant
    /// that always waits.
    #[test]
    fn coming_and_going_earns_no_credit(present in prop::collection::vec(any::<bool>(), 50..150)) {
        let mut line = Line::new(AFTER);
        for slot in 0..400 {
            line.push(Box::new(waiter(slot)));
        }
        let mut slot = 1_000;
        let mut waits = false;
        let mut steady = 0_usize;
        let mut visits = 0_usize;
        let mut since = (0, 0);
        for comes in present {
            if comes && !waits {
                line.push(Box::new(waiter_with(slot, |waiter| {
                    waiter.facts.caller.tenant = 1;
                })));
                slot += 1;
                waits = true;
                // Its share is measured from here on: the time before earns no credit.
                since = (steady, visits);
            }
            for served in serve_some(&mut line, 0, 1) {
                if served >= 1_000 {
                    visits += 1;
                    waits = false;
                } else {
                    steady += 1;
                }
            }
            prop_assert!(visits - since.1 <= steady - since.0 + 1);
        }
        prop_assert!(visits <= steady + 1, "{visits} visits, {steady} others");
    }
}

//! What a greedy tenant costs the other tenants: the machines that ship, in virtual time, with the
//! defaults. The table of `docs/concepts/back-pressure.md` is printed by
//! `cargo test -p forebay-router --test sim a_greedy_tenant -- --nocapture`.

use super::stage::{Ask, Stage, Waits};
use fastrand::Rng;
use forebay_base::{ModelIndex, NanosSinceStart, PoolIndex};
use forebay_board::account::Lease;
use forebay_config::QueueMode;
use forebay_fleet::tenant::TenantPart;
use forebay_mailbox::{Ticket, Verdict};
use forebay_router::request::{Action, NewRequest};
use std::collections::BTreeMap;

/// Time that an answer takes on average: from half to one and a half of it.
const SERVICE_NS: u64 = 200_000_000;
/// Requests that run at once, on all ranks.
const PLACES: u32 = 8;
const SERVICES: u64 = 100;
const GREEDY: u64 = 0;
/// More than a queue holds. What is refused comes back ten times a service.
const GREEDY_REQUESTS: u64 = 1_100;

/// One table row.
struct Case {
    mode: QueueMode,
    tenants: u64,
    is_streamed: bool,
    greedy_class: u8,
}

#[derive(Default)]
struct Figures {
    served: u64,
    refused: u64,
    waited_ns: u64,
    waited_ns_max: u64,
}

enum Event {
    Ask(u64),
    FirstByte(u64),
    End(u64, u64),
}

struct Scene {
    stage: Stage,
    case: Case,
    random: Rng,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    running: BTreeMap<u64, Lease>,
    waiting: BTreeMap<Ticket, (u64, Waits, NanosSinceStart)>,
    greedy: Figures,
    others: Figures,
}

impl Scene {
    fn new(case: Case) -> Self {
        let places = [PLACES / 2; 2];
        let stage = Stage::new(case.mode, &places, &[&[0, 1]]);
        let mut scene = Self {
            stage,
            case,
            random: Rng::with_seed(35),
            events: BTreeMap::new(),
            next: 0,
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            greedy: Figures::default(),
            others: Figures::default(),
        };
        (0..GREEDY_REQUESTS).for_each(|_| scene.after(0, Event::Ask(GREEDY)));
        for tenant in 1..scene.case.tenants {
            // Once the requests of the greedy tenant have waited `queue.promote_after`.
            let begins = 15 * SERVICE_NS + scene.thinking_ns();
            scene.after(begins, Event::Ask(tenant));
        }
        scene
    }

    /// All others together ask for half of the places, however many they are.
    fn thinking_ns(&mut self) -> u64 {
        let others = self.case.tenants - 1;
        let mean_ns = (others * SERVICE_NS * 2 / u64::from(PLACES)).saturating_sub(SERVICE_NS);
        self.random.u64(..2 * mean_ns.max(SERVICE_NS / 4))
    }

    fn after(&mut self, delay_ns: u64, event: Event) {
        self.next += 1;
        self.events.insert((self.stage.now.0 + delay_ns, self.next), event);
    }

    fn figures(&mut self, tenant: u64) -> &mut Figures {
        if tenant == GREEDY { &mut self.greedy } else { &mut self.others }
    }

    fn run(&mut self) {
        let end = self.stage.now.0 + SERVICES * SERVICE_NS;
        while let Some(((at, _), event)) = self.events.pop_first().filter(|((at, _), _)| *at < end)
        {
            self.stage.now = NanosSinceStart(at);
            match event {
                Event::Ask(tenant) => self.ask(tenant),
                Event::FirstByte(id) => {
                    let now = self.stage.now;
                    self.running.get_mut(&id).unwrap().prefill_done(|| now);
                }
                Event::End(id, tenant) => {
                    drop(self.running.remove(&id));
                    let Stage { stages, fleet, now, .. } = &mut self.stage;
                    stages.relieve_model(fleet, ModelIndex(0), *now);
                    let pause = if tenant == GREEDY { 0 } else { self.thinking_ns() };
                    self.after(pause, Event::Ask(tenant));
                }
            }
            for (ticket, verdict) in self.stage.look() {
                self.granted(ticket, verdict);
            }
        }
    }

    fn ask(&mut self, tenant: u64) {
        let class = if tenant == GREEDY { self.case.greedy_class } else { 1 };
        let ask = Ask { tenant, class, ..self.stage.any() };
        let mut new_request = NewRequest::of(TenantPart { tenant, weight: 1, is_only: false });
        let Stage { stages, fleet, now, .. } = &mut self.stage;
        if stages.let_in(fleet, PoolIndex(0), *now, &mut new_request, 0).is_err() {
            return self.refused(tenant);
        }
        let (flow, action) = self.stage.ask(&ask);
        match action {
            Action::Send(chosen) => self.serve(tenant, chosen.lease, 0),
            Action::Wait(..) => {
                let waits = self.stage.join((flow, action));
                let now = self.stage.now;
                self.waiting.insert(waits.ticket, (tenant, waits, now));
            }
            Action::End(_) => self.refused(tenant),
        }
    }

    fn refused(&mut self, tenant: u64) {
        self.figures(tenant).refused += 1;
        self.after(SERVICE_NS / 10, Event::Ask(tenant));
    }

    fn granted(&mut self, ticket: Ticket, verdict: Verdict) {
        let (tenant, waits, since) = self.waiting.remove(&ticket).unwrap();
        let (flow, action) = self.stage.tell(waits, verdict);
        match action {
            Action::Send(chosen) => {
                let waited_ns = self.stage.now.since(since);
                self.serve(tenant, chosen.lease, waited_ns);
            }
            // Sent on: mode `endpoint`.
            Action::Wait(..) => {
                let waits = self.stage.join((flow, action));
                self.waiting.insert(waits.ticket, (tenant, waits, since));
            }
            Action::End(stop) => panic!("{stop:?}"),
        }
    }

    fn serve(&mut self, tenant: u64, lease: Lease, waited_ns: u64) {
        let figures = self.figures(tenant);
        figures.served += 1;
        figures.waited_ns += waited_ns;
        figures.waited_ns_max = figures.waited_ns_max.max(waited_ns);
        let id = self.next;
        self.running.insert(id, lease);
        if self.case.is_streamed {
            self.after(SERVICE_NS / 10, Event::FirstByte(id));
        }
        let length_ns = self.random.u64(SERVICE_NS / 2..SERVICE_NS * 3 / 2);
        self.after(length_ns, Event::End(id, tenant));
    }
}

fn services(time_ns: u64) -> f64 {
    time_ns as f64 / SERVICE_NS as f64
}

#[test]
fn a_greedy_tenant_costs_the_others_two_services_at_most() {
    println!(
        "| tenants | answers | served: greedy | others | refused: greedy | others | wait | most |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for mode in [QueueMode::Pool, QueueMode::Endpoint] {
        for tenants in [2, 10, 100] {
            for (is_streamed, greedy_class) in [(true, 1), (false, 1), (false, 3)] {
                let mut scene = Scene::new(Case { mode, tenants, is_streamed, greedy_class });
                scene.run();
                let Scene { greedy, others, .. } = scene;
                let mean = services(others.waited_ns) / others.served as f64;
                let most = services(others.waited_ns_max);
                let answers = if is_streamed { "streams" } else { "whole" };
                if mode == QueueMode::Pool && greedy_class == 1 {
                    println!(
                        "| {tenants} | {answers} | {} | {} | {} | {} | {mean:.2} | {most:.2} |",
                        greedy.served, others.served, greedy.refused, others.refused
                    );
                }
                let case = format!("{mode:?}, {tenants} tenants, {answers}, class {greedy_class}");
                // Of several queues, no request knows which is served first.
                let bound = if mode == QueueMode::Pool { 2.0 } else { 3.0 };
                assert!(most <= bound, "{case}: {most} services");
                assert_eq!(others.refused, 0, "{case}");
                assert!(others.served >= SERVICES / 3, "{case}: {}", others.served);
                assert!(greedy.served >= 3 * SERVICES, "{case}: no place is left unused");
            }
        }
    }
}

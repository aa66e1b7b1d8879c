//! The clients: requests in a closed loop or on a fixed schedule, and the answers to them. In an
//! open loop an answer's latency counts from the moment its request was *due*, so that a stall is
//! seen by all requests behind it. An event's delay counts from when it was due at the worker.

use crate::command::{Pace, Plan};
use crate::prompts::{Kind, Pool, Pools};
use crate::report::{Sample, report};
use crate::window::Spent;
use forebay_bench_rig::{Connection, Event, EventReader, Part, Rig, StreamPlan, unary_body};
use serde_json::Value;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// A run without an answer or event for so long has failed.
const PATIENCE_NS: u64 = 20_000_000_000;
/// The first request is due so long after the connections.
const LEAD_NS: u64 = 2_000_000;
/// Connections opened before the workers take theirs.
const CONNECT_BATCH: u32 = 64;

/// What answers have to be.
enum Expect {
    Anything,
    Body(Vec<u8>),
    Events(Event),
}

struct Client {
    connection: Connection,
    due_ns: u64,
    is_busy: bool,
    seen: Seen,
}

/// How much of the answer was as expected.
#[derive(Default)]
struct Seen {
    bytes: usize,
    reader: EventReader,
    events: u32,
    is_wrong: bool,
}

struct Load<'a> {
    plan: &'a Plan,
    pool: Rc<Pool>,
    expect: Expect,
    clients: Vec<Client>,
    idle: VecDeque<u32>,
    begin_ns: u64,
    warm_until_ns: u64,
    end_ns: u64,
    progress_ns: u64,
    /// Requests sent.
    next: u64,
    in_flight: u64,
    sample: Sample,
    before: Option<Spent>,
}

/// Runs the plan to its end.
pub(crate) fn run(rig: &mut Rig, pools: &mut Pools, plan: &Plan) -> io::Result<Value> {
    let is_stream = plan.events > 0;
    let pool = pools.pool(Kind { bytes: plan.bytes, prompts: plan.prompts, is_stream })?;
    if pool.requests.is_empty() || (plan.pace == Pace::Open && plan.rate == 0) {
        return Err(io::Error::other("no prompts, or an open loop without a rate"));
    }
    let interval_ns = plan.interval_us * 1_000;
    let stream = is_stream.then_some(StreamPlan { interval_ns, events: plan.events });
    rig.stub.expect(plan.bytes, stream);
    let mut load = Load::connect(rig, plan, pool)?;
    let driven = load.drive(rig, pools);
    let counts = rig.stub.counts();
    rig.stub.expect(0, None);
    driven?;
    Ok(report(&load.sample, counts))
}

impl<'a> Load<'a> {
    fn connect(rig: &mut Rig, plan: &'a Plan, pool: Rc<Pool>) -> io::Result<Self> {
        let mut clients = Vec::new();
        for number in 0..plan.connections {
            let address = ([127, 0, 0, 1], plan.port).into();
            let connection = Connection::open(address, &rig.poller, number)?;
            let seen = Seen::default();
            clients.push(Client { connection, due_ns: 0, is_busy: false, seen });
            if number.is_multiple_of(CONNECT_BATCH) {
                rig.stub.accept(&rig.poller)?;
            }
        }
        let begin_ns = rig.now_ns() + LEAD_NS;
        let warm_until_ns = begin_ns + plan.warm_ms * 1_000_000;
        Ok(Self {
            plan,
            pool,
            expect: match (plan.pace, plan.events) {
                (Pace::Fill, _) => Expect::Anything,
                (_, 0) => Expect::Body(unary_body()),
                _ => Expect::Events(Event::new()),
            },
            clients,
            idle: (0..plan.connections).collect(),
            begin_ns,
            warm_until_ns,
            end_ns: match plan.pace {
                Pace::Fill => u64::MAX,
                _ => warm_until_ns + plan.run_ms * 1_000_000,
            },
            progress_ns: begin_ns,
            next: 0,
            in_flight: 0,
            sample: Sample::new()?,
            before: None,
        })
    }

    fn drive(&mut self, rig: &mut Rig, pools: &mut Pools) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let now = rig.now_ns();
            self.measure(now);
            self.send_due(rig, pools, now)?;
            if self.in_flight == 0 && self.due_ns(now).is_none() {
                // A fill is measured to its last answer.
                self.end_ns = self.end_ns.min(now);
                self.measure(now);
                return Ok(());
            }
            if now > self.progress_ns.saturating_add(PATIENCE_NS) {
                let missing = self.in_flight;
                return Err(io::Error::other(format!("{missing} requests without an answer")));
            }
            ready.clear();
            let is_awake = self.in_flight > 0 && !self.plan.asleep;
            let mut is_busy = rig.turn(is_awake, self.wake_ns(now), &mut ready)?;
            for number in &ready {
                self.receive(rig, pools, *number)?;
                is_busy = true;
            }
            if is_busy && is_awake && self.sample.is_measured {
                self.sample.busy_ns += rig.now_ns().saturating_sub(now);
            }
        }
    }

    /// Begins and ends the measured part.
    fn measure(&mut self, now: u64) {
        if self.before.is_none() && now >= self.warm_until_ns {
            self.before = Some(Spent::read(&self.plan.watch, &self.plan.own));
            self.sample.is_measured = true;
            self.sample.begin_ns = now;
        }
        if self.sample.is_measured && now >= self.end_ns {
            self.sample.is_measured = false;
            self.sample.run_ns = now.saturating_sub(self.sample.begin_ns);
            let spent = Spent::read(&self.plan.watch, &self.plan.own);
            self.sample.spent = spent.since(self.before.unwrap_or_default());
        }
    }

    /// When the next request is due; `None` when there is none.
    fn due_ns(&self, now: u64) -> Option<u64> {
        let plan = self.plan;
        let prompts = u64::try_from(plan.prompts).unwrap_or(u64::MAX);
        let is_over =
            if plan.pace == Pace::Fill { self.next >= prompts } else { now >= self.end_ns };
        let after_begin_ns = match plan.pace {
            Pace::Open => self.next * 1_000_000_000 / plan.rate,
            // Streams begin spread over the time of one, so that events come at an even rate.
            Pace::Closed if self.next < u64::from(plan.connections) => {
                let stream_ns = plan.interval_us * 1_000 * u64::from(plan.events);
                self.next * stream_ns / u64::from(plan.connections)
            }
            Pace::Closed | Pace::Fill => 0,
        };
        (!is_over).then_some(self.begin_ns + after_begin_ns)
    }

    /// Next moment at which something has to be done without any socket.
    fn wake_ns(&self, now: u64) -> u64 {
        let due = if self.idle.is_empty() { None } else { self.due_ns(now) };
        let times = [due, Some(self.warm_until_ns), Some(self.end_ns)];
        times.into_iter().flatten().filter(|time| *time > now).min().unwrap_or(u64::MAX)
    }

    fn send_due(&mut self, rig: &Rig, pools: &mut Pools, now: u64) -> io::Result<()> {
        while let Some(due) = self.due_ns(now).filter(|due| *due <= now) {
            let Some(number) = self.idle.pop_front() else { return Ok(()) };
            let index = usize::try_from(self.next).unwrap_or(0) % self.pool.requests.len();
            let request = if self.plan.distinct {
                pools.distinct(&self.pool, index)
            } else {
                self.pool.requests[index].clone()
            };
            let client = &mut self.clients[usize::try_from(number).unwrap_or(0)];
            client.due_ns = if self.plan.pace == Pace::Open { due } else { now };
            if self.sample.is_measured {
                self.sample.late.saturating_record(now - client.due_ns);
            }
            client.is_busy = true;
            client.connection.send(&rig.poller, request)?;
            self.next += 1;
            self.in_flight += 1;
        }
        Ok(())
    }

    fn receive(&mut self, rig: &mut Rig, pools: &mut Pools, number: u32) -> io::Result<()> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
        let Client { connection, seen, .. } = &mut *client;
        let sample = &mut self.sample;
        let expect = &self.expect;
        let clock = rig.clock;
        // The moment after the read, for all that it gave.
        let mut read_ns = None;
        let is_done = connection.receive(&rig.poller, &mut rig.scratch, |part| {
            let now = *read_ns.get_or_insert_with(|| clock.now().0);
            if let Part::Body(part) = part {
                seen.take(part, expect, now, sample);
            }
        })?;
        let now = read_ns.unwrap_or_else(|| clock.now().0);
        self.progress_ns = now;
        if !is_done {
            return Ok(());
        }
        if !client.is_busy {
            return Err(io::Error::other("an answer without a request"));
        }
        client.is_busy = false;
        let is_right = client.seen.is_complete(&self.expect, self.plan.events);
        self.sample.answer(client.connection.status(), is_right, now.saturating_sub(client.due_ns));
        client.seen = Seen::default();
        self.in_flight -= 1;
        self.idle.push_back(number);
        self.send_due(rig, pools, now)
    }
}

impl Seen {
    /// Compares a part of an answer's body.
    fn take(&mut self, part: &[u8], expect: &Expect, now: u64, sample: &mut Sample) {
        match expect {
            Expect::Anything => {}
            Expect::Body(body) => {
                self.is_wrong |= body.get(self.bytes..self.bytes + part.len()) != Some(part);
            }
            Expect::Events(event) => self.reader.take(part, event, |due_ns| {
                match due_ns {
                    Some(due_ns) => sample.event(now.saturating_sub(due_ns)),
                    None => self.is_wrong = true,
                }
                self.events += 1;
            }),
        }
        self.bytes += part.len();
    }

    fn is_complete(&self, expect: &Expect, events: u32) -> bool {
        let is_all = match expect {
            Expect::Anything => true,
            Expect::Body(body) => self.bytes == body.len(),
            Expect::Events(_) => self.events == events && self.reader.has_ended(),
        };
        is_all && !self.is_wrong
    }
}

//! Unary requests on a fixed schedule. The schedule does not wait for answers, and an answer's
//! latency counts from the moment its request was *due*: a stall of the server delays the requests
//! behind it and is seen in all of them (no coordinated omission).

use crate::client::Client;
use forebay_bench_rig::{CpuMeter, Rig};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// Answers may take this long after the last request was due.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;
/// The first request is due this long after the start.
pub(crate) const LEAD_NS: u64 = 2_000_000;

/// A loop with a worker on a free port.
pub(crate) fn rig() -> io::Result<Rig> {
    let mut rig = Rig::new()?;
    rig.stub.listen(&rig.poller, &[0])?;
    Ok(rig)
}

/// Where load goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// Threads of the proxy; `None` when there is none.
    pub(crate) cpu: Option<CpuMeter>,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnaryPlan<'a> {
    /// Whole requests, sent in turn.
    pub(crate) requests: &'a [Rc<[u8]>],
    pub(crate) rate_per_s: u64,
    pub(crate) connections: u32,
    /// Requests before those that count.
    pub(crate) warm_count: u64,
    /// Requests that count.
    pub(crate) count: u64,
}

/// What one run gave.
#[derive(Debug)]
pub(crate) struct Sample {
    /// From due to complete, ns.
    pub(crate) latency: Histogram<u64>,
    /// From due to sent, ns: how well the load kept its schedule.
    pub(crate) late: Histogram<u64>,
    pub(crate) failed: u64,
    /// CPU time of the proxy for one request or event.
    pub(crate) cpu_each_ns: Option<u64>,
}

impl Sample {
    pub(crate) fn new() -> io::Result<Self> {
        let empty = || Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other);
        Ok(Self { latency: empty()?, late: empty()?, failed: 0, cpu_each_ns: None })
    }
}

/// CPU time of the proxy over a window.
pub(crate) struct CpuWindow<'a> {
    meter: Option<&'a CpuMeter>,
    begin_ns: Option<u64>,
}

impl<'a> CpuWindow<'a> {
    pub(crate) fn of(target: &'a Target) -> Self {
        Self { meter: target.cpu.as_ref(), begin_ns: None }
    }

    /// The window begins with the first call.
    pub(crate) fn begin(&mut self) {
        if self.begin_ns.is_none() {
            self.begin_ns = self.meter.and_then(CpuMeter::read_ns);
        }
    }

    /// Time per item since the beginning.
    pub(crate) fn each_ns(&self, item_count: u64) -> Option<u64> {
        let spent = self.meter?.read_ns()?.checked_sub(self.begin_ns?)?;
        spent.checked_div(item_count)
    }
}

struct Run<'a> {
    plan: UnaryPlan<'a>,
    begin_ns: u64,
    clients: Vec<Client>,
    /// By connection: the request that it waits for.
    asked: Vec<Option<u64>>,
    idle: VecDeque<u32>,
    next: u64,
    answered: u64,
    sample: Sample,
}

/// Runs the plan to its end.
pub(crate) fn run_unary(rig: &mut Rig, target: &Target, plan: UnaryPlan<'_>) -> io::Result<Sample> {
    let mut run = Run::connect(rig, target, plan)?;
    let mut cpu = CpuWindow::of(target);
    let mut ready = Vec::new();
    let total = plan.warm_count + plan.count;
    while run.answered < total {
        run.send_due(rig, &mut cpu)?;
        let wake_ns = if run.next < total { run.due_ns(run.next) } else { u64::MAX };
        ready.clear();
        rig.turn(run.answered < run.next, wake_ns, &mut ready)?;
        for number in &ready {
            run.receive(rig, *number)?;
        }
        if rig.now_ns() > run.due_ns(total) + PATIENCE_NS {
            let missing = total - run.answered;
            let name = &target.name;
            return Err(io::Error::other(format!("{name}: {missing} requests without an answer")));
        }
    }
    run.sample.cpu_each_ns = cpu.each_ns(plan.count);
    Ok(run.sample)
}

impl<'a> Run<'a> {
    fn connect(rig: &mut Rig, target: &Target, plan: UnaryPlan<'a>) -> io::Result<Self> {
        let mut clients = Vec::new();
        for number in 0..plan.connections {
            clients.push(Client::connect(target.address, rig, number)?);
        }
        // The worker is on this thread: take its connections before they are waited for.
        rig.stub.accept(&rig.poller)?;
        Ok(Self {
            plan,
            begin_ns: rig.now_ns() + LEAD_NS,
            asked: vec![None; clients.len()],
            clients,
            idle: (0..plan.connections).collect(),
            next: 0,
            answered: 0,
            sample: Sample::new()?,
        })
    }

    fn due_ns(&self, number: u64) -> u64 {
        self.begin_ns + number * 1_000_000_000 / self.plan.rate_per_s
    }

    /// Sends what is due, as far as connections are free.
    fn send_due(&mut self, rig: &Rig, cpu: &mut CpuWindow<'_>) -> io::Result<()> {
        let total = self.plan.warm_count + self.plan.count;
        while self.next < total {
            let now = rig.now_ns();
            let due = self.due_ns(self.next);
            if due > now {
                return Ok(());
            }
            let Some(connection) = self.idle.pop_front() else { return Ok(()) };
            let at = usize::try_from(connection).unwrap_or(usize::MAX);
            let turn = self.next % u64::try_from(self.plan.requests.len()).unwrap_or(1).max(1);
            let request = self.plan.requests.get(usize::try_from(turn).unwrap_or(0));
            if let (Some(client), Some(asked), Some(request)) =
                (self.clients.get_mut(at), self.asked.get_mut(at), request)
            {
                if self.next >= self.plan.warm_count {
                    cpu.begin();
                    self.sample.late.saturating_record(now - due);
                }
                client.send(rig, request)?;
                *asked = Some(self.next);
            }
            self.next += 1;
        }
        Ok(())
    }

    fn receive(&mut self, rig: &mut Rig, connection: u32) -> io::Result<()> {
        let at = usize::try_from(connection).unwrap_or(usize::MAX);
        let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
        let Some(status) = client.read_answer(rig)? else { return Ok(()) };
        let now = rig.now_ns();
        let Some(number) = self.asked.get_mut(at).and_then(Option::take) else { return Ok(()) };
        self.idle.push_back(connection);
        self.answered += 1;
        if status != 200 {
            self.sample.failed += 1;
        } else if number >= self.plan.warm_count {
            self.sample.latency.saturating_record(now - self.due_ns(number));
        }
        Ok(())
    }
}

/// Sends one request on a connection of its own; its status, and the prompt tokens that the router
/// found in its index.
pub(crate) fn ask_once(
    rig: &mut Rig,
    address: SocketAddr,
    request: &[u8],
) -> io::Result<(u16, Option<u64>)> {
    let mut client = Client::connect(address, rig, 0)?;
    client.send(rig, &Rc::from(request))?;
    let begin = rig.now_ns();
    let mut ready = Vec::new();
    while rig.now_ns() < begin + PATIENCE_NS {
        ready.clear();
        rig.turn(true, u64::MAX, &mut ready)?;
        if !ready.is_empty()
            && let Some(status) = client.read_answer(rig)?
        {
            return Ok((status, client.overlap_tokens));
        }
    }
    Err(io::Error::other(format!("no answer from {address}")))
}

//! Streams of server-sent events: how late each event reaches the client, counted from when it was
//! due at the worker. Streams begin evenly spread over one interval, so that events come at an even
//! rate.

use crate::client::Client;
use crate::load::{CpuWindow, LEAD_NS, PATIENCE_NS, Sample, Target};
use forebay_bench_rig::{Event, Rig, StreamPlan};
use std::io;
use std::rc::Rc;

/// What is streamed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamsPlan<'a> {
    /// Whole requests, one per stream in turn.
    pub(crate) requests: &'a [Rc<[u8]>],
    pub(crate) stream_count: u32,
    pub(crate) stream: StreamPlan,
    /// Events that are due before this time after the start do not count.
    pub(crate) warm_ns: u64,
}

/// Runs all streams to their end.
pub(crate) fn run_streams(
    rig: &mut Rig,
    target: &Target,
    plan: StreamsPlan<'_>,
) -> io::Result<Sample> {
    rig.stub.expect(0, Some(plan.stream));
    let mut clients = Vec::new();
    for number in 0..plan.stream_count {
        clients.push(Client::connect(target.address, rig, number)?);
    }
    rig.stub.accept(&rig.poller)?;
    let begin_ns = rig.now_ns() + LEAD_NS;
    let warm_until_ns = begin_ns + plan.warm_ns;
    let start_ns = |number: u32| {
        begin_ns + u64::from(number) * plan.stream.interval_ns / u64::from(plan.stream_count)
    };
    let give_up_ns =
        begin_ns + plan.stream.interval_ns * (u64::from(plan.stream.events) + 3) + PATIENCE_NS;
    let event = Event::new();
    let mut sample = Sample::new()?;
    let mut cpu = CpuWindow::of(target);
    let emitted_before = rig.stub.emitted();
    let mut received = 0_u64;
    let mut ended = 0;
    let mut next = 0;
    let mut counted = 0_u64;
    let mut ready = Vec::new();
    let mut requests = plan.requests.iter().cycle();
    while ended < plan.stream_count {
        let now = rig.now_ns();
        while next < plan.stream_count && start_ns(next) <= now {
            let client = usize::try_from(next).ok().and_then(|at| clients.get_mut(at));
            if let (Some(client), Some(request)) = (client, requests.next()) {
                sample.late.saturating_record(now - start_ns(next));
                client.send(rig, request)?;
            }
            next += 1;
        }
        if now >= warm_until_ns {
            cpu.begin();
        }
        let wake_ns = if next < plan.stream_count { start_ns(next) } else { u64::MAX };
        let awaited =
            rig.stub.emitted() - emitted_before > received || rig.stub.next_due_ns().is_none();
        ready.clear();
        rig.turn(awaited, wake_ns, &mut ready)?;
        for number in &ready {
            let client = usize::try_from(*number).ok().and_then(|at| clients.get_mut(at));
            let Some(client) = client else { continue };
            let clock = rig.clock;
            let done = client.read_events(rig, &event, |due_ns| {
                received += 1;
                if due_ns >= warm_until_ns {
                    counted += 1;
                    sample.latency.saturating_record(clock.now().0.saturating_sub(due_ns));
                }
            })?;
            ended += u32::from(done);
        }
        if rig.now_ns() > give_up_ns {
            let name = &target.name;
            return Err(io::Error::other(format!("{name}: streams did not end")));
        }
    }
    rig.stub.expect(0, None);
    sample.cpu_each_ns = cpu.each_ns(counted);
    let expected = u64::from(plan.stream_count) * u64::from(plan.stream.events);
    sample.failed = expected.abs_diff(received);
    Ok(sample)
}

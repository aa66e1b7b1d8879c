//! What a run gave, as one object of JSON. Times are microseconds, shares are of one core.

use crate::window::Spent;
use forebay_bench_rig::StubCounts;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;

/// What one run gave. Statuses and wrong answers are those of all requests, the rest is of the
/// measured part.
pub(crate) struct Sample {
    pub(crate) is_measured: bool,
    pub(crate) begin_ns: u64,
    pub(crate) run_ns: u64,
    pub(crate) spent: Spent,
    /// In which the load had something to do, while it waited awake.
    pub(crate) busy_ns: u64,
    /// From due to sent.
    pub(crate) late: Histogram<u64>,
    latency: Histogram<u64>,
    /// Of events, from due at the worker to read by the client.
    delay: Histogram<u64>,
    statuses: BTreeMap<u16, u64>,
    wrong: u64,
}

impl Sample {
    pub(crate) fn new() -> io::Result<Self> {
        let empty = || Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other);
        Ok(Self {
            is_measured: false,
            begin_ns: 0,
            run_ns: 0,
            spent: Spent::default(),
            busy_ns: 0,
            late: empty()?,
            latency: empty()?,
            delay: empty()?,
            statuses: BTreeMap::new(),
            wrong: 0,
        })
    }

    pub(crate) fn answer(&mut self, status: u16, is_right: bool, latency_ns: u64) {
        *self.statuses.entry(status).or_default() += 1;
        self.wrong += u64::from(status == 200 && !is_right);
        if self.is_measured && status == 200 {
            self.latency.saturating_record(latency_ns);
        }
    }

    pub(crate) fn event(&mut self, delay_ns: u64) {
        if self.is_measured {
            self.delay.saturating_record(delay_ns);
        }
    }
}

/// `answers` are those of the measured part, `answers_all` those of the whole run.
pub(crate) fn report(sample: &Sample, counts: StubCounts) -> Value {
    let spent = sample.spent;
    let answers = sample.latency.len();
    let events = sample.delay.len();
    let seconds = to_f64(sample.run_ns) / 1e9;
    let statuses: Map<String, Value> =
        sample.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
    let rate = |count: u64| ratio(to_f64(count), seconds);
    let share = |ns: u64| ratio(to_f64(ns) / 1e9, seconds);
    json!({
        "seconds": seconds,
        "answers": answers,
        "answers_all": sample.statuses.values().sum::<u64>(),
        "statuses": statuses,
        "wrong": sample.wrong,
        "bodies": counts.bodies,
        "bodies_wrong": counts.bodies_wrong,
        "requests_per_s": rate(answers),
        "events_per_s": rate(events),
        "cpu_us_per_request": ratio(to_f64(spent.router_ns) / 1e3, to_f64(answers)),
        "cpu_us_per_event": ratio(to_f64(spent.router_ns) / 1e3, to_f64(events)),
        "router_share": share(spent.router_ns),
        "load_share": share(spent.load_ns),
        "load_busy_share": share(sample.busy_ns),
        "others_share": share(spent.others_ns()),
        "latency_us": quantiles(&sample.latency),
        "late_us": quantiles(&sample.late),
        "delay_us": quantiles(&sample.delay),
    })
}

fn quantiles(times: &Histogram<u64>) -> Value {
    if times.is_empty() {
        return Value::Null;
    }
    let at = |quantile: f64| to_f64(times.value_at_quantile(quantile)) / 1e3;
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999) })
}

fn ratio(value: f64, of: f64) -> Value {
    if of > 0.0 { json!(value / of) } else { Value::Null }
}

#[allow(clippy::cast_precision_loss, reason = "figures of a report")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

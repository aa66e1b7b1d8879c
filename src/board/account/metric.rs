//! Metrics as data: the lines of `/metrics` and of the reference page are generated from these
//! entries.

/// A metric of `GET /metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Without the prefix `forebay_`, with its unit and `_total`.
    pub name: &'static str,
    pub kind: MetricKind,
    /// Names of the labels that its samples may have.
    pub labels: &'static [&'static str],
    /// Heading of its section in the reference page.
    pub section: &'static str,
    /// Description; begins with a space.
    pub help: &'static str,
}

/// Prometheus metric types that the router uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Value at the time of the scrape.
    Gauge,
    /// Counts below bounds, with count and sum.
    Histogram,
}

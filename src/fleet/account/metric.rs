//! What a metric is: the entry from which its lines of `/metrics` and of the reference page come.

/// A metric of `GET /metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Without the prefix `forebay_`, with its unit and `_total`.
    pub name: &'static str,
    /// How its values are to be read.
    pub kind: MetricKind,
    /// Names of the labels that its samples may have.
    pub labels: &'static [&'static str],
    /// Heading of the reference page that it stands under.
    pub section: &'static str,
    /// What it counts; begins with a space.
    pub help: &'static str,
}

/// The kinds of metrics that Prometheus knows and the router has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, from 0 at the start of the process.
    Counter,
    /// It is what it is at the scrape.
    Gauge,
    /// Counts below bounds, with count and sum.
    Histogram,
}

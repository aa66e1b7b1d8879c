//! Collects what `/metrics` shows as the data model of the `prometheus` crate, whose encoder writes
//! the text format (0.0.4) that every scraper reads. Holds nothing between scrapes: the values live
//! elsewhere, as plain numbers, and a registry would only copy them.

use crate::account::{Metric, MetricKind};
use crate::base::count_broken_invariant;
use prometheus::TextEncoder;
use prometheus::proto::{
    self, Bucket, Counter, Gauge, Histogram, LabelPair, MetricFamily, MetricType,
};

/// All metrics of one scrape.
#[derive(Debug, Default)]
pub(super) struct MetricsText {
    families: Vec<MetricFamily>,
}

/// One metric that takes its samples. Without any it is left out.
#[derive(Debug)]
pub(super) struct Family<'a> {
    family: &'a mut MetricFamily,
    /// Names of the labels that its samples may have.
    labels: &'static [&'static str],
}

/// Label names with their values.
pub(super) type MetricLabels<'a> = &'a [(&'a str, &'a str)];

impl MetricsText {
    /// Opens a metric for its samples.
    pub(super) fn open(&mut self, metric: &'static Metric) -> Family<'_> {
        let mut family = MetricFamily::default();
        family.set_name(format!("forebay_{}", metric.name));
        family.set_help(metric.help.trim().to_owned());
        family.set_field_type(match metric.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram => MetricType::HISTOGRAM,
        });
        Family { family: self.families.push_mut(family), labels: metric.labels }
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        self.families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode_to_string(&self.families).unwrap_or_else(|_| {
            // Only a family without samples or name is refused.
            count_broken_invariant();
            String::new()
        })
    }
}

impl Family<'_> {
    /// One value of a counter or gauge.
    pub(super) fn sample(&mut self, labels: MetricLabels<'_>, value: u64) {
        self.fraction(labels, approximate(value));
    }

    /// One time in nanoseconds, shown in seconds.
    pub(super) fn seconds(&mut self, labels: MetricLabels<'_>, nanos: u64) {
        self.fraction(labels, approximate(nanos) / 1e9);
    }

    /// The same for a value that need not be whole.
    pub(super) fn fraction(&mut self, labels: MetricLabels<'_>, value: f64) {
        let mut metric = proto::Metric::from_label(self.pairs(labels));
        if self.family.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.family.mut_metric().push(metric);
    }

    /// One histogram from its cumulative counts below the bounds; the encoder adds `+Inf` with the
    /// whole count.
    pub(super) fn buckets(
        &mut self,
        labels: MetricLabels<'_>,
        cumulative: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let buckets = cumulative.map(|(bound, below)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum);
        let mut metric = proto::Metric::from_label(self.pairs(labels));
        metric.set_histogram(histogram);
        self.family.mut_metric().push(metric);
    }

    fn pairs(&self, labels: MetricLabels<'_>) -> Vec<LabelPair> {
        let pair = |(name, value): &(&str, &str)| {
            debug_assert!(self.labels.contains(name), "the entry of a metric names its labels");
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        labels.iter().map(pair).collect()
    }
}

/// A count as a float, which is what Prometheus keeps; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "every value of the text format is a float")]
pub(super) fn approximate(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn metric(
        kind: MetricKind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind, labels, section: "", help }
    }

    static SOME: Metric = metric(MetricKind::Counter, "a_total", &["x"], " Some.");
    static NONE: Metric =
        metric(MetricKind::Counter, "none_total", &[], " A family without samples is no family.");
    static NOW: Metric = metric(MetricKind::Gauge, "g", &[], " Now.");
    static TIMES: Metric = metric(MetricKind::Histogram, "b_seconds", &["s"], " Times.");

    #[test]
    fn writes_what_scrapers_read() {
        let mut text = MetricsText::default();
        text.open(&SOME).sample(&[("x", "q\"\\\n")], 3);
        text.open(&NONE);
        text.open(&NOW).sample(&[], 9_007_199_254_740_992);
        let mut times = text.open(&TIMES);
        times.buckets(&[("s", "t")], [(2e-5, 1), (1.0, 2)].into_iter(), (3, 4.5));
        assert_eq!(
            text.finish(),
            "# HELP forebay_a_total Some.\n# TYPE forebay_a_total counter\n\
             forebay_a_total{x=\"q\\\"\\\\\\n\"} 3\n\
             # HELP forebay_g Now.\n# TYPE forebay_g gauge\nforebay_g 9007199254740992\n\
             # HELP forebay_b_seconds Times.\n# TYPE forebay_b_seconds histogram\n\
             forebay_b_seconds_bucket{s=\"t\",le=\"0.00002\"} 1\nforebay_b_seconds_bucket{s=\"t\",le=\"1\"} 2\n\
             forebay_b_seconds_bucket{s=\"t\",le=\"+Inf\"} 3\nforebay_b_seconds_sum{s=\"t\"} 4.5\n\
             forebay_b_seconds_count{s=\"t\"} 3\n"
        );
    }
}

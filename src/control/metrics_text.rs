//! Collects what `/metrics` shows as the data model of the `prometheus` crate, whose encoder writes
//! the text format (0.0.4) that every scraper reads. Holds nothing between scrapes: the values live
//! elsewhere, as plain numbers, and a registry would only copy them.

use crate::base::count_broken_invariant;
use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

/// All metrics of one scrape.
#[derive(Debug, Default)]
pub(super) struct MetricsText {
    families: Vec<MetricFamily>,
}

/// One metric that takes its samples. Without any it is left out.
#[derive(Debug)]
pub(super) struct Family<'a>(&'a mut MetricFamily);

/// Label names with their values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl MetricsText {
    /// Opens a counter: `name` without the prefix `forebay_`, with the suffix `_total`.
    pub(super) fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::COUNTER)
    }

    /// Opens a gauge: `name` without the prefix.
    pub(super) fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::GAUGE)
    }

    /// Opens a histogram: `name` without the prefix.
    pub(super) fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::HISTOGRAM)
    }

    fn family(&mut self, name: &str, help: &str, kind: MetricType) -> Family<'_> {
        let mut family = MetricFamily::default();
        family.set_name(format!("forebay_{name}"));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        Family(self.families.push_mut(family))
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
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: u64) {
        self.fraction(labels, approximate(value));
    }

    /// One time in nanoseconds, shown in seconds.
    pub(super) fn seconds(&mut self, labels: Labels<'_>, nanos: u64) {
        self.fraction(labels, approximate(nanos) / 1e9);
    }

    /// The same for a value that need not be whole.
    pub(super) fn fraction(&mut self, labels: Labels<'_>, value: f64) {
        let mut metric = Metric::from_label(pairs(labels));
        if self.0.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.0.mut_metric().push(metric);
    }

    /// One histogram from its cumulative counts below the bounds; the encoder adds `+Inf` with the
    /// whole count.
    pub(super) fn buckets(
        &mut self,
        labels: Labels<'_>,
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
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_histogram(histogram);
        self.0.mut_metric().push(metric);
    }
}

fn pairs(labels: Labels<'_>) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

/// A count as a float, which is what Prometheus keeps; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "every value of the text format is a float")]
pub(super) fn approximate(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_scrapers_read() {
        let mut text = MetricsText::default();
        text.counter("a_total", "Some.").sample(&[("x", "q\"\\\n")], 3);
        text.counter("none_total", "A family without samples is no family.");
        text.gauge("g", "Now.").sample(&[], 9_007_199_254_740_992);
        let mut times = text.histogram("b_seconds", "Times.");
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

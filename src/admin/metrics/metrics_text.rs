//! Writes `/metrics` in the Prometheus text format (0.0.4). Holds no state between scrapes: the
//! values live elsewhere, as plain numbers.
//!
//! Written by hand because the format is five lines. The crates for it need a registry that would
//! only copy the values, and add locks.

use forebay_board::account::{Metric, MetricKind};
use std::fmt::{Display, Write};

/// Name of the label of models.
const MODEL: &str = "model";
/// Value of the label of models without a label of their own. No model has the value: see
/// [`write_model`].
pub(crate) const OTHER_MODELS: &str = "";
const OTHER: &str = "other";

/// Text of a scrape.
#[derive(Debug, Default)]
pub(crate) struct MetricsText {
    text: String,
}

/// Writer for the samples of a metric. A metric without samples is omitted.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    text: &'a mut String,
    metric: &'static Metric,
    has_samples: bool,
}

/// A histogram without its buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeHistogram {
    pub(crate) count: u64,
    /// Sum of all values.
    pub(crate) sum: f64,
}

/// Label names with their values.
pub(crate) type MetricLabels<'a> = &'a [(&'a str, &'a str)];

impl MetricsText {
    pub(crate) fn open(&mut self, metric: &'static Metric) -> Family<'_> {
        Family { text: &mut self.text, metric, has_samples: false }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Writes a counter or gauge sample.
    pub(crate) fn sample(&mut self, labels: MetricLabels<'_>, value: u64) {
        self.fraction(labels, approximate(value));
    }

    /// Writes a sample in seconds from nanoseconds.
    pub(crate) fn seconds(&mut self, labels: MetricLabels<'_>, nanos: u64) {
        self.fraction(labels, approximate(nanos) / 1e9);
    }

    /// Writes a sample with a fraction.
    pub(crate) fn fraction(&mut self, labels: MetricLabels<'_>, value: f64) {
        self.line("", labels, None, value);
    }

    /// Writes a histogram from its cumulative counts; the `+Inf` bucket has the total count.
    pub(crate) fn buckets(
        &mut self,
        labels: MetricLabels<'_>,
        cumulative: impl Iterator<Item = (f64, u64)>,
        whole: WholeHistogram,
    ) {
        for (bound, below) in cumulative {
            self.line("_bucket", labels, Some(&bound), below);
        }
        self.line("_bucket", labels, Some(&"+Inf"), whole.count);
        self.line("_sum", labels, None, whole.sum);
        self.line("_count", labels, None, whole.count);
    }

    /// Writes a sample line, after `HELP` and `TYPE` if it is the metric's first. Writing to a
    /// string cannot fail.
    fn line(
        &mut self,
        suffix: &str,
        labels: MetricLabels<'_>,
        bound: Option<&dyn Display>,
        value: impl Display,
    ) {
        let Metric { name, kind, help, .. } = self.metric;
        if !std::mem::replace(&mut self.has_samples, true) {
            let kind = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let _ = write!(self.text, "# HELP forebay_{name} ");
            escape(help.trim(), self.text, false);
            let _ = write!(self.text, "\n# TYPE forebay_{name} {kind}\n");
        }
        let _ = write!(self.text, "forebay_{name}{suffix}");
        let mut before = '{';
        for (label, label_value) in labels {
            debug_assert!(self.metric.labels.contains(label), "a metric's entry names its labels");
            let _ = write!(self.text, "{before}{label}=\"");
            match *label {
                MODEL => write_model(label_value, self.text),
                _ => escape(label_value, self.text, true),
            }
            self.text.push('"');
            before = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(self.text, "{before}le=\"{bound}\"");
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Writes the label of a model. The models without a label of their own are `other`. A model that
/// an engine calls `other` is `other~`, `other~` is `other~~`, and so on: no two models share a
/// label.
fn write_model(name: &str, out: &mut String) {
    if name == OTHER_MODELS {
        out.push_str(OTHER);
        return;
    }
    escape(name, out, true);
    if name.trim_end_matches('~') == OTHER {
        out.push('~');
    }
}

/// Escapes backslashes and line ends; in label values also quotes.
fn escape(text: &str, out: &mut String, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}

/// A count as a float, the number type of Prometheus; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "every value of the text format is a float")]
pub(crate) fn approximate(count: u64) -> f64 {
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

    /// Two series with the same labels make a scraper refuse all metrics.
    #[test]
    fn no_model_has_the_label_of_the_other_models() {
        let label = |name: &str| {
            let mut out = String::new();
            write_model(name, &mut out);
            out
        };
        assert_eq!(label(OTHER_MODELS), "other");
        let names = ["other", "other~", "other~~", "Other", "another", "other-1", "~", "unknown"];
        let labels = names.map(label);
        assert_eq!(labels[..3], ["other~", "other~~", "other~~~"]);
        assert_eq!(labels[3..], names[3..]);
    }

    #[test]
    fn writes_what_scrapers_read() {
        let mut text = MetricsText::default();
        text.open(&SOME).sample(&[("x", "q\"\\\n")], 3);
        text.open(&NONE);
        text.open(&NOW).sample(&[], 9_007_199_254_740_992);
        let mut times = text.open(&TIMES);
        times.buckets(
            &[("s", "t")],
            [(2e-5, 1), (1.0, 2)].into_iter(),
            WholeHistogram { count: 3, sum: 4.5 },
        );
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

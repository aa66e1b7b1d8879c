//! Writes Prometheus's text format (0.0.4), which every scraper reads and `promtool check metrics` checks. Written by
//! hand because the values live elsewhere, as plain numbers; a registry would only copy them.

use std::fmt::{Display, Write as _};

/// A text under construction.
#[derive(Debug, Default)]
pub(super) struct MetricsText {
    out: String,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Label names with their values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl MetricsText {
    /// Opens a metric: `name` without the prefix `forebay_`.
    pub(super) fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP forebay_{name} {help}\n# TYPE forebay_{name} {kind}");
    }

    /// One sample of the open metric, or of one of a histogram's parts.
    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.out, "forebay_{name}");
        for (position, (label, value)) in labels.iter().enumerate() {
            self.out.push(if position == 0 { '{' } else { ',' });
            self.out.push_str(label);
            self.out.push_str("=\"");
            escape(value, &mut self.out);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// A histogram from its cumulative counts; the last bound is added as `+Inf` with the whole count.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        cumulative: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let bucket = format!("{name}_bucket");
        for (bound, below) in cumulative {
            let bound = bound.to_string();
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), count);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.out
    }
}

fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_scrapers_read() {
        let mut text = MetricsText::default();
        text.metric("a_total", Kind::Counter, "Some.");
        text.sample("a_total", &[("x", "q\"\\\n")], 3);
        text.metric("b_seconds", Kind::Histogram, "Times.");
        text.histogram("b_seconds", &[("s", "t")], [(0.5, 1), (1.0, 2)].into_iter(), (3, 4.5));
        assert_eq!(
            text.finish(),
            "# HELP forebay_a_total Some.\n# TYPE forebay_a_total counter\n\
             forebay_a_total{x=\"q\\\"\\\\\\n\"} 3\n\
             # HELP forebay_b_seconds Times.\n# TYPE forebay_b_seconds histogram\n\
             forebay_b_seconds_bucket{s=\"t\",le=\"0.5\"} 1\nforebay_b_seconds_bucket{s=\"t\",le=\"1\"} 2\n\
             forebay_b_seconds_bucket{s=\"t\",le=\"+Inf\"} 3\nforebay_b_seconds_sum{s=\"t\"} 4.5\n\
             forebay_b_seconds_count{s=\"t\"} 3\n"
        );
    }
}

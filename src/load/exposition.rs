//! Reads labels and values of a metric's samples from an engine's Prometheus text. Sans-IO; lines
//! in an unknown form are skipped.

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    /// Value of a label that is a number.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.label(name)?.parse().ok()
    }

    /// The sample's own value; NaN without a value.
    pub fn value(&self) -> f64 {
        self.value
    }
}

/// All samples of a metric.
pub fn samples<'a>(text: &'a str, metric: &'a str) -> impl Iterator<Item = Sample> + 'a {
    text.lines().filter_map(move |line| sample(line.strip_prefix(metric)?))
}

/// The sample on a line, from the text behind the metric's name.
pub(crate) fn sample(rest: &str) -> Option<Sample> {
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labels) => read_labels(labels)?,
        None if rest.starts_with(' ') => (Vec::new(), rest),
        None => return None,
    };
    // A timestamp may follow the value.
    let value = rest.split_ascii_whitespace().next().and_then(|value| value.parse().ok());
    Some(Sample { labels, value: value.unwrap_or(f64::NAN) })
}

/// Label names with their values.
type SampleLabels = Vec<(String, String)>;

/// Reads `a="x",b="y"}` with `\"`, `\\` and `\n` in the values; also returns the rest of the line.
fn read_labels(text: &str) -> Option<(SampleLabels, &str)> {
    let mut labels = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = after.get(end..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_samples_by_their_whole_name() {
        let text =
            "# TYPE a gauge\na{x=\"1\",y=\"q\\\"\\\\z\"} 3\na_b{x=\"2\"} 1\na 5\na{broken 1\n";
        let found: Vec<Sample> = samples(text, "a").collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].number("x"), Some(1));
        assert_eq!(found[0].label("y"), Some("q\"\\z"));
        assert_eq!(found[1].label("x"), None);
        assert_eq!(
            (found[0].value().to_bits(), found[1].value().to_bits()),
            (3f64.to_bits(), 5f64.to_bits())
        );
        assert!(sample("{x=\"1\"} NaN").unwrap().value().is_nan());
        assert!(sample("{x=\"1\"}").unwrap().value().is_nan());
    }

    proptest! {
        #[test]
        fn never_panics(text in "a\\{\\PC{0,40}") {
            let _ = samples(&text, "a").count();
        }
    }
}

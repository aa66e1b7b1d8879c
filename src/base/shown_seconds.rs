//! Times as people read them.

/// Formats a time in seconds, in at most six characters.
#[must_use]
pub fn shown_seconds(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 10.0 => format!("{value:.0} s"),
        Some(value) if value >= 1.0 => format!("{value:.1} s"),
        Some(value) if value >= 1e-3 => format!("{:.0} ms", value * 1e3),
        Some(value) => format!("{:.0} us", value * 1e6),
    }
}

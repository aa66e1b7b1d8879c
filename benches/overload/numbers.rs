//! Sorting and sharing out figures.

/// The number that follows the last occurrence of `mark`.
pub(crate) fn number_after(text: &str, mark: &str) -> Option<u64> {
    let rest = text.rsplit_once(mark)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

/// Figures of one kind, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    sorted_ns: Vec<u64>,
}

impl Figures {
    pub(crate) fn new(figures_ns: impl IntoIterator<Item = u64>) -> Self {
        let mut sorted_ns: Vec<u64> = figures_ns.into_iter().collect();
        sorted_ns.sort_unstable();
        Self { sorted_ns }
    }

    pub(crate) fn count(&self) -> usize {
        self.sorted_ns.len()
    }

    /// The figure that so many of a thousand do not exceed; 0 without any.
    pub(crate) fn permille_ns(&self, permille: usize) -> u64 {
        let rank = (self.sorted_ns.len() * permille).div_ceil(1_000).max(1) - 1;
        self.sorted_ns.get(rank).or(self.sorted_ns.last()).copied().unwrap_or(0)
    }

    pub(crate) fn permille_ms(&self, permille: usize) -> f64 {
        ms(self.permille_ns(permille))
    }

    pub(crate) fn max_ms(&self) -> f64 {
        ms(self.sorted_ns.last().copied().unwrap_or(0))
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        let sum: u64 = self.sorted_ns.iter().sum();
        share(sum as f64, self.sorted_ns.len() as f64)
    }
}

/// Nanoseconds as milliseconds.
pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A part of a whole; 0 of nothing.
pub(crate) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

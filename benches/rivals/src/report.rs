//! Medians over rounds, and tables in Markdown.

use std::time::Duration;

/// Figures of one cell, one per round.
#[derive(Clone, Default)]
pub(crate) struct Cell(Vec<f64>);

impl Cell {
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub(crate) fn median(&self) -> f64 {
        let mut figures = self.0.clone();
        figures.sort_by(f64::total_cmp);
        match figures.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => figures[odd / 2],
            even => f64::midpoint(figures[even / 2 - 1], figures[even / 2]),
        }
    }
}

/// Median and 99th percentile of single times, one pair per round.
#[derive(Clone, Default)]
pub(crate) struct Times {
    pub p50: Cell,
    pub p99: Cell,
    round: Vec<Duration>,
}

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.round.push(time);
    }

    pub(crate) fn end_round(&mut self) {
        self.round.sort_unstable();
        let at = |share: usize| self.round.get(self.round.len() * share / 100);
        let micros =
            |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
        self.p50.add(micros(at(50)));
        self.p99.add(micros(at(99)));
        self.round.clear();
    }

    pub(crate) fn show(&self) -> String {
        format!("{} / {}", three_digits(self.p50.median()), three_digits(self.p99.median()))
    }
}

pub(crate) fn three_digits(figure: f64) -> String {
    match figure {
        ..1.0 => format!("{figure:.2}"),
        1.0..100.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

pub(crate) fn title(text: &str, columns: &[&str]) {
    println!("\n### {text}\n");
    row(columns.iter().map(|column| (*column).to_owned()));
    println!("|{}", "---|".repeat(columns.len()));
}

pub(crate) fn row(cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    println!("| {} |", cells.join(" | "));
}

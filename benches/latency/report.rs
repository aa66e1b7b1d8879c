//! Medians over rounds and the tables that show them.

use crate::load::Sample;
use std::fmt::Write as _;

/// What is shown of one run, ns.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

/// All runs of one target, one per round.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) samples: Vec<Sample>,
}

/// A table; the first row is the one that the others are compared with.
pub(crate) fn table(title: &str, each: &str, rows: &[Row]) -> String {
    let mut out = format!(
        "\n{title}\n{:<20} {:>8} {:>8} {:>8}   {:>9} {:>8} {:>8}   {:>9}   {:>9} {:>7}\n",
        "us",
        "p50",
        "p99",
        "p99.9",
        "added p50",
        "p99",
        "p99.9",
        format!("CPU/{each}"),
        "late p99",
        "failed"
    );
    for (position, row) in rows.iter().enumerate() {
        let base = rows.first().filter(|_| position > 0);
        let _ = write!(out, "{:<20}", row.name);
        for quantile in QUANTILES {
            let _ = write!(out, " {:>8}", micros(median(quantiles(row, quantile))));
        }
        let _ = write!(out, "  ");
        for (column, quantile) in QUANTILES.into_iter().enumerate() {
            let width = if column == 0 { 9 } else { 8 };
            let added = base.and_then(|base| median(added(row, base, quantile)));
            let _ = write!(out, " {:>width$}", micros(added));
        }
        let cpu = row.samples.iter().filter_map(|sample| sample.cpu_each_ns).map(signed);
        let late = row.samples.iter().map(|sample| signed(sample.late.value_at_quantile(0.99)));
        let failed: u64 = row.samples.iter().map(|sample| sample.failed).sum();
        let cpu = micros(median(cpu.collect()));
        let late = micros(median(late.collect()));
        let _ = writeln!(out, "   {cpu:>9}   {late:>9} {failed:>7}");
    }
    out
}

fn quantiles(row: &Row, quantile: f64) -> Vec<i64> {
    row.samples.iter().map(|sample| signed(sample.latency.value_at_quantile(quantile))).collect()
}

/// Difference to the base, round by round: both were measured within seconds of each other.
fn added(row: &Row, base: &Row, quantile: f64) -> Vec<i64> {
    let pairs = quantiles(row, quantile).into_iter().zip(quantiles(base, quantile));
    pairs.map(|(row, base)| row - base).collect()
}

fn median(mut values: Vec<i64>) -> Option<i64> {
    values.sort_unstable();
    let middle = values.len() / 2;
    let upper = values.get(middle).copied()?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values.get(middle - 1).map(|lower| lower.midpoint(upper))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn micros(ns: Option<i64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    let tenths = (ns.abs() + 50) / 100;
    let sign = if ns < 0 && tenths > 0 { "-" } else { "" };
    format!("{sign}{}.{}", tenths / 10, tenths % 10)
}

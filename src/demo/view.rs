//! Text of the demo's live view and results. Text from figures; no I/O.

use super::meter::Figures;
use std::fmt::Write;

/// State of the running demo.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// The policy under test, or the third act.
    pub(super) title: &'static str,
    /// Seconds since the load began.
    pub(super) elapsed_s: f64,
    /// Length of the run.
    pub(super) total_s: f64,
    /// Figures so far, as text.
    pub(super) numbers: String,
    /// Requests running and waiting in each engine; `None` for a killed engine.
    pub(super) rank_loads: Vec<Option<usize>>,
}

/// A single line, for logs and pipes.
#[must_use]
pub(super) fn line(live: &Live) -> String {
    let load = |load: &Option<usize>| load.map_or_else(|| "x".into(), |load| load.to_string());
    let loads: Vec<_> = live.rank_loads.iter().map(load).collect();
    format!(
        "{:<11} {:>4.1}s {} | load per rank {}",
        live.title,
        live.elapsed_s,
        live.numbers,
        loads.join(" ")
    )
}

/// Several lines, for a terminal.
#[must_use]
pub(super) fn frame(live: &Live) -> String {
    let mut out = format!(
        "{}  {:.1} of {:.0} s\n{}\n",
        live.title, live.elapsed_s, live.total_s, live.numbers
    );
    for (rank, load) in live.rank_loads.iter().enumerate() {
        let _infallible = match load {
            Some(load) => writeln!(out, "rank {rank} {load:>3} {}", bar(*load)),
            None => writeln!(out, "rank {rank}   x killed"),
        };
    }
    out
}

/// Moves the cursor back over a drawn frame, clearing it.
#[must_use]
pub(super) fn erase(frame: &str) -> String {
    "\x1b[1A\x1b[2K".repeat(frame.lines().count())
}

/// Both policies side by side.
#[must_use]
pub(super) fn table(kv: &Figures, round_robin: &Figures) -> String {
    let mut out = format!("\n{:<16}{:>14}{:>14}\n", "", "kv", "round_robin");
    let mut row = |name: &str, unit: &str, digits: usize, value: fn(&Figures) -> f64| {
        let kv = value(kv);
        let other = value(round_robin);
        let _infallible = writeln!(out, "{name:<16}{kv:>14.digits$}{other:>14.digits$}  {unit}");
    };
    row("cache hit rate", "%", 1, |figures| figures.hit_rate * 100.0);
    row("TTFT p50", "ms", 1, |figures| figures.ttft_ms_p50);
    row("TTFT p99", "ms", 1, |figures| figures.ttft_ms_p99);
    row("requests/s", "", 1, |figures| figures.requests_per_s);
    row("requests", "", 0, |figures| figures.requests as f64);
    row("errors", "", 0, |figures| figures.errors as f64);
    out
}

/// Both policies as bars, scaled per figure.
#[must_use]
pub(super) fn bars(kv: &Figures, round_robin: &Figures) -> String {
    let mut out = String::new();
    let mut pair = |name: &str, value: fn(&Figures) -> f64| {
        let kv = value(kv);
        let other = value(round_robin);
        let scale = BAR_MAX as f64 / kv.max(other).max(1e-9);
        let bar = |value: f64| bar(in_columns(value * scale));
        let _infallible = writeln!(out, "{name:<16}{:<12}{}", "kv", bar(kv));
        let _infallible = writeln!(out, "{:<16}{:<12}{}", "", "round_robin", bar(other));
    };
    pair("cache hit rate", |figures| figures.hit_rate);
    pair("TTFT p50", |figures| figures.ttft_ms_p50);
    out
}

fn bar(columns: usize) -> String {
    "#".repeat(columns.min(BAR_MAX))
}

/// Columns of a bar; a value above 0 has at least 1 column.
fn in_columns(value: f64) -> usize {
    (0..BAR_MAX)
        .take_while(|column| *column as f64 + 0.5 <= value || (*column == 0 && value > 0.0))
        .count()
}

/// Summary of the table in a sentence.
#[must_use]
pub(super) fn conclusion(kv: &Figures, round_robin: &Figures) -> String {
    if kv.requests == 0 || round_robin.requests == 0 {
        return "No conclusion: a policy answered no request.".into();
    }
    let factor = round_robin.ttft_ms_p50 / kv.ttft_ms_p50.max(0.001);
    let (change, factor) = if factor >= 1.0 { ("sooner", factor) } else { ("later", 1.0 / factor) };
    format!(
        "With kv routing {:.0} % of prompt tokens came from cache instead of {:.0} %, and the first \
         token came {:.1} times {change} (median).",
        kv.hit_rate * 100.0,
        round_robin.hit_rate * 100.0,
        factor
    )
}

/// Figures of a policy in a single line.
#[must_use]
pub(super) fn numbers(figures: &Figures) -> String {
    if figures.requests + figures.errors == 0 {
        return "warming up".into();
    }
    let errors = match figures.errors {
        0 => String::new(),
        count => format!("  {count} errors"),
    };
    format!(
        "{:>6.1} req/s  TTFT p50 {:>7.1} ms  p99 {:>7.1} ms  hit rate {:>5.1} %{errors}",
        figures.requests_per_s,
        figures.ttft_ms_p50,
        figures.ttft_ms_p99,
        figures.hit_rate * 100.0
    )
}

const BAR_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(hit_rate: f64, ttft: f64) -> Figures {
        Figures { requests: 10, hit_rate, ttft_ms_p50: ttft, ..Figures::default() }
    }

    #[test]
    fn erase_matches_the_frame() {
        let rank_loads = vec![Some(1), None, Some(200)];
        let live = Live { rank_loads, title: "kv", ..Live::default() };
        let drawn = frame(&live);
        assert_eq!(drawn.lines().count(), 5);
        assert!(drawn.ends_with(&format!("rank 2 200 {}\n", "#".repeat(BAR_MAX))));
        assert_eq!(erase(&drawn).matches("\x1b[1A").count(), 5);
        assert!(line(&live).ends_with("load per rank 1 x 200"));
    }

    #[test]
    fn bars_have_one_scale() {
        let drawn = bars(&figures(0.8, 0.1), &figures(0.4, 100.0));
        let lengths: Vec<_> = drawn.lines().map(|line| line.matches('#').count()).collect();
        assert_eq!(lengths, [BAR_MAX, BAR_MAX / 2, 1, BAR_MAX]);
        assert!(!bars(&Figures::default(), &Figures::default()).contains('#'));
    }

    #[test]
    fn conclusions_follow_the_figures() {
        let better = conclusion(&figures(0.8, 10.0), &figures(0.4, 30.0));
        assert!(better.contains("80 %") && better.contains("3.0 times sooner"), "{better}");
        let worse = conclusion(&figures(0.2, 30.0), &figures(0.4, 10.0));
        assert!(worse.contains("3.0 times later"), "{worse}");
        let none = conclusion(&Figures::default(), &figures(0.4, 1.0));
        assert!(none.starts_with("No conclusion"));
    }
}

//! What the demo shows while it runs and at its end. Text from figures; no I/O.

use super::meter::Figures;
use std::fmt::Write;

/// State of the running demo.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// Name of the policy under test.
    pub(super) policy: &'static str,
    /// Seconds since its load began, and how many it will run.
    pub(super) elapsed_s: f64,
    /// Length of the run.
    pub(super) total_s: f64,
    /// Caches are still cold; nothing is counted yet.
    pub(super) warming_up: bool,
    /// Figures since the warm-up ended.
    pub(super) figures: Figures,
    /// Requests running and waiting in each engine.
    pub(super) rank_loads: Vec<usize>,
}

/// One line, for logs and pipes.
#[must_use]
pub(super) fn line(live: &Live) -> String {
    let loads: Vec<_> = live.rank_loads.iter().map(usize::to_string).collect();
    format!(
        "{:<11} {:>4.1}s {} | load per rank {}",
        live.policy,
        live.elapsed_s,
        numbers(live),
        loads.join(" ")
    )
}

/// Several lines, for a terminal.
#[must_use]
pub(super) fn frame(live: &Live) -> String {
    let mut out = format!(
        "policy {}  {:.1} of {:.0} s\n{}\n",
        live.policy,
        live.elapsed_s,
        live.total_s,
        numbers(live)
    );
    for (rank, load) in live.rank_loads.iter().enumerate() {
        let bar = "#".repeat((*load).min(BAR_MAX));
        let _infallible = writeln!(out, "rank {rank} {load:>3} {bar}");
    }
    out
}

/// Moves the cursor back over a frame that was drawn before, clearing it.
#[must_use]
pub(super) fn erase(frame: &str) -> String {
    "\x1b[1A\x1b[2K".repeat(frame.lines().count())
}

/// Both policies side by side.
#[must_use]
pub(super) fn table(kv: &Figures, round_robin: &Figures) -> String {
    let mut out = format!("\n{:<16}{:>14}{:>14}\n", "", "kv", "round_robin");
    let mut row = |name: &str, unit: &str, digits: usize, value: fn(&Figures) -> f64| {
        let (kv, other) = (value(kv), value(round_robin));
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

/// What the table says, in a sentence.
#[must_use]
pub(super) fn conclusion(kv: &Figures, round_robin: &Figures) -> String {
    if kv.requests == 0 || round_robin.requests == 0 {
        return "No conclusion: a policy answered no request.".into();
    }
    let factor = round_robin.ttft_ms_p50 / kv.ttft_ms_p50.max(0.001);
    let (change, factor) = if factor >= 1.0 { ("sooner", factor) } else { ("later", 1.0 / factor) };
    format!(
        "With kv routing {:.0} % of prompt tokens came from cache instead of {:.0} %, and the first token came {:.1} \
         times {change} (median).",
        kv.hit_rate * 100.0,
        round_robin.hit_rate * 100.0,
        factor
    )
}

fn numbers(live: &Live) -> String {
    if live.warming_up {
        return "warming up".into();
    }
    let figures = &live.figures;
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
        let live = Live { rank_loads: vec![1, 200], policy: "kv", ..Live::default() };
        let drawn = frame(&live);
        assert_eq!(drawn.lines().count(), 4);
        assert!(drawn.ends_with(&format!("rank 1 200 {}\n", "#".repeat(BAR_MAX))));
        assert_eq!(erase(&drawn).matches("\x1b[1A").count(), 4);
        assert!(!line(&live).contains('\n'));
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

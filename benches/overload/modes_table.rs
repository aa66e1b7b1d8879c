//! The table of `modes`, one row a measurement.

use crate::load::Done;
use crate::numbers::{Figures, share};
use crate::options::ModesOptions;
use crate::workload::{HEAVY, LIGHT};
use std::io::{self, Write};

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) mode: String,
    pub(crate) tokens: u32,
    pub(crate) routers: u8,
    pub(crate) times: f64,
    pub(crate) capacity_per_s: f64,
    pub(crate) seconds: f64,
    pub(crate) target_ns: u64,
    /// Prompt tokens begun for clients that got no whole answer, of all that were begun.
    pub(crate) begun_for_nobody: f64,
    pub(crate) done: Vec<Done>,
}

pub(crate) fn write_head(out: &mut impl Write, modes: &ModesOptions) -> io::Result<()> {
    writeln!(
        out,
        "{} engines with {} places; first token wanted within {} ms\n\
         tokens | routers | load | mode | TTFT p50 ms | p99 | whole p99 | good | answered | refused | hits | \
         light TTFT p99 | light answered | heavy answered | for nobody",
        modes.engines, modes.places, modes.target_ms
    )
}

pub(crate) fn write_row(out: &mut impl Write, cell: &Cell) -> io::Result<()> {
    let answered = || cell.done.iter().filter(|done| done.outcome.status == 200);
    let first = |done: &Done| done.outcome.first_ns.saturating_sub(done.outcome.due_ns);
    let firsts = Figures::new(answered().map(first));
    let wholes = Figures::new(answered().map(|done| done.outcome.end_ns - done.outcome.due_ns));
    let good = answered().filter(|done| first(done) <= cell.target_ns).count();
    let (prompts, cached) = answered().fold((0, 0), |(prompts, cached), done| {
        (prompts + done.outcome.prompt_tokens, cached + done.outcome.cached_tokens)
    });
    let light = Figures::new(answered().filter(|done| done.client == LIGHT).map(first));
    let patient = |client: u8| {
        let sent = cell.done.iter().filter(|done| done.client == client && !done.outcome.left);
        share(answered().filter(|done| done.client == client).count() as f64, sent.count() as f64)
    };
    let refused = cell.done.iter().filter(|done| matches!(done.outcome.status, 408 | 429 | 503));
    let failed = cell.done.iter().filter(|done| done.outcome.failure.is_some()).count();
    let all = cell.done.len() as f64;
    writeln!(
        out,
        "{:3} | {} | {:.1} | {:14} | {:.0} | {:.0} | {:.0} | {:.0} % | {:.0} % | {:.0} % | {:.0} % | {:.0} | {:.0} % | {:.0} % | {:.1} %{}",
        cell.tokens,
        cell.routers,
        cell.times,
        cell.mode,
        firsts.permille_ms(500),
        firsts.permille_ms(990),
        wholes.permille_ms(990),
        100.0 * share(good as f64 / cell.seconds, cell.capacity_per_s),
        100.0 * share(firsts.count() as f64, all),
        100.0 * share(refused.count() as f64, all),
        100.0 * share(cached as f64, prompts as f64),
        light.permille_ms(990),
        100.0 * patient(LIGHT),
        100.0 * patient(HEAVY),
        100.0 * cell.begun_for_nobody,
        if failed > 0 { format!(" ({failed} without an answer)") } else { String::new() },
    )
}

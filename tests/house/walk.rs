//! The walk of a request, as docs/internals/walk.md has it from `tools/walk`: its functions exist,
//! and its returns are counted.

use super::source::Source;
use std::collections::BTreeSet;

/// The page that `tools/walk --write` writes.
pub(crate) const PAGE: &str = "docs/internals/walk.md";
/// A walk with fewer visits is no walk of a whole request.
const VISITS_MIN: usize = 20;
/// Files that a reader has to come back to. Two of them since a request chooses its rank before it
/// looks for room there.
const RETURNS_MAX: usize = 7;

/// What the walk enters of one file before it goes on to another.
struct Visit<'a> {
    path: &'a str,
    functions: Vec<&'a str>,
    is_return: bool,
}

fn visits(page: &str) -> Vec<Visit<'_>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `src/"));
    let visit = |row| {
        let mut cells = Iterator::map(str::split(row, '|'), str::trim);
        let path = cells.next()?.trim_end_matches('`');
        let functions = cells.next()?.split(", ").map(|name| name.trim_matches('`')).collect();
        Some(Visit { path, functions, is_return: !cells.next()?.is_empty() })
    };
    rows.filter_map(visit).collect()
}

/// Visits of a file that the walk has left.
pub(crate) fn returns(page: &str) -> usize {
    let mut seen = BTreeSet::new();
    visits(page).iter().filter(|visit| !seen.insert(visit.path)).count()
}

/// What the page says that the sources do not.
pub(crate) fn faults(page: &str, sources: &[Source]) -> Vec<String> {
    let walk = visits(page);
    let mut faults = Vec::new();
    if walk.len() < VISITS_MIN {
        faults.push(format!("{PAGE}: {} visits are no walk", walk.len()));
    }
    for visit in &walk {
        let path = format!("src/{}", visit.path);
        let Some(source) = sources.iter().find(|source| source.path == path) else {
            faults.push(format!("{PAGE}: {path} is no file"));
            continue;
        };
        for name in &visit.functions {
            if !source.functions.iter().any(|function| function.name == *name) {
                faults.push(format!("{PAGE}: {path} has no function `{name}`"));
            }
        }
    }
    let marked = walk.iter().filter(|visit| visit.is_return).count();
    let counted = returns(page);
    if marked != counted {
        faults.push(format!("{PAGE}: {marked} returns are marked, {counted} are there"));
    }
    if counted > RETURNS_MAX {
        faults.push(format!("{PAGE}: {counted} returns, at most {RETURNS_MAX}"));
    }
    faults
}

//! How the places of the engines were used, from the lines that each engine wrote of its requests.

use crate::numbers::{Figures, share};
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// One request as its engine saw it; times of Unix in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) received_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) finished: bool,
}

/// A part of a run, by the clock that engines write down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
}

/// What all engines tell of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceUse {
    /// From the end of a request to the start of the next one in its place.
    pub(crate) gaps: Figures,
    /// Time in the engine of what ended in the window.
    pub(crate) service: Figures,
    /// Requests that were answered in full.
    pub(crate) finished: usize,
    /// Time that places were in use, of all there was.
    pub(crate) busy_share: f64,
    /// Most that were in flight in one engine at any time of the run.
    pub(crate) peak: usize,
}

impl Window {
    fn has(&self, at_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }

    fn length_ns(&self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns)
    }
}

/// Reads the lines of one engine.
pub(crate) fn read_log(path: &Path) -> io::Result<Vec<Seen>> {
    let text = std::fs::read_to_string(path)?;
    let seen = |line: &str| {
        let mut words = line.split(' ');
        let received_ns = words.next()?.parse().ok()?;
        let ended_ns = words.next()?.parse().ok()?;
        let outcome = words.next()?;
        (outcome != "refused").then_some(Seen {
            received_ns,
            ended_ns,
            finished: outcome == "finished",
        })
    };
    Ok(text.lines().filter_map(seen).collect())
}

/// Looks at each engine's lines; `places` is how many requests each may have.
pub(crate) fn place_use(engines: &[Vec<Seen>], places: usize, window: Window) -> PlaceUse {
    let mut gaps = Vec::new();
    let mut service = Vec::new();
    let mut busy_ns = 0_u64;
    let mut finished = 0;
    let mut peak = 0;
    for engine in engines {
        let (engine_peak, engine_gaps) = walk(engine, places, window);
        peak = peak.max(engine_peak);
        gaps.extend(engine_gaps);
        for seen in engine {
            let from = seen.received_ns.max(window.from_ns);
            busy_ns += seen.ended_ns.min(window.until_ns).saturating_sub(from);
            if window.has(seen.ended_ns) && seen.finished {
                finished += 1;
                service.push(seen.ended_ns.saturating_sub(seen.received_ns));
            }
        }
    }
    let all_ns = window.length_ns() as f64 * (engines.len() * places) as f64;
    PlaceUse {
        gaps: Figures::new(gaps),
        service: Figures::new(service),
        finished,
        busy_share: share(busy_ns as f64, all_ns),
        peak,
    }
}

/// Starts and ends in order of time: the peak, and how long each freed place stayed free. Places
/// that were never taken before have no gap.
fn walk(engine: &[Seen], places: usize, window: Window) -> (usize, Vec<u64>) {
    let mut moments: Vec<(u64, bool)> =
        engine.iter().flat_map(|seen| [(seen.received_ns, true), (seen.ended_ns, false)]).collect();
    // An end and a start in one nanosecond: the end was first.
    moments.sort_unstable();
    let mut in_flight = 0_usize;
    let mut peak = 0;
    let mut free_since = VecDeque::new();
    let mut gaps = Vec::new();
    for (at_ns, is_start) in moments {
        if !is_start {
            in_flight = in_flight.saturating_sub(1);
            free_since.push_back(at_ns);
            continue;
        }
        in_flight += 1;
        peak = peak.max(in_flight);
        // More than its places: then it took none that was free.
        if in_flight > places {
            continue;
        }
        if let Some(freed_ns) = free_since.pop_front()
            && window.has(freed_ns)
        {
            gaps.push(at_ns.saturating_sub(freed_ns));
        }
    }
    (peak, gaps)
}

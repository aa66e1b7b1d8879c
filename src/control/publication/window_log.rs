//! Log of rejection windows. Windows of a full queue open and close many times a second, so a pool
//! has a line at its first window, a line a minute while windows go on, and a line after the last.
//! The window of an operator opens once, and has a line as soon as it ends. The order itself has
//! the line of its beginning, and of its end before its time.

use forebay_admin::{cause_by, opener, pool_name};
use forebay_base::{NanosSinceStart, PoolIndex};
use forebay_board::{WindowOrigin, Windows};
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Time between two lines of a pool with windows.
const REPEAT: Duration = Duration::from_secs(60);
/// After so long without a window of a queue, a pool is open again.
const CALM: Duration = Duration::from_secs(10);

/// The log of windows that full queues open, and of windows that operators open.
#[derive(Debug)]
pub(super) struct WindowLog {
    queues: OriginLog,
    operators: OriginLog,
}

/// Pools with windows of some origins, and the openings of each pool that the log knows.
#[derive(Debug)]
struct OriginLog {
    /// Here first, then at another replica.
    origins: [WindowOrigin; 2],
    /// A pool without a window for so long is open again.
    calm: Duration,
    refusing: BTreeMap<PoolIndex, RefusingPool>,
    openings: BTreeMap<PoolIndex, [u64; 2]>,
}

#[derive(Debug)]
struct RefusingPool {
    since: NanosSinceStart,
    /// Openings before the first line.
    openings_before: u64,
    /// Why windows were last open.
    cause: String,
    /// Last time at which a window was open.
    open_at: NanosSinceStart,
    /// End of the window that was last open; `None`: no look has met an open window.
    ends_at: Option<NanosSinceStart>,
    /// All windows so far are of an operator of this router.
    is_ordered_here: bool,
    written_at: NanosSinceStart,
}

/// A line of the log about a pool.
#[derive(Debug, PartialEq, Eq)]
enum WindowLine {
    /// The first window has opened. `ends_in_ms`: `None` where the window has ended by now.
    Opened { by: String, cause: String, ends_in_ms: Option<u64> },
    /// Windows go on opening, or a window stays open.
    Goes { cause: String, openings: u64, seconds: u64 },
    /// No window of a queue is open any more.
    Closed { cause: String, openings: u64, lasted_ms: u64 },
    /// The window of an operator has ended.
    OrderEnded { cause: String, lasted_ms: u64 },
}

impl Default for WindowLog {
    fn default() -> Self {
        let of = |origins, calm| OriginLog {
            origins,
            calm,
            refusing: BTreeMap::new(),
            openings: BTreeMap::new(),
        };
        Self {
            queues: of([WindowOrigin::Here, WindowOrigin::Elsewhere], CALM),
            operators: of(WindowOrigin::BY_HAND, Duration::ZERO),
        }
    }
}

impl WindowLog {
    /// Writes the lines that are due.
    pub(super) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        windows: &Windows,
        now: NanosSinceStart,
    ) {
        for (pool, _) in fleet.used_pools() {
            let cause = |by| cause_by(fleet, windows, pool, by);
            for line in self.lines(pool, windows, cause, now) {
                line.write(&pool_name(fleet, pool));
            }
        }
    }

    fn lines(
        &mut self,
        pool: PoolIndex,
        windows: &Windows,
        cause: impl Fn(WindowOrigin) -> String,
        now: NanosSinceStart,
    ) -> impl Iterator<Item = WindowLine> {
        let of_queues = self.queues.line(pool, windows, &cause, now);
        let of_operators = self.operators.line(pool, windows, &cause, now);
        of_queues.into_iter().chain(of_operators)
    }
}

impl OriginLog {
    fn line(
        &mut self,
        pool: PoolIndex,
        windows: &Windows,
        cause: impl Fn(WindowOrigin) -> String,
        now: NanosSinceStart,
    ) -> Option<WindowLine> {
        let openings = self.origins.map(|by| windows.openings_by(pool, by));
        let known = self.openings.insert(pool, openings).unwrap_or_default();
        let until = self.origins.map(|by| windows.open_by_until(pool, by, now));
        // A window may open and end between two looks.
        let looks = self.origins.into_iter().zip(until).zip(openings).zip(known);
        let was_open =
            looks.filter(|(((_, until), openings), known)| until.is_some() || openings > known);
        let open: Vec<WindowOrigin> = was_open.map(|(((by, _), _), _)| by).collect();
        let until = until.into_iter().max().flatten();
        let Some(refusing) = self.refusing.get_mut(&pool) else {
            let first = RefusingPool {
                since: now,
                openings_before: known.iter().sum(),
                cause: cause(*open.first()?),
                open_at: now,
                ends_at: until,
                is_ordered_here: open == [WindowOrigin::Hand],
                written_at: now,
            };
            let cause = first.cause.clone();
            let has_line = first.is_ordered_here;
            self.refusing.insert(pool, first);
            let mut by: Vec<&str> = open.into_iter().map(opener).collect();
            by.dedup();
            let ends_in_ms = until.map(|until| until.since(now).div_ceil(1_000_000));
            let line = WindowLine::Opened { by: by.join(", "), cause, ends_in_ms };
            return (!has_line).then_some(line);
        };
        if let Some(by) = open.first() {
            refusing.open_at = now;
            refusing.ends_at = until.or(refusing.ends_at);
            refusing.is_ordered_here &= open == [WindowOrigin::Hand];
            refusing.cause = cause(*by);
        } else if now >= refusing.open_at.plus(self.calm) {
            return self.refusing.remove(&pool)?.ended(openings.iter().sum(), self.origins, now);
        }
        if now < refusing.written_at.plus(REPEAT) {
            return None;
        }
        refusing.written_at = now;
        let openings = openings.iter().sum::<u64>().saturating_sub(refusing.openings_before);
        let seconds = now.since(refusing.since) / 1_000_000_000;
        Some(WindowLine::Goes { cause: refusing.cause.clone(), openings, seconds })
    }
}

impl RefusingPool {
    /// The line after the last window. An operator that has closed the window before its time has
    /// a line of that order.
    fn ended(
        self,
        openings: u64,
        origins: [WindowOrigin; 2],
        now: NanosSinceStart,
    ) -> Option<WindowLine> {
        let Self { since, openings_before, cause, open_at, ends_at, is_ordered_here, .. } = self;
        // A look may come long after the end, which is known from the look before.
        let ended_at = ends_at.map_or(open_at, |ends_at| ends_at.min(now));
        let lasted_ms = |until: NanosSinceStart| until.since(since).div_ceil(1_000_000);
        if origins != WindowOrigin::BY_HAND {
            let openings = openings.saturating_sub(openings_before);
            return Some(WindowLine::Closed { cause, openings, lasted_ms: lasted_ms(open_at) });
        }
        let is_closed_by_order = is_ordered_here && ends_at.is_none_or(|ends_at| now < ends_at);
        let lasted_ms = lasted_ms(ended_at);
        (!is_closed_by_order).then_some(WindowLine::OrderEnded { cause, lasted_ms })
    }
}

impl WindowLine {
    fn write(self, model: &str) {
        match self {
            Self::Opened { by, cause, ends_in_ms: Some(ends_in_ms) } => warn!(
                model,
                by,
                cause,
                ends_in_ms,
                "rejection window opened: requests get 429 until the window ends"
            ),
            Self::Opened { by, cause, ends_in_ms: None } => {
                warn!(
                    model,
                    by, cause, "rejection window opened: requests got 429, and it has ended"
                );
            }
            Self::Goes { cause, openings, seconds } => warn!(
                model,
                cause,
                openings,
                since_s_ago = seconds,
                "rejection windows go on: requests get 429"
            ),
            Self::Closed { cause, openings, lasted_ms } => info!(
                model,
                cause,
                openings,
                lasted_s = seconds_of(lasted_ms),
                "rejection window closed: no window has opened for 10 s"
            ),
            Self::OrderEnded { cause, lasted_ms } => {
                let lasted_s = seconds_of(lasted_ms);
                info!(model, cause, lasted_s, "rejection window by hand ended");
            }
        }
    }
}

/// Seconds with their milliseconds: 900 ms are not 0 s.
fn seconds_of(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolIndex = PoolIndex(0);
    const MS: u64 = 1_000_000;

    fn cause(by: WindowOrigin) -> String {
        format!("{by:?}")
    }

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * MS)
    }

    fn lines(log: &mut WindowLog, windows: &Windows, ms: u64) -> Vec<WindowLine> {
        log.lines(POOL, windows, cause, at(ms)).collect()
    }

    #[test]
    fn a_busy_pool_has_a_line_first_a_line_a_minute_and_a_line_last() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        assert_eq!(lines(&mut log, &windows, 0), [], "no window");
        let mut found = Vec::new();
        // A window of 50 ms every 500 ms, looked at every 100 ms, for 150 s. Then calm.
        for ms in (0..200_000).step_by(100) {
            if ms < 150_000 && ms % 500 == 50 - 50 {
                windows.open(POOL, WindowOrigin::Here, at(ms + 20), at(ms + 70));
            }
            found.extend(lines(&mut log, &windows, ms + 90));
        }
        let cause = || cause(WindowOrigin::Here);
        // A window that has ended before the look has an opener all the same, and no end.
        let opened = WindowLine::Opened { by: "here".to_owned(), cause: cause(), ends_in_ms: None };
        let first = WindowLine::Goes { cause: cause(), openings: 121, seconds: 60 };
        let second = WindowLine::Goes { cause: cause(), openings: 241, seconds: 120 };
        let closed = WindowLine::Closed { cause: cause(), openings: 300, lasted_ms: 149_500 };
        assert_eq!(found, [opened, first, second, closed]);
    }

    #[test]
    fn a_window_of_another_router_has_its_opener_and_its_end() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        for (by, label) in
            [(WindowOrigin::Elsewhere, "elsewhere"), (WindowOrigin::HandElsewhere, "hand")]
        {
            windows.open(POOL, by, at(0), at(1_000));
            let opened = WindowLine::Opened {
                by: label.to_owned(),
                cause: cause(by),
                ends_in_ms: Some(990),
            };
            assert_eq!(lines(&mut log, &windows, 10), [opened]);
            windows.close(POOL, by, at(20));
        }
        let ended =
            WindowLine::OrderEnded { cause: cause(WindowOrigin::HandElsewhere), lasted_ms: 20 };
        assert_eq!(lines(&mut log, &windows, 30), [ended], "no order of this router has a line");
        let cause = cause(WindowOrigin::Elsewhere);
        let closed = WindowLine::Closed { cause, openings: 1, lasted_ms: 0 };
        assert_eq!(lines(&mut log, &windows, 10_010), [closed]);
    }

    /// Issue 39: a window of 900 ms had lasted 0 s.
    #[test]
    fn a_short_window_by_hand_lasted_its_own_time() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        windows.set_end(POOL, WindowOrigin::Hand, at(0), at(900));
        assert_eq!(lines(&mut log, &windows, 0), []);
        let cause = cause(WindowOrigin::Hand);
        assert_eq!(
            lines(&mut log, &windows, 950),
            [WindowLine::OrderEnded { cause, lasted_ms: 900 }]
        );
        assert!((seconds_of(900) - 0.9).abs() < f64::EPSILON);
    }

    /// The order of an operator has a line with its caller, at its beginning and at a close.
    #[test]
    fn a_window_by_hand_has_no_line_beside_its_order_but_at_the_end_of_its_time() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        windows.set_end(POOL, WindowOrigin::Hand, at(0), at(90_000));
        assert_eq!(lines(&mut log, &windows, 10), [], "the order has its line");
        let goes = WindowLine::Goes { cause: cause(WindowOrigin::Hand), openings: 1, seconds: 60 };
        assert_eq!(lines(&mut log, &windows, 60_010), [goes]);
        assert_eq!(lines(&mut log, &windows, 89_900), []);
        let ended = WindowLine::OrderEnded { cause: cause(WindowOrigin::Hand), lasted_ms: 89_990 };
        assert_eq!(lines(&mut log, &windows, 90_010), [ended]);
        assert_eq!(lines(&mut log, &windows, 110_000), []);
        windows.set_end(POOL, WindowOrigin::Hand, at(120_000), at(180_000));
        assert_eq!(lines(&mut log, &windows, 120_010), []);
        windows.close(POOL, WindowOrigin::Hand, at(130_000));
        for ms in (130_010..200_000).step_by(100) {
            assert_eq!(lines(&mut log, &windows, ms), [], "the close has its line");
        }
    }
}

//! Log of rejection windows. Windows of a busy pool open and close many times a second, so a pool
//! has a line at its first window, a line a minute while windows go on, and a line after the last.

use forebay_admin::{openers, pool_name, window_cause};
use forebay_base::{NanosSinceStart, PoolIndex};
use forebay_board::Windows;
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Time between two lines of a pool with windows.
const REPEAT: Duration = Duration::from_secs(60);
/// A pool without a window for so long is open again.
const CALM: Duration = Duration::from_secs(10);

/// Pools with windows, and the openings of each pool that the log knows.
#[derive(Debug, Default)]
pub(super) struct WindowLog {
    refusing: BTreeMap<PoolIndex, RefusingPool>,
    openings: BTreeMap<PoolIndex, u64>,
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
    written_at: NanosSinceStart,
}

/// A line of the log about a pool.
#[derive(Debug, PartialEq, Eq)]
enum WindowLine {
    /// The first window has opened.
    Opened { by: String, cause: String, ends_in_ms: u64 },
    /// Windows go on opening, or a window stays open.
    Goes { cause: String, openings: u64, seconds: u64 },
    /// No window is open any more.
    Closed { cause: String, openings: u64, seconds: u64 },
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
            let cause = || window_cause(fleet, windows, pool, now);
            if let Some(line) = self.line(pool, windows, cause, now) {
                line.write(&pool_name(fleet, pool));
            }
        }
    }

    fn line(
        &mut self,
        pool: PoolIndex,
        windows: &Windows,
        cause: impl FnOnce() -> String,
        now: NanosSinceStart,
    ) -> Option<WindowLine> {
        let openings = windows.openings(pool);
        let known = self.openings.insert(pool, openings).unwrap_or(0);
        let until = windows.open_until(pool, now);
        // A window may open and end between two looks.
        let was_open = until.is_some() || openings > known;
        let Some(refusing) = self.refusing.get_mut(&pool) else {
            if !was_open {
                return None;
            }
            let cause = cause();
            let first = RefusingPool {
                since: now,
                openings_before: known,
                cause: cause.clone(),
                open_at: now,
                written_at: now,
            };
            self.refusing.insert(pool, first);
            let ends_in_ms = until.map_or(0, |until| until.since(now).div_ceil(1_000_000));
            return Some(WindowLine::Opened { by: openers(windows, pool, now), cause, ends_in_ms });
        };
        if was_open {
            refusing.open_at = now;
            refusing.cause = cause();
        }
        let openings = openings.saturating_sub(refusing.openings_before);
        let is_calm = now >= refusing.open_at.plus(CALM);
        if is_calm {
            let seconds = refusing.open_at.since(refusing.since) / 1_000_000_000;
            let cause = std::mem::take(&mut refusing.cause);
            self.refusing.remove(&pool);
            return Some(WindowLine::Closed { cause, openings, seconds });
        }
        if now < refusing.written_at.plus(REPEAT) {
            return None;
        }
        refusing.written_at = now;
        let seconds = now.since(refusing.since) / 1_000_000_000;
        Some(WindowLine::Goes { cause: refusing.cause.clone(), openings, seconds })
    }
}

impl WindowLine {
    fn write(self, model: &str) {
        match self {
            Self::Opened { by, cause, ends_in_ms } => warn!(
                model,
                by,
                cause,
                ends_in_ms,
                "rejection window opened: requests get 429 until the window ends"
            ),
            Self::Goes { cause, openings, seconds } => warn!(
                model,
                cause,
                openings,
                since_s_ago = seconds,
                "rejection windows go on: requests get 429"
            ),
            Self::Closed { cause, openings, seconds } => info!(
                model,
                cause,
                openings,
                lasted_s = seconds,
                "rejection window closed: no window has opened for 10 s"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_board::WindowOrigin;

    const POOL: PoolIndex = PoolIndex(0);
    const MS: u64 = 1_000_000;
    const FULL: &str = "the queue is full";

    fn cause() -> String {
        FULL.to_owned()
    }

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * MS)
    }

    #[test]
    fn a_busy_pool_has_a_line_first_a_line_a_minute_and_a_line_last() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        assert_eq!(log.line(POOL, &windows, cause, at(0)), None, "no window");
        let mut lines = Vec::new();
        // A window of 50 ms every 500 ms, looked at every 100 ms, for 150 s. Then calm.
        for ms in (0..200_000).step_by(100) {
            if ms < 150_000 && ms % 500 == 50 - 50 {
                windows.open(POOL, WindowOrigin::Here, at(ms + 20), at(ms + 70));
            }
            lines.extend(log.line(POOL, &windows, cause, at(ms + 90)));
        }
        let [opened, first, second, closed] = &lines[..] else { panic!("{lines:?}") };
        assert!(matches!(opened, WindowLine::Opened { ends_in_ms: 0, .. }), "{opened:?}");
        assert_eq!(*first, WindowLine::Goes { cause: cause(), openings: 121, seconds: 60 });
        assert_eq!(*second, WindowLine::Goes { cause: cause(), openings: 241, seconds: 120 });
        assert_eq!(*closed, WindowLine::Closed { cause: cause(), openings: 300, seconds: 149 });
    }

    #[test]
    fn a_window_by_hand_has_its_opener_and_its_end() {
        let windows = Windows::new();
        let mut log = WindowLog::default();
        windows.open(POOL, WindowOrigin::Hand, at(0), at(30_000));
        let opened = log.line(POOL, &windows, cause, at(10_000)).unwrap();
        assert_eq!(
            opened,
            WindowLine::Opened { by: "hand".to_owned(), cause: cause(), ends_in_ms: 20_000 }
        );
        assert_eq!(log.line(POOL, &windows, cause, at(29_900)), None);
        let closed = log.line(POOL, &windows, cause, at(39_900)).unwrap();
        assert_eq!(closed, WindowLine::Closed { cause: cause(), openings: 1, seconds: 19 });
        windows.open(POOL, WindowOrigin::Elsewhere, at(40_000), at(41_000));
        let again = log.line(POOL, &windows, cause, at(40_000)).unwrap();
        assert_eq!(
            again,
            WindowLine::Opened { by: "elsewhere".to_owned(), cause: cause(), ends_in_ms: 1_000 }
        );
    }
}

//! Log of answers that workers broke off. An engine that dies cuts all of its streams at once, so a
//! worker has a line at its first cut answer, a line a minute while answers are cut, and a line
//! after the last.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::account::RankCount;
use forebay_fleet::worker::FleetSnapshot;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Time between two looks, which is also the time in which the streams of a dead engine end.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two lines of a worker that goes on cutting answers.
const REPEAT: Duration = Duration::from_secs(60);
/// A worker without a cut answer for so long has recovered, or has no streams.
const CALM: Duration = Duration::from_secs(30);
const HELP: &str =
    "read the log of the engine; `retry.mid_stream` continues such streams elsewhere";

/// Workers that cut answers, and the cut answers of each rank that the log knows.
#[derive(Debug, Default)]
pub(super) struct CutLog {
    known: BTreeMap<RankIndex, u64>,
    episodes: BTreeMap<Box<str>, CutEpisode>,
    looked_at: Option<NanosSinceStart>,
}

/// Streams that a worker cuts in a row.
#[derive(Debug)]
struct CutEpisode {
    since: NanosSinceStart,
    cut_at: NanosSinceStart,
    written_at: NanosSinceStart,
    answers: u64,
}

/// A line of the log about a worker.
#[derive(Debug, PartialEq, Eq)]
enum CutLine {
    First { answers: u64 },
    Goes { answers: u64, seconds: u64 },
    Last { answers: u64, seconds: u64 },
}

impl CutLog {
    /// Writes the lines that are due. `count`: the value of a counter over all shards.
    pub(super) fn observe(
        &mut self,
        fleet: &FleetSnapshot,
        count: impl Fn(RankIndex, RankCount) -> u64,
        now: NanosSinceStart,
    ) {
        if self.looked_at.is_some_and(|looked| now < looked.plus(LOOK)) {
            return;
        }
        self.looked_at = Some(now);
        let mut cut: BTreeMap<&str, u64> = BTreeMap::new();
        // Ranks that left count too: a source may remove a worker in the moment of its death.
        for rank in (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index) {
            let Some((_, worker)) = fleet.rank(rank) else { continue };
            let total = count(rank, RankCount::CutAnswers);
            // A rank may have its place from a rank before: the counter goes on.
            let known = self.known.insert(rank, total).unwrap_or(0);
            *cut.entry(&worker.name).or_default() += total.saturating_sub(known);
        }
        for (worker, answers) in cut {
            if let Some(line) = self.line(worker, answers, now) {
                line.write(worker);
            }
        }
        // Another worker may have the place of a worker that left: no last line is due then.
        self.episodes.retain(|_, episode| now < episode.cut_at.plus(CALM).plus(LOOK));
    }

    /// The line that is due for a worker which has cut so many answers since the last look.
    fn line(&mut self, worker: &str, answers: u64, now: NanosSinceStart) -> Option<CutLine> {
        let Some(episode) = self.episodes.get_mut(worker) else {
            if answers == 0 {
                return None;
            }
            let first = CutEpisode { since: now, cut_at: now, written_at: now, answers };
            self.episodes.insert(worker.into(), first);
            return Some(CutLine::First { answers });
        };
        episode.answers = episode.answers.saturating_add(answers);
        if answers > 0 {
            episode.cut_at = now;
        }
        let answers = episode.answers;
        if now >= episode.cut_at.plus(CALM) {
            let seconds = episode.cut_at.since(episode.since) / 1_000_000_000;
            self.episodes.remove(worker);
            return Some(CutLine::Last { answers, seconds });
        }
        if now < episode.written_at.plus(REPEAT) {
            return None;
        }
        episode.written_at = now;
        let seconds = now.since(episode.since) / 1_000_000_000;
        Some(CutLine::Goes { answers, seconds })
    }
}

impl CutLine {
    fn write(self, worker: &str) {
        match self {
            Self::First { answers } => {
                warn!(worker, answers, help = HELP, "the worker broke off answers in the middle");
            }
            Self::Goes { answers, seconds } => {
                warn!(
                    worker,
                    answers,
                    seconds,
                    help = HELP,
                    "the worker goes on breaking off answers"
                );
            }
            Self::Last { answers, seconds } => {
                info!(worker, answers, seconds, "the worker breaks off no more answers");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> NanosSinceStart {
        NanosSinceStart(seconds * 1_000_000_000)
    }

    #[test]
    fn a_worker_that_dies_has_a_line_with_its_streams_and_a_last_line() {
        let mut log = CutLog::default();
        assert_eq!(log.line("w", 0, at(1)), None);
        assert_eq!(log.line("w", 40, at(2)), Some(CutLine::First { answers: 40 }));
        assert_eq!(log.line("w", 2, at(3)), None);
        let lines: Vec<_> = (4..60).filter_map(|s| log.line("w", 0, at(s))).collect();
        assert_eq!(lines, [CutLine::Last { answers: 42, seconds: 1 }]);
        assert!(log.episodes.is_empty());
    }

    #[test]
    fn a_worker_that_cuts_streams_for_hours_has_a_line_a_minute() {
        let mut log = CutLog::default();
        let lines: Vec<_> = (0..3_600).filter_map(|s| log.line("w", 3, at(s))).collect();
        assert_eq!(lines.len(), 60, "{lines:?}");
        assert_eq!(lines[1], CutLine::Goes { answers: 183, seconds: 60 });
    }
}

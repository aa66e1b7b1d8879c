//! Sums up lines of the log about many workers: a fleet that dies within a second would bury all
//! other lines. Of the lines that a place in the code writes within [`LOG_ALIKE_PERIOD`], the
//! first [`LOG_ALIKE_LINES_MAX`] pass. A single line has the exact count of the rest and the most
//! frequent cause. Sans-IO: marks and time in, decisions and sums out. Runs on the thread that
//! writes the log.

use forebay_base::NanosSinceStart;
use forebay_base::limits::{LOG_ALIKE_LINES_MAX, LOG_ALIKE_PERIOD, WORKERS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, event};

/// Fields that make a line a line about a worker.
const NAMES: [&str; 2] = ["worker", "url"];
/// Records of requests name their worker too. Each record counts.
const RECORDS: &str = "forebay_dataplane";
/// Target of the events that log sums.
pub(crate) const SUMS: &str = "forebay::worker_lines";
/// Pairs of a place and a message with a sum of their own. Further lines count by place alone.
const BURSTS_MAX: usize = 64;
/// Longest list of names in a sum.
const SUM_NAMES_BYTES_MAX: usize = 1_024;
/// Longest text of a mark.
const TEXT_CHARS_MAX: usize = 200;
/// Distinct causes that a sum counts. Further causes count as lines alone.
const CAUSES_MAX: usize = 16;
/// Begins a mark, separates its parts, and ends the mark. No part contains these.
const BEGIN: char = '\u{1}';
const NEXT: char = '\u{1f}';
const END: char = '\u{2}';
const HELP: &str = "`forebay workers` lists all workers";

/// Facts of a line about a worker, in front of the formatted line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LineMark {
    level: String,
    /// Place in the code.
    place: String,
    worker: String,
    cause: String,
    message: String,
}

impl LineMark {
    /// The mark of an event about a worker; `None` for other events.
    pub(crate) fn of(event: &Event<'_>) -> Option<Self> {
        let metadata = event.metadata();
        let fields = metadata.fields();
        let is_record = metadata.target().starts_with(RECORDS);
        if is_record || NAMES.iter().all(|name| fields.field(name).is_none()) {
            return None;
        }
        let level = metadata.level().to_string();
        let mut mark = Self { level, place: metadata.name().to_owned(), ..Self::default() };
        event.record(&mut mark);
        Some(mark)
    }

    /// Writes the mark in front of its line.
    pub(crate) fn write(&self, out: &mut impl Write) -> fmt::Result {
        let Self { level, place, worker, cause, message } = self;
        write!(out, "{BEGIN}{level}{NEXT}{place}{NEXT}{worker}{NEXT}{cause}{NEXT}{message}{END}")
    }

    /// Splits a line into its mark, if any, and the text for the log.
    fn split(line: &[u8]) -> (Option<Self>, &[u8]) {
        Self::parse(line).map_or((None, line), |(mark, text)| (Some(mark), text))
    }

    fn parse(line: &[u8]) -> Option<(Self, &[u8])> {
        let marked = line.strip_prefix(&[BEGIN as u8])?;
        let end = memchr::memchr(END as u8, marked)?;
        let text = marked.get(end + 1..)?;
        let mut parts = std::str::from_utf8(marked.get(..end)?).ok()?.split(NEXT);
        let mut next = || parts.next().map(ToOwned::to_owned);
        let level = next()?;
        let place = next()?;
        let worker = next()?;
        let cause = next()?;
        Some((Self { level, place, worker, cause, message: next()? }, text))
    }

    fn take(&mut self, field: &Field, value: &str) {
        let text = || {
            let chars = value.chars().take(TEXT_CHARS_MAX);
            chars.map(|each| if each.is_control() { ' ' } else { each }).collect()
        };
        match field.name() {
            "message" => self.message = text(),
            "error" | "fault" | "reason" => self.cause = text(),
            name if NAMES.contains(&name) => self.worker = text(),
            _ => {}
        }
    }
}

impl Visit for LineMark {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, &format!("{value:?}"));
    }
}

/// Lines of each place in the code that has written lately, and of each message of the place.
#[derive(Debug, Default)]
pub(crate) struct WorkerLines {
    bursts: BTreeMap<String, LineBurst>,
}

/// Lines of a place within a period.
#[derive(Debug)]
struct LineBurst {
    began_at: NanosSinceStart,
    passed: u32,
    sum: LineSum,
}

/// Lines that are held back, for a line in their place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LineSum {
    level: String,
    message: String,
    lines: u64,
    workers: BTreeSet<String>,
    causes: BTreeMap<String, u64>,
}

impl WorkerLines {
    /// The text of a line that passes; `None` if the line is held back and counted.
    pub(crate) fn admit<'a>(&mut self, line: &'a [u8], now: NanosSinceStart) -> Option<&'a [u8]> {
        let parts = LineMark::split(line);
        let Some(mark) = parts.0 else { return Some(parts.1) };
        let mut key = format!("{}{NEXT}{}", mark.place, mark.message);
        if self.bursts.len() >= BURSTS_MAX && !self.bursts.contains_key(&key) {
            key.clone_from(&mark.place);
        }
        let burst = self.bursts.entry(key).or_insert_with(|| LineBurst {
            began_at: now,
            passed: 0,
            sum: LineSum::default(),
        });
        if burst.passed < LOG_ALIKE_LINES_MAX {
            burst.passed += 1;
            return Some(parts.1);
        }
        burst.sum.add(mark);
        None
    }

    /// Takes the sums of the periods that are over, or of all.
    pub(crate) fn take_due(&mut self, now: NanosSinceStart, all: bool) -> Vec<LineSum> {
        let mut due = Vec::new();
        self.bursts.retain(|_, burst| {
            let is_kept = !all && now < burst.began_at.plus(LOG_ALIKE_PERIOD);
            if !is_kept && burst.sum.lines > 0 {
                due.push(std::mem::take(&mut burst.sum));
            }
            is_kept
        });
        due
    }

    /// Places with lines that are held back.
    pub(crate) fn held_count(&self) -> usize {
        self.bursts.values().filter(|burst| burst.sum.lines > 0).count()
    }

    /// Time to the first sum.
    pub(crate) fn wait(&self, now: NanosSinceStart) -> Option<Duration> {
        let held = self.bursts.values().filter(|burst| burst.sum.lines > 0);
        let ends = held.map(|burst| burst.began_at.plus(LOG_ALIKE_PERIOD).since(now));
        ends.min().map(Duration::from_nanos)
    }
}

impl LineSum {
    /// Lines that are held back.
    pub(crate) fn lines(&self) -> usize {
        usize::try_from(self.lines).unwrap_or(usize::MAX)
    }

    fn add(&mut self, mark: LineMark) {
        self.lines += 1;
        if self.workers.len() < WORKERS_MAX {
            self.workers.insert(mark.worker);
        }
        self.level = mark.level;
        self.message = mark.message;
        if mark.cause.is_empty() {
            return;
        }
        if self.causes.len() < CAUSES_MAX || self.causes.contains_key(&mark.cause) {
            *self.causes.entry(mark.cause).or_default() += 1;
        }
    }

    /// Logs the sum in place of its lines.
    pub(crate) fn log(&self) {
        let Self { level, message, lines, workers, causes } = self;
        let names = self.names();
        let workers = workers.len();
        let most = causes.iter().max_by_key(|(_, lines)| **lines);
        let cause = most.map(|(cause, _)| cause.as_str());
        let of_cause = most.map(|(_, lines)| *lines);
        let help = HELP;
        // The level of an event is a constant.
        macro_rules! sum {
            ($level:expr) => {
                event!(
                    target: SUMS,
                    $level,
                    lines,
                    workers,
                    names,
                    cause,
                    of_cause,
                    help,
                    "{lines} more lines: {message}"
                )
            };
        }
        match level.parse() {
            Ok(Level::ERROR) => sum!(Level::ERROR),
            Ok(Level::WARN) => sum!(Level::WARN),
            Ok(Level::DEBUG) => sum!(Level::DEBUG),
            Ok(Level::TRACE) => sum!(Level::TRACE),
            _ => sum!(Level::INFO),
        }
    }

    /// Names of the workers, up to [`SUM_NAMES_BYTES_MAX`].
    fn names(&self) -> String {
        let mut names = String::new();
        for name in &self.workers {
            if names.len() + name.len() > SUM_NAMES_BYTES_MAX {
                names.push_str(", …");
                break;
            }
            if !names.is_empty() {
                names.push_str(", ");
            }
            names.push_str(name);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(place: &str, worker: usize, cause: &str) -> Vec<u8> {
        let text = |text: &str| text.to_owned();
        let mark = LineMark {
            level: text("WARN"),
            place: text(place),
            worker: format!("gpu{worker}"),
            cause: text(cause),
            message: text("worker is down"),
        };
        let mut line = String::new();
        mark.write(&mut line).unwrap();
        line.push_str("the line\n");
        line.into_bytes()
    }

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * 1_000_000)
    }

    /// M1: no line is lost without a count, whatever the number of workers and of places.
    #[test]
    fn each_line_passes_or_is_counted() {
        for count in [0, 1, 9, 10, 11, 1_020, 5_000] {
            let mut lines = WorkerLines::default();
            let mut passed = 0;
            let mut counted = 0;
            for worker in 0..count {
                for place in ["down", "not reached"] {
                    // 5,000 lines come over several periods.
                    let now = at(worker as u64);
                    counted += lines.take_due(now, false).iter().map(|sum| sum.lines).sum::<u64>();
                    passed +=
                        u64::from(lines.admit(&line(place, worker, "refused"), now).is_some());
                }
            }
            counted += lines.take_due(at(0), true).iter().map(|sum| sum.lines).sum::<u64>();
            assert_eq!(passed + counted, 2 * count as u64, "{count}");
            assert!(passed <= 2 * 10 * (count as u64).div_ceil(1_000), "{count}: {passed}");
            assert!(passed >= 2 * (count as u64).min(10), "{count}: {passed}");
            assert_eq!(lines.held_count(), 0);
        }
    }

    #[test]
    fn a_sum_has_its_workers_and_the_most_frequent_cause() {
        let mut lines = WorkerLines::default();
        for worker in 0..1_020 {
            let cause = if worker % 3 == 0 { "timeout" } else { "refused" };
            let _ = lines.admit(&line("down", worker, cause), at(500));
        }
        assert!(lines.take_due(at(1_499), false).is_empty());
        assert_eq!(lines.wait(at(1_400)), Some(Duration::from_millis(100)));
        let sums = lines.take_due(at(1_500), false);
        let [sum] = &sums[..] else { panic!("{sums:?}") };
        assert_eq!((sum.lines, sum.workers.len()), (1_010, 1_010));
        assert_eq!(sum.causes["refused"], 674);
        let names = sum.names();
        assert!(names.starts_with("gpu10, gpu100, ") && names.ends_with(", …"), "{names}");
        assert!(names.len() <= SUM_NAMES_BYTES_MAX + ", …".len() + ", gpu1000".len());
        assert_eq!(lines.wait(at(1_500)), None);
        assert!(lines.admit(&line("down", 7, "refused"), at(1_501)).is_some(), "a new period");
    }

    #[test]
    fn a_line_without_a_whole_mark_passes_as_it_is() {
        let mut lines = WorkerLines::default();
        for _ in 0..50 {
            for text in [&b"plain\n"[..], b"\x01torn", b"\x01a\x1fb\x02rest", b""] {
                assert_eq!(lines.admit(text, at(0)), Some(text));
            }
        }
        let marked = line("down", 1, "a cause");
        assert_eq!(lines.admit(&marked, at(0)), Some(&b"the line\n"[..]));
    }
}
